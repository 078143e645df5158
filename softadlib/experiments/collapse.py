"""Remark 2: on which θ a criterion has the minimiser of the mean loss, its "collapse" into ERM.

A monotone criterion cannot avoid it where one candidate has the least loss on every sample; SoftAD,
iFlood and Flooding leave ERM's minimiser once θ lies far enough above the losses there. In float64.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from softadlib.experiments.theory.problems import rho
from softadlib.methods import get_method

METHODS = ("flooding", "iflood", "softad")


def price_of_an_error(theta: float, sigma: float = 1.0) -> float:
    """Return ρ((1−θ)/σ) − ρ(θ/σ): how the criterion of losses that are 0 or 1 grows with the error rate.

    Its value is a constant plus this times the error rate. So its minimiser is ERM's for θ < ½, every
    candidate is a minimiser at ½, and above it the largest error rate is.

    Example:
        >>> [round(price_of_an_error(theta), 3) for theta in (0.0, 0.5, 1.0)]
        [0.414, 0.0, -0.414]
    """
    return float(rho(np.asarray((1 - theta) / sigma)) - rho(np.asarray(theta / sigma)))


def least_candidates(
    method: str, points: np.ndarray, theta: float, candidates: np.ndarray
) -> np.ndarray:
    """Return the candidates w (k,) of least objective over the losses ½(w − z_i)², `points` (n,).

    More than one where they are equal to 1e-12, as Flooding's are on a level set.
    """
    objective = get_method(method).objective
    losses = np.square(candidates[:, None] - points) / 2
    values = torch.vmap(lambda batch: objective(batch, theta))(torch.as_tensor(losses)).numpy()
    return np.asarray(candidates[values <= values.min() + 1e-12])


def distance_to_erm(
    points: np.ndarray,
    thetas: Iterable[float],
    methods: Iterable[str] = METHODS,
    candidates: np.ndarray | None = None,
) -> pd.DataFrame:
    """Return how far from ERM's minimiser, the mean of the points, the nearest minimiser of each method is.

    Args:
        points: on the line, (n,).
        thetas: thresholds, the index of the table.
        methods: names in the registry, the columns.
        candidates: to minimise over; 4,001 between −2 and 2 unless given.
    """
    line = np.linspace(-2, 2, 4001) if candidates is None else candidates
    erm = points.mean()
    table = {
        method: {
            theta: float(np.abs(least_candidates(method, points, theta, line) - erm).min())
            for theta in thetas
        }
        for method in methods
    }
    return pd.DataFrame(table).rename_axis("theta")
