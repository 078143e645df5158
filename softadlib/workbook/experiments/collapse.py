"""Remark 2: on which θ a criterion has the minimiser of the mean loss, its "collapse" into ERM.

A monotone criterion cannot avoid it where one candidate has the least loss on every sample; SoftAD,
iFlood and Flooding leave ERM's minimiser once θ lies far enough above the losses there. In float64.
"""

import numpy as np

from softadlib.workbook.experiments.theory.problems import rho


def price_of_an_error(theta: float, sigma: float = 1.0) -> float:
    """Return ρ((1−θ)/σ) − ρ(θ/σ): how the criterion of losses that are 0 or 1 grows with the error rate.

    The criterion is a constant plus this price times the error rate. For θ < ½ its minimiser is that of
    ERM, at θ = ½ every candidate is a minimiser, and for θ > ½ the one with the most errors is.

    Example:
        >>> [round(price_of_an_error(theta), 3) for theta in (0.0, 0.5, 1.0)]
        [0.414, 0.0, -0.414]
    """
    return float(rho(np.asarray((1 - theta) / sigma)) - rho(np.asarray(theta / sigma)))
