"""Runs of the algorithms measured against their bounds: a row per number of steps T."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from softadlib.workbook.analysis.statistics import mean_interval
from softadlib.workbook.experiments.theory.algorithms import (
    NormClipMomentum,
    onto_ball,
    simulate,
    subgradient_step,
)
from softadlib.workbook.experiments.theory.bounds import l_ad, momentum_bounds, subgradient_bounds
from softadlib.workbook.experiments.theory.problems import (
    Distances,
    SquaredDistances,
    hard_gradient,
    mean_gradient,
    norms,
    soft_gradient,
    softad_value,
)
from softadlib.workbook.experiments.theory.prox import envelope, least_envelope
from softadlib.workbook.experiments.theory.zeroth import (
    directions,
    smoothed_gradient,
    smoothed_value,
    zeroth_gamma,
    zeroth_gradient,
)


def _draw_samples(
    problem: SquaredDistances | Distances, steps: int, runs: int, seed: int
) -> tuple[np.random.Generator, np.ndarray]:
    """Return a generator of its own for every T, and the points drawn at each step of each run."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(steps,)))
    return rng, problem.points[rng.integers(len(problem.points), size=(steps, runs))]


def _subsample(path: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` evenly spaced iterates of w_1 … w_T, to average over."""
    last = len(path) - 2
    return np.asarray(path[np.unique(np.linspace(0, last, count).round().astype(int))])


def _row(
    slopes: np.ndarray, bounds: dict[str, float], path: np.ndarray, radius: float
) -> dict[str, object]:
    """Put slopes (iterates, runs) beside their bounds; `inside`: whether every iterate is on the ball.

    `mean`, its 95 % interval (`low`, `high`) and `worst` are those of the runs' averages, `last` is the
    mean of the runs at w_T alone.
    """
    inside = bool((norms(path) <= radius + 1e-12).all())
    averages = slopes.mean(0)
    mean, low, high, _ = mean_interval(averages)
    row = {"T": len(path) - 1, "mean": mean, "low": low, "high": high, "worst": averages.max()}
    return {**row, "last": slopes[-1].mean(), **bounds, "inside": inside}


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
    g = problem.g2**0.5
    smoothness = l_ad(problem.g2, problem.l_star)

    def row(steps: int) -> dict[str, object]:
        _, z = _draw_samples(problem, steps, runs, seed)

        def gradient(w: np.ndarray, t: int) -> np.ndarray:
            return soft_gradient(*problem.at(w, z[t]), theta)

        path = simulate(NormClipMomentum(steps, g).step, gradient, start, runs, steps)
        drop = softad_value(problem, path[0], theta)
        drop = (drop - softad_value(problem, path[-1], theta)).max()
        slopes = mean_gradient(problem, _subsample(path, count), theta, "softad")
        bounds = momentum_bounds(steps, drop, smoothness, g, delta)
        return _row(norms(slopes)[..., 0], bounds, path, problem.radius)

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
    drop = envelope(problem, np.asarray(start, dtype=float), theta)[0]
    constants = (float(drop) - least_envelope(problem, theta), problem.g2, problem.l_star)
    ball = onto_ball(problem.radius)

    def row(steps: int) -> dict[str, object]:
        _, z = _draw_samples(problem, steps, runs, seed)

        def gradient(w: np.ndarray, t: int) -> np.ndarray:
            return hard_gradient(*problem.at(w, z[t]), theta)

        alpha = subgradient_step(steps, *constants)
        path = simulate(lambda w, g: ball(w - alpha * g), gradient, start, runs, steps)
        slopes = envelope(problem, _subsample(path, count), theta)[1]
        bounds = subgradient_bounds(steps, *constants)
        row = _row(np.square(slopes).sum(-1), bounds, path, problem.radius)
        return {**row, "q": bounds["corrected"] / 4}

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

    `original` is the average of ‖∇S(w_t)‖ at the same iterates, `clipped` the share of the gradients
    that γ under `rule` shortens. S has ρ of SoftAD or |x| of iFlood, as the problem's `kind` says.
    """

    def mean(w: np.ndarray) -> np.ndarray:
        return problem.value(w, theta)

    v = problem.moment(theta)
    constants = (2 * problem.lipschitz / radius, 2 * v**0.5 / radius)

    def row(steps: int) -> dict[str, object]:
        rng, z = _draw_samples(problem, steps, runs, seed)
        u = directions(rng, (steps, runs, 2))
        clipped = np.empty(steps)
        gamma = zeroth_gamma(steps, 2, radius, problem.lipschitz, v, rule)

        def gradient(w: np.ndarray, t: int) -> np.ndarray:
            g = zeroth_gradient(lambda x: problem.value(x, theta, z[t]), w, u[t], radius, points)
            clipped[t] = (norms(g) > gamma).mean()
            return g

        method = NormClipMomentum(steps, constants[1], gamma)
        path = simulate(method.step, gradient, start, runs, steps)
        first, last = (smoothed_value(mean, path[i], radius) for i in (0, -1))
        bounds = momentum_bounds(steps, (first - last).max(), *constants, delta)
        iterates = _subsample(path, count)
        slopes = norms(smoothed_gradient(mean, iterates, radius))[..., 0]
        original = norms(problem.gradient(iterates, theta)).mean()
        row = _row(slopes, bounds, path, problem.radius - radius)
        return {**row, "original": original, "clipped": clipped.mean()}

    return pd.DataFrame(map(row, horizons))
