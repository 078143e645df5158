"""How near to stationary SoftAD, iFlood and a derivative-free SoftAD come, against the paper's bounds.

Propositions 3, 4 and 6 and App. B.5 of Holland & Nakatani (2024): their algorithms, their bounds as stated
and as corrected, problems whose every constant is known, and runs measured against the bounds. Points
are float64 arrays (…, d); all leading axes are independent runs. Nothing is differentiated automatically.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from softadlib._validation import choose, real, whole
from softadlib.analysis.statistics import mean_interval
from softadlib.functional import SCALES, softad_weights

Oracle = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""v (…, d) → losses (…, n) whose Hessian is the identity, and their gradients (…, n, d)."""
Function = Callable[[np.ndarray], np.ndarray]
"""Points (…, d) → values (…,)."""
GAMMAS = ("corrected", "paper")


def norms(v: np.ndarray) -> np.ndarray:
    """Return the L2 norm along the last axis, (…, d) → (…, 1)."""
    return np.asarray(np.linalg.norm(v, axis=-1, keepdims=True))


def soft_gradient(losses: np.ndarray, gradients: np.ndarray, theta: float) -> np.ndarray:
    """Return φ(ℓ − θ)·∇ℓ, (…,), (…, d) → (…, d): SoftAD's G_t at σ = 1."""
    x = losses - theta
    return np.asarray((x / np.hypot(1, x))[..., None] * gradients)


def hard_gradient(losses: np.ndarray, gradients: np.ndarray, theta: float) -> np.ndarray:
    """Return sign(ℓ − θ)·∇ℓ, (…,), (…, d) → (…, d), sign(0) = 0: iFlood's G_t."""
    return np.asarray(np.sign(losses - theta)[..., None] * gradients)


def l_ad(g2: float, l_loss: float, sigma: float = 1.0, scale: str = "code") -> float:
    """Return L_AD = L_φ·E sup‖∇ℓ‖² + B_φ·L_ℓ: a Lipschitz constant of SoftAD's mean gradient on a convex set.

    (L_φ, B_φ) is (1, σ) under "code", (1/σ, 1) under "text"; eq. (smoothness_factor) is σ = 1.
    `g2` = E sup‖∇ℓ‖², `l_loss` = L_ℓ. Raises ValueError for σ ≤ 0 or an unknown scale.
    """
    choose("scale", scale, SCALES)
    sigma = real("sigma", sigma, above=0)
    return g2 + sigma * l_loss if scale == "code" else g2 / sigma + l_loss


def confidence(steps: int, delta: float) -> float:
    """Return C_δ = 10·ln(3T/δ) + 4·√ln(3T/δ) + 1 for T = `steps` and probability 1 − `delta`."""
    log = math.log(3 * steps / delta)
    return 10 * log + 4 * math.sqrt(log) + 1


def momentum_bounds(
    steps: int, drop: float, smoothness: float, moment: float, delta: float
) -> dict[str, float]:
    """Return bounds on T⁻¹Σ‖∇S(w_t)‖ with probability 1 − δ: "stated" in Prop. 3, "corrected" by its proof.

    drop = S(w_1) − S(w_{T+1}), `smoothness` = L of S, `moment` = G with E‖G_t‖² ≤ G². Corrected is
    eq. (20) as it stands: its coefficient of L is 2b + 1/(2√T), which is not 3/2. Prop. 6 is the
    same with L = d·L/r and G = d·√V/r.
    """
    b, alpha, c = 1 - steps**-0.5, steps**-0.75, confidence(steps, delta)
    stated = steps**-0.25 * (drop + 1.5 * smoothness + 2 * moment * (1 + c))
    terms = (
        drop / (steps * alpha),
        alpha * smoothness / 2,
        2 * b * moment / ((1 - b) * steps),
        2 * b * alpha * smoothness / (1 - b),
        2 * math.sqrt(1 - b) * moment * c,
    )
    return {"stated": stated, "corrected": sum(terms)}


