"""Gradient descent on the quadratic f(x) = x²/2 with transformed gradients, in float64."""

import numpy as np

from softadlib.experiments.pointwise import transform


def quadratic(x: np.ndarray) -> np.ndarray:
    """Return f(x) = x²/2, elementwise; f′(x) = x."""
    return np.asarray(np.square(x) / 2)


def transformed_gradient(method: str, x: np.ndarray, theta: float, sigma: float) -> np.ndarray:
    """Return φ((f(x)−θ)/σ)·f′(x) for f(x) = x²/2, elementwise, (m,) → (m,).

    φ is 1 for "erm", sign for "flooding", ρ′ for "softad". Holland & Nakatani (2024), Fig. 1.
    """
    return np.asarray(transform(method, quadratic(x), theta, sigma, "text")[1] * x)


def descend(
    method: str, start: float, theta: float, sigma: float, step: float, steps: int
) -> np.ndarray:
    """Step x ← x − α·φ((f(x)−θ)/σ)·f′(x) for f(x) = x²/2, `steps` times: (steps + 1,), `start` first."""
    path = [np.array([start], dtype=float)]
    for _ in range(steps):
        path.append(path[-1] - step * transformed_gradient(method, path[-1], theta, sigma))
    return np.concatenate(path)
