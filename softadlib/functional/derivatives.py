"""Derivatives of the objectives in the losses, written out: n·∂/∂ℓ_i, in the shape of the losses.

Where the objective is a mean of f(ℓ) over samples this is f′(ℓ_i): what multiplies the gradient of each
sample, and what class probabilities are made of. All take the arguments of their objective.
"""

import torch
from torch import Tensor

from softadlib._validation import choose
from softadlib.functional.objectives import SCALES, checked_sigma, is_one, phi, power_of_miss
from softadlib.functional.reduction import Number, check_losses, in_float32


def softad_derivative(
    losses: Tensor, theta: Number, sigma: Number = 1.0, scale: str = "code", *, eta: float = 1.0
) -> Tensor:
    """∂softad/∂ℓ_i · n, same shape as `losses`: positive descends, negative ascends.

    σφ((ℓ−θ)/σ) under "code", φ((ℓ−θ)/σ) under "text"; θ and σ in nats, checked as in `softad`.
    `eta` is accepted to match softad's signature; it does not enter the gradient. Holland & Nakatani
    (2024), Sec. 3.

    >>> softad_derivative(torch.tensor([0.25, 1.0, 1.75]), 1.0)  # φ(0.75) = 0.6
    tensor([-0.6000,  0.0000,  0.6000])
    """
    choose("scale", scale, SCALES)
    losses = check_losses(losses, theta)
    if is_one(sigma):
        return phi(losses - theta)
    sigma = checked_sigma(losses, sigma)
    slope = phi((losses - theta) / sigma)
    return sigma * slope if scale == "code" else slope


def softad_width_derivative(losses: Tensor, sigma: Number, theta: float = 0.01) -> Tensor:
    """∂softad_width/∂ℓ_i · n = φ((ℓ_i − θ)/σ), same shape as `losses`.

    >>> softad_width_derivative(torch.tensor([0.25, 1.0, 1.75]), 1.0, 1.0)  # φ(0.75) = 0.6
    tensor([-0.6000,  0.0000,  0.6000])
    """
    return softad_derivative(losses, theta, sigma, "text")


def softad_logcosh_derivative(losses: Tensor, theta: Number) -> Tensor:
    """∂softad_logcosh/∂ℓ_i · n = tanh(ℓ_i − θ), same shape as `losses`. θ in nats.

    >>> softad_logcosh_derivative(torch.tensor([0.0, 1.0, 2.0]), 1.0)  # tanh 1
    tensor([-0.7616,  0.0000,  0.7616])
    """
    return (check_losses(losses, theta) - theta).tanh()


def softad_no_ascent_derivative(losses: Tensor, theta: Number) -> Tensor:
    """∂softad_no_ascent/∂ℓ_i · n = φ(max(ℓ_i − θ, 0)), same shape as `losses`. θ in nats.

    >>> softad_no_ascent_derivative(torch.tensor([0.25, 1.0, 1.75]), 1.0)  # φ(0.75) = 0.6
    tensor([0.0000, 0.0000, 0.6000])
    """
    return softad_derivative(losses, theta).relu()


def erm_derivative(losses: Tensor, hyperparameter: object = None) -> Tensor:
    """∂erm/∂ℓ_i · n = 1, same shape as `losses`. `hyperparameter` is ignored.

    >>> erm_derivative(torch.tensor([0.25, 1.75]))
    tensor([1., 1.])
    """
    return torch.ones_like(in_float32(losses))


def flooding_derivative(losses: Tensor, theta: Number) -> Tensor:
    """∂flooding/∂ℓ_i · n = sign(mean ℓ − θ), the same for all, same shape as `losses`. θ in nats.

    >>> flooding_derivative(torch.tensor([0.25, 0.75]), 1.0)
    tensor([-1., -1.])
    """
    return (in_float32(losses).mean() - theta).sign().expand_as(losses)


def iflood_derivative(losses: Tensor, theta: Number) -> Tensor:
    """∂iflood/∂ℓ_i · n = sign(ℓ_i − θ), same shape as `losses`. θ in nats.

    >>> iflood_derivative(torch.tensor([0.25, 1.0, 1.75]), 1.0)
    tensor([-1.,  0.,  1.])
    """
    return (in_float32(losses) - theta).sign()


def iflood_no_ascent_derivative(losses: Tensor, theta: Number) -> Tensor:
    """∂iflood_no_ascent/∂ℓ_i · n: 1 where ℓ_i > θ, else 0, same shape as `losses`. θ in nats.

    >>> iflood_no_ascent_derivative(torch.tensor([0.25, 1.0, 1.75]), 1.0)
    tensor([0., 0., 1.])
    """
    return iflood_derivative(losses, theta).relu()


def focal_derivative(losses: Tensor, gamma: Number) -> Tensor:
    """∂focal/∂ℓ_i · n = (1 − p)^γ·(1 + γpℓ/(1 − p)), p = e^−ℓ, same shape as `losses`.

    >>> focal_derivative(torch.tensor([0.0, 0.693147]), 2.0)  # at ln 2: ¼·(1 + 2·ln 2)
    tensor([0.0000, 0.5966])
    """
    losses = in_float32(losses)
    miss, power = power_of_miss(losses, gamma)
    return power * (1 + gamma * (losses * torch.exp(-losses) / miss))
