"""How much each sample's gradient weighs in an objective: its derivative in the losses, written out.

All are functions of the arguments of their objective and return n·∂/∂ℓ_i, the shape of `losses`; the
tests hold them against autograd. Training with a closed form and `criterion.sample_weights` use them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from softadlib._validation import choose
from softadlib.functional.objectives import (
    SCALES,
    checked_sigma,
    erm,
    flooding,
    focal,
    iflood,
    iflood_no_ascent,
    is_one,
    phi,
    power_of_miss,
    softad,
    softad_logcosh,
    softad_no_ascent,
    softad_width,
)
from softadlib.functional.reduction import Number, check_losses, in_float32


def softad_weights(
    losses: Tensor, theta: Number, sigma: Number = 1.0, scale: str = "code", *, eta: float = 1.0
) -> Tensor:
    """∂softad/∂ℓ_i · n: the weight of each sample's gradient, same shape as `losses`.

    η is taken as `softad` takes it, and is in no gradient.

    σφ((ℓ−θ)/σ) under "code", φ((ℓ−θ)/σ) under "text"; positive descends, negative ascends. θ and σ in
    nats, checked as in `softad`. Holland & Nakatani (2024), Sec. 3.

    >>> softad_weights(torch.tensor([0.25, 1.0, 1.75]), 1.0)  # φ(0.75) = 0.6
    tensor([-0.6000,  0.0000,  0.6000])
    """
    choose("scale", scale, SCALES)
    losses = check_losses(losses, theta)
    if is_one(sigma):
        return phi(losses - theta)
    sigma = checked_sigma(losses, sigma)
    weights = phi((losses - theta) / sigma)
    return sigma * weights if scale == "code" else weights


def softad_width_weights(losses: Tensor, sigma: Number, theta: float = 0.01) -> Tensor:
    """∂softad_width/∂ℓ_i · n = φ((ℓ_i − θ)/σ), same shape as `losses`.

    >>> softad_width_weights(torch.tensor([0.25, 1.0, 1.75]), 1.0, 1.0)  # φ(0.75) = 0.6
    tensor([-0.6000,  0.0000,  0.6000])
    """
    return softad_weights(losses, theta, sigma, "text")


def softad_logcosh_weights(losses: Tensor, theta: Number) -> Tensor:
    """∂softad_logcosh/∂ℓ_i · n = tanh(ℓ_i − θ), same shape as `losses`. θ in nats.

    >>> softad_logcosh_weights(torch.tensor([0.0, 1.0, 2.0]), 1.0)  # tanh 1
    tensor([-0.7616,  0.0000,  0.7616])
    """
    return (check_losses(losses, theta) - theta).tanh()


def softad_no_ascent_weights(losses: Tensor, theta: Number) -> Tensor:
    """∂softad_no_ascent/∂ℓ_i · n = φ(max(ℓ_i − θ, 0)), same shape as `losses`. θ in nats.

    >>> softad_no_ascent_weights(torch.tensor([0.25, 1.0, 1.75]), 1.0)  # φ(0.75) = 0.6
    tensor([0.0000, 0.0000, 0.6000])
    """
    return softad_weights(losses, theta).relu()


def erm_weights(losses: Tensor, knob: object = None) -> Tensor:
    """∂erm/∂ℓ_i · n = 1, same shape as `losses`. `knob` is ignored.

    >>> erm_weights(torch.tensor([0.25, 1.75]))
    tensor([1., 1.])
    """
    return torch.ones_like(in_float32(losses))


def flooding_weights(losses: Tensor, theta: Number) -> Tensor:
    """∂flooding/∂ℓ_i · n = sign(mean ℓ − θ), the same for all, same shape as `losses`. θ in nats.

    >>> flooding_weights(torch.tensor([0.25, 0.75]), 1.0)
    tensor([-1., -1.])
    """
    return (in_float32(losses).mean() - theta).sign().expand_as(losses)


def iflood_weights(losses: Tensor, theta: Number) -> Tensor:
    """∂iflood/∂ℓ_i · n = sign(ℓ_i − θ), same shape as `losses`. θ in nats.

    >>> iflood_weights(torch.tensor([0.25, 1.0, 1.75]), 1.0)
    tensor([-1.,  0.,  1.])
    """
    return (in_float32(losses) - theta).sign()


def iflood_no_ascent_weights(losses: Tensor, theta: Number) -> Tensor:
    """∂iflood_no_ascent/∂ℓ_i · n: 1 where ℓ_i > θ, else 0, same shape as `losses`. θ in nats.

    >>> iflood_no_ascent_weights(torch.tensor([0.25, 1.0, 1.75]), 1.0)
    tensor([0., 0., 1.])
    """
    return iflood_weights(losses, theta).relu()


def focal_weights(losses: Tensor, gamma: Number) -> Tensor:
    """∂focal/∂ℓ_i · n = (1 − p)^γ·(1 + γpℓ/(1 − p)), p = e^−ℓ, same shape as `losses`.

    >>> focal_weights(torch.tensor([0.0, 0.693147]), 2.0)  # at ln 2: ¼·(1 + 2·ln 2)
    tensor([0.0000, 0.5966])
    """
    losses = in_float32(losses)
    miss, power = power_of_miss(losses, gamma)
    return power * (1 + gamma * (losses * torch.exp(-losses) / miss))


WEIGHTS: dict[Callable[..., Tensor], Callable[..., Tensor]] = {
    erm: erm_weights,
    flooding: flooding_weights,
    iflood: iflood_weights,
    softad: softad_weights,
    softad_width: softad_width_weights,
    softad_logcosh: softad_logcosh_weights,
    softad_no_ascent: softad_no_ascent_weights,
    iflood_no_ascent: iflood_no_ascent_weights,
    focal: focal_weights,
}
"""Objective → its gradient in the losses, n·∂/∂ℓ_i written out, of the same arguments."""
