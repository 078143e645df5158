"""Figures 1 to 3: weights of single samples, a quadratic on the line, the mean of points on the plane.

Everything is in float64. The default `scale` is that of the paper's text, which its figures use.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from softadlib.methods import get_method


def gradient_weights(
    method: str, losses: np.ndarray, theta: float, sigma: float = 1.0, scale: str = "text"
) -> np.ndarray:
    """Return n·∂objective/∂ℓ_i, what a method multiplies each sample's gradient by, of the shape of `losses`.

    `losses` are one batch (n,) or m batches (m, n). By automatic differentiation of the registered
    objective; positive descends, negative ascends. 1 for ERM, sign(mean ℓ − θ) for Flooding, sign(ℓ_i − θ) for iFlood,
    φ((ℓ_i − θ)/σ) for SoftAD under "text" and σ times that under "code".

    >>> gradient_weights("iflood", np.array([0.0, 1.0]), theta=0.5).tolist()
    [-1.0, 1.0]
    """
    registered, given = get_method(method), {"sigma": sigma, "scale": scale}
    settings = {name: given[name] for name in given if name in registered.settings}
    slope = torch.func.grad(lambda batch: registered.objective(batch, theta, **settings))
    batches = torch.as_tensor(losses, dtype=torch.float64)
    gradient = torch.vmap(slope)(batches) if batches.ndim > 1 else slope(batches)
    return np.asarray(batches.shape[-1] * gradient)


def weight_curve(
    method: str, losses: np.ndarray, theta: float, sigma: float = 1.0, scale: str = "text"
) -> np.ndarray:
    """Return the gradient weight of every loss as a batch of its own, (m,) → (m,)."""
    return gradient_weights(method, np.reshape(losses, (-1, 1)), theta, sigma, scale)[:, 0]


def quadratic(x: np.ndarray) -> np.ndarray:
    """Return f(x) = x²/2, elementwise; f′(x) = x."""
    return np.asarray(np.square(x) / 2)


def transformed_gradient(method: str, x: np.ndarray, theta: float, sigma: float) -> np.ndarray:
    """Return φ((f(x)−θ)/σ)·f′(x) for f(x) = x²/2, elementwise, (m,) → (m,).

    φ is 1 for "erm", sign for "flooding", ρ′ for "softad". Holland & Nakatani (2024), Fig. 1.
    """
    return np.asarray(weight_curve(method, quadratic(x), theta, sigma) * x)


def quadratic_panels(
    x: np.ndarray,
    theta: float,
    sigma: float,
    thetas: Iterable[float],
    sigmas: Iterable[float],
) -> pd.DataFrame:
    """Return the curves of the paper's Figure 1, a row per point: panel, method, value, x, y.

    Args:
        x: points, (m,).
        theta: fixed where σ changes.
        sigma: fixed where θ changes.
        thetas: of panel "theta".
        sigmas: of panel "sigma".

    Panel "f" is f(x) = x²/2. The panels "sigma" and "theta" hold φ((f(x)−θ)/σ)·f′(x) of Flooding
    (φ = sign, dotted in the paper) and of SoftAD (φ = ρ′), at each `value` of what changes; the sign
    does not depend on σ. Both have f′(x) = x as the curve of ERM. `value` is NaN where nothing changes.
    """
    curves = [("f", "erm", np.nan, quadratic(x))]
    for panel, values in (("sigma", sigmas), ("theta", thetas)):
        curves.append((panel, "erm", np.nan, np.asarray(x, dtype=float)))
        for value in values:
            at = (theta, value) if panel == "sigma" else (value, sigma)
            for method in ("flooding", "softad"):
                curves.append((panel, method, value, transformed_gradient(method, x, *at)))
    frames = [
        pd.DataFrame({"panel": panel, "method": method, "value": value, "x": x, "y": y})
        for panel, method, value, y in curves
    ]
    return pd.concat(frames, ignore_index=True)


def descend(
    method: str, start: float, theta: float, sigma: float, step: float, steps: int
) -> np.ndarray:
    """Step x ← x − α·φ((f(x)−θ)/σ)·f′(x) for f(x) = x²/2, `steps` times: (steps + 1,), `start` first."""
    path = [np.array([start], dtype=float)]
    for _ in range(steps):
        path.append(path[-1] - step * transformed_gradient(method, path[-1], theta, sigma))
    return np.concatenate(path)


def squared_distances(w: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return ℓ(w; z_i) = ‖w − z_i‖², (d,), (n, d) → (n,); the mean of the points minimises their mean."""
    return np.asarray(np.square(np.asarray(w) - points).sum(1))


def mean_updates(
    method: str, w: np.ndarray, points: np.ndarray, theta: float, step: float, sigma: float = 1.0
) -> np.ndarray:
    """Return −α·(weight of z_i)·(w − z_i), (d,), (n, d) → (n, d); the update of w is their mean.

    Weights at ℓ_i = ‖w − z_i‖². w − z is half the gradient of that loss: the paper's arrows
    use it, so α = 0.75 there is 0.375 for the loss as stated. Holland & Nakatani (2024), Fig. 3.
    """
    weights = gradient_weights(method, squared_distances(w, points), theta, sigma)
    return np.asarray(-step * weights[:, None] * (np.asarray(w) - points))


@dataclass(frozen=True)
class PlaneProblem:
    """What Figure 3's left panel shows: points, candidates, the minimiser of the mean loss, and θ."""

    points: np.ndarray
    """(n, 2)."""
    candidates: dict[str, np.ndarray]
    """Colour → a candidate (2,)."""
    minimiser: np.ndarray
    """(2,), the mean of the points."""
    theta: float

    def risk(self, w: np.ndarray) -> float:
        """Return the mean loss at w (2,)."""
        return float(squared_distances(w, self.points).mean())


def plane_problem(seed: int, factor: float = 1.5) -> PlaneProblem:
    """Draw Figure 3's eight points of N(0, 8·I), with θ = `factor` times the least mean loss.

    Its seed is 22993514079364. Holland & Nakatani (2024), Fig. 3.
    """
    points = np.random.default_rng(seed).multivariate_normal(np.zeros(2), 8 * np.eye(2), size=8)
    candidates = {"red": np.array([-4.0, 4.0]), "green": np.array([1.0, 1.0])}
    minimiser = points.mean(axis=0)
    least = squared_distances(minimiser, points).mean()
    return PlaneProblem(points, candidates, minimiser, float(factor * least))
