"""Problems whose every constant is known, and the objectives of Sec. 3.2 on them, exactly averaged."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from softadlib.experiments.theory import algorithms
from softadlib.experiments.theory.algorithms import norms

Function = Callable[[np.ndarray], np.ndarray]
"""Points (…, d) → values (…,)."""


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

    def __call__(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return losses (…, n), gradients (…, n, d) and Hessians (…, n, d, d) of all points."""
        losses, gradients = self.at(w[..., None, :], self.points)
        return (
            losses,
            gradients,
            np.broadcast_to(np.eye(w.shape[-1]), (*gradients.shape, w.shape[-1])),
        )


@dataclass(frozen=True)
class Distances:
    """ℓ(w; z_i) = ‖w − z_i‖, 1-Lipschitz and not differentiable at z_i; otherwise as above."""

    points: np.ndarray
    radius: float
    lipschitz = 1.0

    def softad(self, w: np.ndarray, theta: float, points: np.ndarray | None = None) -> np.ndarray:
        """Return θ + ρ(ℓ − θ), of one point each (…, d) → (…,), or their mean: S."""
        if points is None:
            values: np.ndarray = self.softad(w[..., None, :], theta, self.points).mean(-1)
        else:
            x = norms(w - points)[..., 0] - theta
            values = theta + x * x / (1 + np.hypot(1, x))
        return values

    def moment(self, theta: float) -> float:
        """Return V ≥ E(θ + ρ(ℓ − θ))² on the ball, point by point at the ends of ℓ's range."""
        farthest = norms(self.points)[:, 0] + self.radius - theta
        largest = np.maximum(np.hypot(1, farthest), np.hypot(1, theta)) - 1
        return float(np.square(theta + largest).mean())


def cloud(n: int, d: int, seed: int, spread: float = 0.5) -> np.ndarray:
    """Draw n points of N(0, spread²·I) in d dimensions."""
    return spread * np.random.default_rng(seed).standard_normal((n, d))


def softad_gradient(problem: SquaredDistances, w: np.ndarray, theta: float) -> np.ndarray:
    """Return ∇S(w) = mean φ(ℓ − θ)·∇ℓ over all points, (…, d) → (…, d)."""
    losses, gradients, _ = problem(w)
    gradient: np.ndarray = algorithms.soft_gradient(losses, gradients, theta).mean(-2)
    return gradient


def softad_value(problem: SquaredDistances, w: np.ndarray, theta: float) -> np.ndarray:
    """Return S(w) = θ + mean ρ(ℓ − θ), (…, d) → (…,)."""
    x = problem(w)[0] - theta
    value: np.ndarray = theta + (x * x / (1 + np.hypot(1, x))).mean(-1)
    return value


def envelope(
    problem: SquaredDistances, w: np.ndarray, theta: float, tol: float = 1e-4
) -> tuple[np.ndarray, np.ndarray]:
    """Return F̄ (…,) and ∇F̄ (…, d) of iFlood's objective at β = 1/(2L*), the prox solved to `tol`.

    Raises ValueError where the prox leaves the ball: the infimum over it would be another.
    """
    beta = 1 / (2 * problem.l_star)
    v, _ = algorithms.moreau_prox(problem, w, theta, beta, problem.l_star, tol)
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
    gradient: np.ndarray = 2 / radius * (values[..., None] * u).mean(-2)
    return gradient


def smoothed_value(f: Function, w: np.ndarray, radius: float, nodes: int = 32) -> np.ndarray:
    """Return E f(w + rV), V uniform on the disc, by `nodes` rings of equal area × angles, (…, 2) → (…,)."""
    rings = np.sqrt((np.arange(nodes) + 0.5) / nodes)
    angle = 2 * np.pi * (np.arange(nodes) + 0.5) / nodes
    v = rings[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    value: np.ndarray = f(w[..., None, None, :] + radius * v).mean((-1, -2))
    return value
