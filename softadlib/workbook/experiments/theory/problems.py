"""Problems whose every constant is known: points with a loss that is the distance to them, or its square."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from softadlib.functional import softad_derivative

Oracle = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""v (…, d) → losses (…, n) whose Hessian is the identity, and their gradients (…, n, d)."""
Function = Callable[[np.ndarray], np.ndarray]
"""Points (…, d) → values (…,)."""


def norms(v: np.ndarray) -> np.ndarray:
    """Return the L2 norm along the last axis, (…, d) → (…, 1)."""
    return np.asarray(np.sqrt(np.einsum("...i,...i", v, v))[..., None])


def rho(x: np.ndarray) -> np.ndarray:
    """Return ρ(x) = √(1+x²) − 1 without cancellation near 0, elementwise: SoftAD's deviation."""
    return np.asarray(x * x / (1 + np.sqrt(1 + x * x)))


def phi(x: np.ndarray) -> np.ndarray:
    """Return φ(x) = ρ′(x) = x/√(1+x²), elementwise."""
    return np.asarray(x / np.sqrt(1 + x * x))


DEVIATIONS: dict[str, Function] = {"softad": rho, "iflood": np.abs}
"""ρ of Prop. 6: a deviation from the threshold that is 1-Lipschitz."""
SLOPES: dict[str, Function] = {"softad": phi, "iflood": np.sign}
"""ρ′ of either."""


def soft_gradient(losses: np.ndarray, gradients: np.ndarray, theta: float) -> np.ndarray:
    """Return φ(ℓ − θ)·∇ℓ, (…,), (…, d) → (…, d): SoftAD's G_t at σ = 1."""
    return np.asarray(phi(losses - theta)[..., None] * gradients)


def hard_gradient(losses: np.ndarray, gradients: np.ndarray, theta: float) -> np.ndarray:
    """Return sign(ℓ − θ)·∇ℓ, (…,), (…, d) → (…, d), sign(0) = 0: iFlood's G_t."""
    return np.asarray(np.sign(losses - theta)[..., None] * gradients)


def cloud(n: int, d: int, seed: int, spread: float = 0.5) -> np.ndarray:
    """Draw n points of N(0, spread²·I) in d dimensions."""
    return spread * np.random.default_rng(seed).standard_normal((n, d))


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
        way = w - points
        return np.einsum("...i,...i", way, way) / 2, way

    def __call__(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return losses (…, n) and gradients (…, n, d) of all points."""
        return self.at(w[..., None, :], self.points)


@dataclass(frozen=True)
class Distances:
    """ℓ(w; z_i) = ‖w − z_i‖ on ‖w‖ ≤ `radius`, 1-Lipschitz and not differentiable at z_i.

    `kind` chooses the deviation of the objective θ + E ρ(ℓ − θ): ρ of "softad", or |x| of "iflood".
    """

    points: np.ndarray
    radius: float
    kind: str = "softad"
    lipschitz = 1.0

    def value(self, w: np.ndarray, theta: float, points: np.ndarray | None = None) -> np.ndarray:
        """Return θ + ρ(ℓ − θ), of one point each (…, d) → (…,), or their mean: S."""
        if points is None:
            return np.asarray(self.value(w[..., None, :], theta, self.points).mean(-1))
        losses = norms(w - points)[..., 0]
        return np.asarray(theta + DEVIATIONS[self.kind](losses - theta))

    def gradient(self, w: np.ndarray, theta: float) -> np.ndarray:
        """Return ∇S(w) = mean ρ′(ℓ − θ)·(w − z)/‖w − z‖, (…, d) → (…, d), 0 of a point at w itself."""
        way = w[..., None, :] - self.points
        losses = norms(way)
        directions = way / np.where(losses > 0, losses, 1)
        return np.asarray((SLOPES[self.kind](losses - theta) * directions).mean(-2))

    def moment(self, theta: float) -> float:
        """Return V ≥ E(θ + ρ(ℓ − θ))² on the ball, point by point at the ends of ℓ's range."""
        farthest = norms(self.points)[:, 0] + self.radius
        deviation = DEVIATIONS[self.kind]
        at_the_ends = np.maximum(deviation(farthest - theta), deviation(np.asarray(-theta)))
        return float(np.square(theta + at_the_ends).mean())


def softad_value(problem: SquaredDistances, w: np.ndarray, theta: float) -> np.ndarray:
    """Return S(w) = θ + mean ρ(ℓ − θ), (…, d) → (…,)."""
    losses, _ = problem(w)
    return np.asarray(theta + rho(losses - theta).mean(-1))


def mean_gradient(
    problem: SquaredDistances,
    w: np.ndarray,
    theta: float,
    kind: str,
    sigma: float = 1.0,
    scale: str = "code",
) -> np.ndarray:
    """Return mean (weight of ℓ_i)·∇ℓ_i, (…, d) → (…, d): the direction of a full batch.

    The weight is sign(ℓ_i − θ) for "iflood", sign(mean ℓ − θ) for "flooding", `softad_derivative`
    for "softad".
    """
    losses, gradients = problem(w)
    if kind == "softad":
        weights = softad_derivative(torch.as_tensor(losses), theta, sigma, scale).numpy()
    else:
        level = losses if kind == "iflood" else losses.mean(-1, keepdims=True)
        weights = np.sign(level - theta)
    return np.asarray((weights[..., None] * gradients).mean(-2))
