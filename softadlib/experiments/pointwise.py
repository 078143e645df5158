"""A method's objective on single losses: its value, and the weight it gives a sample's gradient."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from softadlib.methods import get_method


def objective_at(method: str, theta: float, sigma: float, scale: str) -> Callable[[Tensor], Tensor]:
    """Return the registered objective of losses (n,) → () at θ, with σ and scale where the method has them."""
    registered = get_method(method)
    given = {"sigma": sigma, "scale": scale}
    settings = {name: given[name] for name in given if name in registered.settings}
    return lambda losses: registered.objective(losses, theta, **settings)


def gradient_weights(
    method: str, losses: Tensor, theta: float, sigma: float = 1.0, scale: str = "text"
) -> Tensor:
    """Return n·∂objective/∂ℓ_i, (n,) → (n,): what a method multiplies each sample's gradient by.

    By automatic differentiation of the registered objective; positive descends, negative ascends.
    1 for ERM, sign(mean ℓ − θ) for Flooding, φ((ℓ−θ)/σ) for SoftAD under "text".
    """
    gradient: Tensor = torch.func.grad(objective_at(method, theta, sigma, scale))(losses)
    return len(losses) * gradient


def transform(
    method: str, losses: np.ndarray, theta: float, sigma: float = 1.0, scale: str = "code"
) -> tuple[np.ndarray, np.ndarray]:
    """Return value and gradient weight of batches of one sample each, (m,) → (m,), (m,), in float64."""
    batches = torch.as_tensor(losses, dtype=torch.float64)[:, None]
    values = torch.vmap(objective_at(method, theta, sigma, scale))(batches)
    weights = torch.vmap(lambda batch: gradient_weights(method, batch, theta, sigma, scale))(
        batches
    )
    return values.numpy(), weights[:, 0].numpy()


def smoothed_abs(x: np.ndarray, sigma: float, scale: str = "code") -> np.ndarray:
    """Return σ²ρ(x/σ) under "code", σρ(x/σ) under "text", elementwise: one sample's criterion at θ = 0.

    As σ → ∞ "code" tends to x²/2; as σ → 0 "text" tends to |x|.
    """
    return transform("softad", x, 0.0, sigma, scale)[0]
