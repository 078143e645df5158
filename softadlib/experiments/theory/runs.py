"""How near to stationary the runs of Propositions 3, 4 and 6 come, and how steep transformed gradients are."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from softadlib.experiments.theory import algorithms, problems
from softadlib.experiments.theory.algorithms import norms
from softadlib.experiments.theory.problems import Distances, SquaredDistances
from softadlib.functional import softad_weights


def simulate(
    update: Callable[[np.ndarray, np.ndarray], np.ndarray],
    gradient: Callable[[np.ndarray, int], np.ndarray],
    start: Sequence[float] | np.ndarray,
    runs: int,
    steps: int,
) -> np.ndarray:
    """Return w_1 … w_{T+1} of `runs` runs from one start, (T + 1, runs, d); `gradient` takes (w, t)."""
    path = np.empty((steps + 1, runs, len(start)))
    path[0] = start
    for t in range(steps):
        path[t + 1] = update(path[t], gradient(path[t], t))
    return path


def _draw_samples(
    problem: SquaredDistances | Distances, steps: int, runs: int, seed: int
) -> tuple[np.random.Generator, np.ndarray]:
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(steps,)))
    return rng, problem.points[rng.integers(len(problem.points), size=(steps, runs))]


def _subsample(path: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` evenly spaced iterates of w_1 … w_T, to average over."""
    last = len(path) - 2
    iterates: np.ndarray = path[np.unique(np.linspace(0, last, count).round().astype(int))]
    return iterates


def _row(
    measured: np.ndarray, bounds: dict[str, float], path: np.ndarray, radius: float
) -> dict[str, object]:
    """Put measured means (runs,) beside their bounds; `inside`: whether every iterate is on the ball."""
    inside = bool((norms(path) <= radius + 1e-12).all())
    row = {"T": len(path) - 1, "mean": measured.mean(), "worst": measured.max()}
    return {**row, **bounds, "inside": inside}


def softad_rows(
    problem: SquaredDistances,
    theta: float,
    start: Sequence[float] | np.ndarray,
    horizons: Sequence[int],
    *,
    runs: int,
    seed: int,
    delta: float = 0.1,
    count: int = 1000,
) -> pd.DataFrame:
    """Check Prop. 3: T⁻¹Σ‖∇S(w_t)‖, mean and worst of the runs, beside its bounds, a row per T.

    The bounds hold for each run with probability 1 − δ and take the largest S(w_1) − S(w_{T+1}).
    `count` iterates make the average.
    """
    g, smoothness = problem.g2**0.5, algorithms.l_ad(problem.g2, problem.l_star)

    def row(steps: int) -> dict[str, object]:
        _, z = _draw_samples(problem, steps, runs, seed)

        def gradient(w: np.ndarray, t: int) -> np.ndarray:
            return algorithms.soft_gradient(*problem.at(w, z[t]), theta)

        path = simulate(algorithms.NormClipMomentum(steps, g).step, gradient, start, runs, steps)
        drop = problems.softad_value(problem, path[0], theta)
        drop = (drop - problems.softad_value(problem, path[-1], theta)).max()
        slopes = problems.softad_gradient(problem, _subsample(path, count), theta)
        bounds = algorithms.momentum_bounds(steps, drop, smoothness, g, delta)
        return _row(norms(slopes)[..., 0].mean(0), bounds, path, problem.radius)

    return pd.DataFrame(map(row, horizons))


def iflood_rows(
    problem: SquaredDistances,
    theta: float,
    start: Sequence[float] | np.ndarray,
    horizons: Sequence[int],
    *,
    runs: int,
    seed: int,
    count: int = 100,
) -> pd.DataFrame:
    """Check Prop. 4: T⁻¹Σ‖∇F̄(w_t)‖², mean and worst of the runs, beside its bounds on the mean.

    `q` is √(L*G²Δ/T), the unit of both bounds.
    """
    drop = problems.envelope(problem, np.asarray(start, dtype=float), theta)[0]
    constants = (float(drop) - problems.least_envelope(problem, theta), problem.g2, problem.l_star)
    ball = algorithms.onto_ball(problem.radius)

    def row(steps: int) -> dict[str, object]:
        _, z = _draw_samples(problem, steps, runs, seed)

        def gradient(w: np.ndarray, t: int) -> np.ndarray:
            return algorithms.hard_gradient(*problem.at(w, z[t]), theta)

        method = algorithms.ProjectedSubgradient(steps, *constants, project=ball)
        path = simulate(method.step, gradient, start, runs, steps)
        slopes = problems.envelope(problem, _subsample(path, count), theta)[1]
        bounds = algorithms.subgradient_bounds(steps, *constants)
        measured = np.square(slopes).sum(-1).mean(0)
        return {**_row(measured, bounds, path, problem.radius), "q": bounds["corrected"] / 4}

    return pd.DataFrame(map(row, horizons))


