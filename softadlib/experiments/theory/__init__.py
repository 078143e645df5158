"""How near to stationary SoftAD, iFlood and a derivative-free SoftAD come, against the paper's bounds.

Propositions 3, 4 and 6, Remark 5 and App. B.5 of Holland & Nakatani (2024). Points are float64
arrays (…, d); all leading axes are independent runs. Nothing is differentiated automatically.

`bounds` has the bounds as stated and as corrected, `problems` the losses with known constants,
`algorithms`, `prox` and `zeroth` what the propositions run, `stationarity` the runs against the bounds,
`smoothness` App. B.5.
"""

from softadlib.experiments.theory.algorithms import (
    NormClipMomentum,
    onto_ball,
    simulate,
    subgradient_step,
)
from softadlib.experiments.theory.bounds import (
    compare_rates,
    confidence,
    l_ad,
    momentum_bounds,
    subgradient_bounds,
)
from softadlib.experiments.theory.problems import (
    Distances,
    SquaredDistances,
    cloud,
    hard_gradient,
    mean_gradient,
    norms,
    soft_gradient,
    softad_value,
)
from softadlib.experiments.theory.prox import (
    envelope,
    hardest_iflood,
    least_envelope,
    moreau_prox,
)
from softadlib.experiments.theory.smoothness import steepest
from softadlib.experiments.theory.stationarity import iflood_rows, softad_rows, zeroth_rows
from softadlib.experiments.theory.zeroth import (
    directions,
    smoothed_gradient,
    smoothed_value,
    zeroth_gamma,
    zeroth_gradient,
)

__all__ = [
    "Distances",
    "NormClipMomentum",
    "SquaredDistances",
    "cloud",
    "compare_rates",
    "confidence",
    "directions",
    "envelope",
    "hard_gradient",
    "hardest_iflood",
    "iflood_rows",
    "l_ad",
    "least_envelope",
    "mean_gradient",
    "momentum_bounds",
    "moreau_prox",
    "norms",
    "onto_ball",
    "simulate",
    "smoothed_gradient",
    "smoothed_value",
    "soft_gradient",
    "softad_rows",
    "softad_value",
    "steepest",
    "subgradient_bounds",
    "subgradient_step",
    "zeroth_gamma",
    "zeroth_gradient",
    "zeroth_rows",
]
