"""How near to stationary SoftAD, iFlood and a derivative-free SoftAD come, against the paper's bounds.

Propositions 3, 4 and 6, Remark 5 and App. B.5 of Holland & Nakatani (2024). Points are float64
arrays (…, d); all leading axes are independent runs. Nothing is differentiated automatically.

`bounds` has the bounds as stated and as corrected, `problems` the losses with known constants,
`algorithms`, `prox` and `zeroth` what the propositions run, `stationarity` the runs against the bounds,
`smoothness` App. B.5.
"""

from softadlib.workbook.experiments.theory.bounds import compare_rates, l_ad
from softadlib.workbook.experiments.theory.problems import Distances, SquaredDistances, cloud
from softadlib.workbook.experiments.theory.prox import hardest_iflood
from softadlib.workbook.experiments.theory.smoothness import steepest
from softadlib.workbook.experiments.theory.stationarity import iflood_rows, softad_rows, zeroth_rows

__all__ = [
    "Distances",
    "SquaredDistances",
    "cloud",
    "compare_rates",
    "hardest_iflood",
    "iflood_rows",
    "l_ad",
    "softad_rows",
    "steepest",
    "zeroth_rows",
]