def zeroth_rows(
    problem: Distances,
    theta: float,
    start: Sequence[float] | np.ndarray,
    horizons: Sequence[int],
    *,
    radius: float,
    points: int = 1,
    rule: str = "corrected",
    runs: int,
    seed: int,
    delta: float = 0.1,
    count: int = 100,
) -> pd.DataFrame:
    """Check Prop. 6 in the plane: T⁻¹Σ‖∇S̄(w_t; r)‖, mean and worst of the runs, beside its bounds.

    `clipped` is the share of the gradients that γ under `rule` shortens.
    """

    def mean(w: np.ndarray) -> np.ndarray:
        return problem.softad(w, theta)

    estimate, v = algorithms.ZerothOrder(radius, points), problem.moment(theta)
    constants = (2 * problem.lipschitz / radius, 2 * v**0.5 / radius)

    def row(steps: int) -> dict[str, object]:
        rng, z = _draw_samples(problem, steps, runs, seed)
        u = estimate.directions(rng, (steps, runs, 2))
        gamma = estimate.gamma(steps, 2, problem.lipschitz, v, rule)
        clipped = np.empty(steps)

        def gradient(w: np.ndarray, t: int) -> np.ndarray:
            g = estimate.gradient(lambda x: problem.softad(x, theta, z[t]), w, u[t])
            clipped[t] = (norms(g) > gamma).mean()
            return g

        method = algorithms.NormClipMomentum(steps, constants[1], gamma)
        path = simulate(method.step, gradient, start, runs, steps)
        first, last = (problems.smoothed_value(mean, path[i], radius) for i in (0, -1))
        bounds = algorithms.momentum_bounds(steps, (first - last).max(), *constants, delta)
        slopes = problems.smoothed_gradient(mean, _subsample(path, count), radius)
        measured = norms(slopes)[..., 0].mean(0)
        return {
            **_row(measured, bounds, path, problem.radius - radius),
            "clipped": clipped.mean(),
        }

    return pd.DataFrame(map(row, horizons))


def first_useful(smoothness: float, moment: float, delta: float, which: str) -> int:
    """Return the smallest power of ten T whose momentum bound is below the trivial bound, G = `moment`."""
    steps = 1
    while algorithms.momentum_bounds(steps, 0, smoothness, moment, delta)[which] >= moment:
        steps *= 10
    return steps


def exponent(rows: pd.DataFrame, column: str = "mean") -> float:
    """Return the p of column ∝ T^p, by least squares on logarithms."""
    return float(np.polyfit(np.log(rows["T"]), np.log(rows[column]), 1)[0])


def mean_gradient(
    problem: SquaredDistances,
    w: np.ndarray,
    theta: float,
    kind: str,
    sigma: float = 1.0,
    scale: str = "code",
) -> np.ndarray:
    """Return mean (weight of ℓ_i)·∇ℓ_i, (…, d) → (…, d): the direction of a full batch.

    The weight is sign(ℓ_i − θ) for "iflood", sign(mean ℓ − θ) for "flooding", `softad_weights`
    for "softad".
    """
    losses, gradients, _ = problem(w)
    if kind == "softad":
        weights = softad_weights(torch.as_tensor(losses), theta, sigma, scale).numpy()
    else:
        level = losses if kind == "iflood" else losses.mean(-1, keepdims=True)
        weights = np.sign(level - theta)
    gradient: np.ndarray = (weights[..., None] * gradients).mean(-2)
    return gradient


def pairs(
    problem: SquaredDistances, theta: float, distance: float, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw points `distance` apart, (m, d) each: `count` anywhere on the ball, and as many astride.

    Astride of the sphere ℓ_i = θ for some i, and of the sphere mean ℓ = θ, where there is one;
    pairs that leave the ball are left out.
    """
    d, centre = problem.points.shape[1], problem.points.mean(0)
    u = algorithms.ZerothOrder.directions(rng, (3, count, d))
    anywhere = problem.radius * rng.random((count, 1)) ** (1 / d) * u[0]
    around = problem.points[rng.integers(len(problem.points), size=count)]
    middles, ways = [anywhere, around + (2 * theta) ** 0.5 * u[1]], [u[1], u[1]]
    rest = theta - problem(centre)[0].mean()
    if rest > 0:
        middles.append(centre + (2 * rest) ** 0.5 * u[2])
        ways.append(u[2])
    middle, way = np.concatenate(middles), distance / 2 * np.concatenate(ways)
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
    rng, ratios = np.random.default_rng(seed), {}
    for distance in distances:
        first, second = pairs(problem, theta, distance, count, rng)
        change = mean_gradient(problem, first, theta, **gradient)
        change = change - mean_gradient(problem, second, theta, **gradient)
        ratios[distance] = (norms(change) / norms(first - second)).max()
    return pd.Series(ratios)