def subgradient_bounds(steps: int, drop: float, g2: float, l_star: float) -> dict[str, float]:
    """Return bounds on T⁻¹ΣE‖∇F̄(w_t)‖²: √2·q "stated" in Prop. 4, 4·q "corrected", q = √(L*·G²·Δ/T).

    `drop` = Δ ≥ F̄(w_1) − inf F̄ at β = 1/(2L*), `l_star` = L* of every ℓ(·; z). 4 is what the
    descent inequality of the proof, 2(Δ + L*G²Tα²)/(Tα), gives at the proposition's own step α.
    """
    q = math.sqrt(l_star * g2 * drop / steps)
    return {"stated": math.sqrt(2) * q, "corrected": 4 * q}


class NormClipMomentum:
    """M ← bM + (1−b)Ḡ, w ← w − αM/‖M‖, where Ḡ = G·min(1, γ/‖G‖) and M₀ = 0: Prop. 3.

    b = 1 − T^(−1/2), α = T^(−3/4), and γ = G·T^(1/4) unless given, for T = `steps` and G = `moment`.
    Every step has length α, but for M = 0, where there is none. Raises ValueError for T < 1.
    """

    def __init__(self, steps: int, moment: float, gamma: float | None = None):
        whole("steps", steps, 1)
        self.b, self.alpha = 1 - steps**-0.5, steps**-0.75
        self.gamma = moment * steps**0.25 if gamma is None else gamma
        self.momentum: np.ndarray = np.zeros(())

    def clip(self, gradient: np.ndarray) -> np.ndarray:
        """Return Ḡ; a zero gradient is left as it is."""
        size = norms(gradient)
        return gradient * np.minimum(1, self.gamma / np.where(size > 0, size, self.gamma))

    def step(self, w: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the next point (…, d)."""
        self.momentum = self.b * self.momentum + (1 - self.b) * self.clip(gradient)
        size = norms(self.momentum)
        return np.asarray(w - self.alpha * self.momentum / np.where(size > 0, size, 1))


def subgradient_step(steps: int, drop: float, g2: float, l_star: float) -> float:
    """Return Prop. 4's step size α = √(Δ/(T·L*·G²)) of w ← Π[w − αG], Π the projection onto a convex set."""
    return math.sqrt(drop / (steps * l_star * g2))


def onto_ball(radius: float) -> Callable[[np.ndarray], np.ndarray]:
    """Project to ‖w‖ ≤ radius, (…, d) → (…, d)."""
    return lambda w: w * np.minimum(1, radius / np.maximum(norms(w), radius))


def directions(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw uniformly from the unit sphere, `shape` = (…, d)."""
    normal = rng.standard_normal(shape)
    return np.asarray(normal / norms(normal))


def zeroth_gradient(
    f: Function, w: np.ndarray, direction: np.ndarray, radius: float, points: int = 1
) -> np.ndarray:
    """Return (d/r)·f(w + rU)·U at w (…, d) along unit vectors U (…, d): Prop. 6's gradient from values alone.

    Unbiased for the gradient of f averaged over the ball of radius r (Flaxman et al. 2004).
    `points` = 2 takes (d/2r)(f(w + rU) − f(w − rU))U, of the same mean and far smaller variance.
    """
    value = f(w + radius * direction)
    if points == 2:
        value = (value - f(w - radius * direction)) / 2
    return np.asarray(w.shape[-1] / radius * value[..., None] * direction)


def zeroth_gamma(
    steps: int, d: int, radius: float, lipschitz: float, v: float, rule: str = "corrected"
) -> float:
    """Return the clipping radius T^(1/4)·(d/r)√V, or under "paper" T^(1/4)·√(dL/r).

    The paper puts a smoothness constant where Prop. 3 has a second moment: its γ is so small
    that it clips every gradient to one length, and their mean then says nothing of f.
    """
    choose("gamma", rule, GAMMAS)
    ratio = d / radius
    return float(steps**0.25 * math.sqrt(ratio * lipschitz if rule == "paper" else ratio**2 * v))


def moreau_prox(
    oracle: Oracle, w: np.ndarray, theta: float, beta: float, l_star: float, tol: float = 1e-4
) -> tuple[np.ndarray, np.ndarray]:
    """Return argmin_v mean|ℓ(v) − θ| + ‖v − w‖²/(2β), (…, d) → (…, d), each with a bound ≤ `tol` on its error.

    Newton's method on √((ℓ−θ)² + ε²), ε falling. With u = (ℓ−θ)/√(…) in [−1, 1] the minimum over v
    of mean u(ℓ(v)−θ) + ‖v−w‖²/(2β) lies below the sought one, so the duality gap bounds the error;
    the problem is (1/β − L*)-strongly convex. ∇F̄(w) = (w − v)/β. Raises ValueError unless
    β < 1/L*, ArithmeticError where rounding keeps the bound above `tol`.
    """
    mu = 1 / beta - l_star
    if not mu > 0:
        raise ValueError(f"beta must be below 1/L* = {1 / l_star:g}, got {beta:g}")
    flat = np.reshape(np.asarray(w, dtype=float), (-1, np.shape(w)[-1]))
    v, error, epsilon = flat.copy(), np.full(len(flat), np.inf), 1.0
    while (todo := np.flatnonzero(error > tol)).size:
        if epsilon < 1e-13:
            raise ArithmeticError(
                f"the prox is known to {error.max():.1e}, not to {tol:g}; give a larger tol"
            )
        minimisers, bound = _newton(oracle, v[todo], flat[todo], theta, beta, mu, epsilon, tol)
        better = bound < error[todo]  # at the smallest ε rounding takes over
        v[todo[better]], error[todo[better]] = minimisers[better], bound[better]
        epsilon /= 10
    return v.reshape(np.shape(w)), error.reshape(np.shape(w)[:-1])


def _newton(
    oracle: Oracle,
    v: np.ndarray,
    w: np.ndarray,
    theta: float,
    beta: float,
    mu: float,
    epsilon: float,
    tol: float,
    limit: int = 100,
) -> tuple[np.ndarray, np.ndarray]:
    """Return minimisers (m, d) of the ε-smoothed problem and how far they may be from the sharp one's (m,)."""
    eye = np.eye(w.shape[-1])
    value = _smoothed(oracle(v)[0] - theta, v - w, beta, epsilon)
    for _ in range(limit):
        losses, gradients = oracle(v)
        r = losses - theta
        size = np.hypot(r, epsilon)
        u = (r / size)[..., None]
        slope = (u * gradients).mean(-2) + (v - w) / beta
        gap = (np.abs(r) - r * u[..., 0]).mean(-1) + np.square(slope).sum(-1) / (2 * mu)
        if (np.square(slope).sum(-1) <= (0.1 * mu * tol) ** 2).all():
            break
        sharp = (epsilon / size) ** 2 / size
        outer = gradients[..., :, None] * gradients[..., None, :]
        bend = (sharp[..., None, None] * outer + u[..., None] * eye).mean(-3) + eye / beta
        move = -np.linalg.solve(bend, slope[..., None])[..., 0]
        gain, length = (move * slope).sum(-1), np.ones(len(v))
        for _ in range(40):  # halve until the value falls as it should
            tried = v + length[:, None] * move
            after = _smoothed(oracle(tried)[0] - theta, tried - w, beta, epsilon)
            short = after > value + 1e-4 * length * gain + 1e-15
            if not short.any():
                break
            length[short] /= 2
        v, value = tried, after
    return v, np.sqrt(2 * gap / mu)


def _smoothed(r: np.ndarray, moved: np.ndarray, beta: float, epsilon: float) -> np.ndarray:
    return np.asarray(np.hypot(r, epsilon).mean(-1) + np.square(moved).sum(-1) / (2 * beta))


@dataclass(frozen=True)
class SquaredDistances:
    """ℓ(w; z_i) = ½‖w − z_i‖² on ‖w‖ ≤ `radius`, for `points` (n, d), each with weight 1/n.

    L_ℓ = L* = 1 and sup‖∇ℓ‖ = ‖z_i‖ + radius, so all constants are exact; the objectives built on
    it are neither convex nor, under the sign, smooth.
    """

    points: np.ndarray
    radius: float
    l_star = 1.0

    @property
    def g2(self) -> float:
        """G² = E sup_w‖∇ℓ(w; Z)‖²."""
        return float(np.square(norms(self.points) + self.radius).mean())

    def at(self, w: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ℓ (…,) and ∇ℓ (…, d) of one point each."""
        return np.square(w - points).sum(-1) / 2, w - points

    def __call__(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return losses (…, n) and gradients (…, n, d) of all points."""
        return self.at(w[..., None, :], self.points)


@dataclass(frozen=True)
class Distances:
    """ℓ(w; z_i) = ‖w − z_i‖, 1-Lipschitz and not differentiable at z_i; otherwise as above."""

    points: np.ndarray
    radius: float
    lipschitz = 1.0

    def softad(self, w: np.ndarray, theta: float, points: np.ndarray | None = None) -> np.ndarray:
        """Return θ + ρ(ℓ − θ), of one point each (…, d) → (…,), or their mean: S."""
        if points is None:
            return np.asarray(self.softad(w[..., None, :], theta, self.points).mean(-1))
        x = norms(w - points)[..., 0] - theta
        return np.asarray(theta + x * x / (1 + np.hypot(1, x)))

    def softad_gradient(self, w: np.ndarray, theta: float) -> np.ndarray:
        """Return ∇S(w) = mean φ(ℓ − θ)·(w − z)/‖w − z‖, (…, d) → (…, d), 0 of a point at w itself."""
        way = w[..., None, :] - self.points
        losses = norms(way)
        directions = way / np.where(losses > 0, losses, 1)
        return np.asarray(soft_gradient(losses[..., 0], directions, theta).mean(-2))

    def moment(self, theta: float) -> float:
        """Return V ≥ E(θ + ρ(ℓ − θ))² on the ball, point by point at the ends of ℓ's range."""
        farthest = norms(self.points)[:, 0] + self.radius - theta
        largest = np.maximum(np.hypot(1, farthest), np.hypot(1, theta)) - 1
        return float(np.square(theta + largest).mean())


def cloud(n: int, d: int, seed: int, spread: float = 0.5) -> np.ndarray:
    """Draw n points of N(0, spread²·I) in d dimensions."""
    return spread * np.random.default_rng(seed).standard_normal((n, d))


def softad_value(problem: SquaredDistances, w: np.ndarray, theta: float) -> np.ndarray:
    """Return S(w) = θ + mean ρ(ℓ − θ), (…, d) → (…,)."""
    x = problem(w)[0] - theta
    return np.asarray(theta + (x * x / (1 + np.hypot(1, x))).mean(-1))


def envelope(
    problem: SquaredDistances, w: np.ndarray, theta: float, tol: float = 1e-4
) -> tuple[np.ndarray, np.ndarray]:
    """Return F̄ (…,) and ∇F̄ (…, d) of iFlood's objective at β = 1/(2L*), the prox solved to `tol`.

    Raises ValueError where the prox leaves the ball: the infimum over it would be another.
    """
    beta = 1 / (2 * problem.l_star)
    v, _ = moreau_prox(problem, w, theta, beta, problem.l_star, tol)
    if (norms(v) > problem.radius + tol).any():
        raise ValueError("the prox lies outside the ball; enlarge the ball")
    value = theta + np.abs(problem(v)[0] - theta).mean(-1) + np.square(v - w).sum(-1) / (2 * beta)
    return value, (w - v) / beta


def least_envelope(problem: SquaredDistances, theta: float, grid: int = 41) -> float:
    """Return inf F̄ = inf θ + E|ℓ − θ|: the minimum on a grid over the ball's square, then prox steps."""
    d = problem.points.shape[1]
    axis = np.linspace(-problem.radius, problem.radius, grid) / d**0.5
    w = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), -1).reshape(-1, d)
    w = w[np.argsort(envelope(problem, w, theta)[0])[:10]]
    for _ in range(30):
        w = w - envelope(problem, w, theta)[1] / (2 * problem.l_star)
    return float(envelope(problem, w, theta)[0].min())


def hardest_iflood(theta: float, start: float = 0.5) -> tuple[SquaredDistances, np.ndarray]:
    """Return one point on the line, ℓ = w²/2 on [−s, s], s = √(2θ), from `start`·s: Prop. 4's constant fails.

    From s/2, ‖∇F̄‖² = 4L*Δ = G², the most that either allows: at T = 1 the left side is 2q. From
    near 0 the left side tends to (8 ln 2 − 4)q ≈ 1.545q as T grows, above the stated √2·q.
    """
    s = (2 * theta) ** 0.5
    return SquaredDistances(np.zeros((1, 1)), s), np.array([start * s])


def smoothed_gradient(f: Function, w: np.ndarray, radius: float, nodes: int = 128) -> np.ndarray:
    """Return (d/r)·E f(w + rU)U on the circle (d = 2) by `nodes` equal angles, (…, 2) → (…, 2)."""
    angle = 2 * np.pi * (np.arange(nodes) + 0.5) / nodes
    u = np.stack([np.cos(angle), np.sin(angle)], -1)
    values = f(w[..., None, :] + radius * u)
    return np.asarray(2 / radius * (values[..., None] * u).mean(-2))


def smoothed_value(f: Function, w: np.ndarray, radius: float, nodes: int = 32) -> np.ndarray:
    """Return E f(w + rV), V uniform on the disc, by `nodes` rings of equal area × angles, (…, 2) → (…,)."""
    rings = np.sqrt((np.arange(nodes) + 0.5) / nodes)
    angle = 2 * np.pi * (np.arange(nodes) + 0.5) / nodes
    v = rings[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    return np.asarray(f(w[..., None, None, :] + radius * v).mean((-1, -2)))


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
    return np.asarray(path[np.unique(np.linspace(0, last, count).round().astype(int))])


def _row(
    slopes: np.ndarray, bounds: dict[str, float], path: np.ndarray, radius: float
) -> dict[str, object]:
    """Put slopes (iterates, runs) beside their bounds; `inside`: whether every iterate is on the ball.

    `mean`, its 95 % interval (`low`, `high`) and `worst` are those of the runs' averages, `last` is the
    mean of the runs at w_T alone.
    """
    inside, averages = bool((norms(path) <= radius + 1e-12).all()), slopes.mean(0)
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
    g, smoothness = problem.g2**0.5, l_ad(problem.g2, problem.l_star)

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
    that γ under `rule` shortens.
    """

    def mean(w: np.ndarray) -> np.ndarray:
        return problem.softad(w, theta)

    v = problem.moment(theta)
    constants = (2 * problem.lipschitz / radius, 2 * v**0.5 / radius)

    def row(steps: int) -> dict[str, object]:
        rng, z = _draw_samples(problem, steps, runs, seed)
        u, clipped = directions(rng, (steps, runs, 2)), np.empty(steps)
        gamma = zeroth_gamma(steps, 2, radius, problem.lipschitz, v, rule)

        def gradient(w: np.ndarray, t: int) -> np.ndarray:
            g = zeroth_gradient(lambda x: problem.softad(x, theta, z[t]), w, u[t], radius, points)
            clipped[t] = (norms(g) > gamma).mean()
            return g

        method = NormClipMomentum(steps, constants[1], gamma)
        path = simulate(method.step, gradient, start, runs, steps)
        first, last = (smoothed_value(mean, path[i], radius) for i in (0, -1))
        bounds = momentum_bounds(steps, (first - last).max(), *constants, delta)
        iterates = _subsample(path, count)
        slopes = norms(smoothed_gradient(mean, iterates, radius))[..., 0]
        original = norms(problem.softad_gradient(iterates, theta)).mean()
        row = _row(slopes, bounds, path, problem.radius - radius)
        return {**row, "original": original, "clipped": clipped.mean()}

    return pd.DataFrame(map(row, horizons))


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
    losses, gradients = problem(w)
    if kind == "softad":
        weights = softad_weights(torch.as_tensor(losses), theta, sigma, scale).numpy()
    else:
        level = losses if kind == "iflood" else losses.mean(-1, keepdims=True)
        weights = np.sign(level - theta)
    return np.asarray((weights[..., None] * gradients).mean(-2))


def pairs(
    problem: SquaredDistances, theta: float, distance: float, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw points `distance` apart, (m, d) each: `count` anywhere on the ball, and as many astride.

    Astride of the sphere ℓ_i = θ for some i, and of the sphere mean ℓ = θ, where there is one;
    pairs that leave the ball are left out.
    """
    d, centre = problem.points.shape[1], problem.points.mean(0)
    u = directions(rng, (3, count, d))
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
