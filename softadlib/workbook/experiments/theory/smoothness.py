"""How steep the mean gradients are, pair by pair: App. B.5."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from softadlib.workbook.experiments.theory.problems import SquaredDistances, mean_gradient, norms
from softadlib.workbook.experiments.theory.zeroth import directions


def pairs(
    problem: SquaredDistances, theta: float, distance: float, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw points `distance` apart, (m, d) each: `count` anywhere on the ball, and as many astride.

    Astride of the sphere ℓ_i = θ for some i, and of the sphere mean ℓ = θ, where there is one;
    pairs that leave the ball are left out.
    """
    d = problem.points.shape[1]
    centre = problem.points.mean(0)
    u = directions(rng, (3, count, d))
    anywhere = problem.radius * rng.random((count, 1)) ** (1 / d) * u[0]
    around = problem.points[rng.integers(len(problem.points), size=count)]
    middles = [anywhere, around + (2 * theta) ** 0.5 * u[1]]
    ways = [u[1], u[1]]
    rest = theta - problem(centre)[0].mean()
    if rest > 0:
        middles.append(centre + (2 * rest) ** 0.5 * u[2])
        ways.append(u[2])
    middle = np.concatenate(middles)
    way = distance / 2 * np.concatenate(ways)
    distances = norms(np.stack([middle - way, middle + way]))[..., 0]
    inside = np.all(distances <= problem.radius, axis=0)
    return (middle - way)[inside], (middle + way)[inside]


def steepest(
    problem: SquaredDistances,
    theta: float,
    distances: Sequence[float],
    count: int,
    seed: int,
    **gradient: Any,
) -> pd.Series:
    """Return the largest ‖g(w₁) − g(w₂)‖/‖w₁ − w₂‖ over the `pairs` at each distance, g = `mean_gradient`.

    The same pairs for every g of one seed.
    """
    rng = np.random.default_rng(seed)
    ratios = {}
    for distance in distances:
        first, second = pairs(problem, theta, distance, count, rng)
        change = mean_gradient(problem, first, theta, **gradient)
        change = change - mean_gradient(problem, second, theta, **gradient)
        ratios[distance] = (norms(change) / norms(first - second)).max()
    return pd.Series(ratios)
