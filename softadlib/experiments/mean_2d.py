"""The mean of points on the plane by gradient descent: losses and updates, in float64."""

import numpy as np
import torch

from softadlib.experiments.pointwise import gradient_weights


def squared_distances(w: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return ℓ(w; z_i) = ‖w − z_i‖², (d,), (n, d) → (n,); the mean of the points minimises their mean."""
    return np.asarray(np.square(np.asarray(w) - points).sum(1))


def mean_updates(
    method: str,
    w: np.ndarray,
    points: np.ndarray,
    theta: float,
    step: float,
    sigma: float = 1.0,
    scale: str = "text",
) -> np.ndarray:
    """Return −α·(weight of z_i)·(w − z_i), (d,), (n, d) → (n, d); the update of w is their mean.

    Weights at ℓ_i = ‖w − z_i‖². w − z is half the gradient of that loss: the paper's arrows
    use it, so α = 0.75 there is 0.375 for the loss as stated. Holland & Nakatani (2024), Fig. 3.
    """
    losses = torch.as_tensor(squared_distances(w, points), dtype=torch.float64)
    weights = gradient_weights(method, losses, theta, sigma, scale).numpy()
    return np.asarray(-step * weights[:, None] * (np.asarray(w) - points))
