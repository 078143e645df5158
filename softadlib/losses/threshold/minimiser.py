"""The loss of a network that minimises SoftAD where the posterior is known."""

import math

import torch
import torch.nn.functional as nnF
from torch import Tensor

from softadlib._validation import real
from softadlib.functional import LN2
from softadlib.losses.threshold.bayes import Values, as_tensor


def minimiser_loss(confidence: Values, theta: float) -> float:
    r"""Return the mean cross-entropy, in nats, of the minimiser of SoftAD at θ (σ = 1).

    `confidence` (n,): probabilities η of one of two classes. SoftAD is no proper loss: its minimum
    is at p with η·φ(−ln p − θ)/p = (1−η)·φ(−ln(1−p) − θ)/(1−p), 1 − e^−θ ≤ p ≤ e^−θ. So without any
    memorising it holds the loss at max(θ, mean h(η)) or above, even at θ = 0. Rises with θ.

    Raises:
        ValueError: θ outside [0, ln 2), what is no probability.

    Example:
        >>> round(minimiser_loss([1.0, 0.0], 0.2), 6)  # certain: every loss is θ
        0.2
    """
    theta = real("theta", theta, low=0, below=LN2)
    eta = as_tensor("confidence", confidence).double()
    if eta.ndim != 1 or not len(eta) or eta.min() < 0 or eta.max() > 1:
        raise ValueError("confidence must be (n,) probabilities")
    # bisect in ln(p/(1−p)), where both ends keep their digits; sure to 1e-15 counts as sure
    end = min(36.0, -theta - math.log(-math.expm1(-theta))) if theta else 36.0
    low, high = torch.full_like(eta, -end), torch.full_like(eta, end)
    for _ in range(50):
        middle = (low + high) / 2
        loss_if_1 = nnF.softplus(-middle, threshold=50)
        loss_if_0 = nnF.softplus(middle, threshold=50)
        rising = eta * _descent(loss_if_1, theta) > (1 - eta) * _descent(loss_if_0, theta)
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return float((eta * loss_if_1 + (1 - eta) * loss_if_0).mean())


def excess_loss(confidence: Tensor, theta: float) -> float:
    """Return `minimiser_loss` less the entropy: what SoftAD at θ costs a calibrated network, in nats."""
    entropy = torch.special.entr(confidence) + torch.special.entr(1 - confidence)
    return minimiser_loss(confidence, theta) - float(entropy.mean())


def _descent(loss: Tensor, theta: float) -> Tensor:
    """Return φ(ℓ − θ)/p at p = e^−ℓ: minus the slope of ρ(ℓ − θ) in p."""
    x = loss - theta
    return x / torch.hypot(torch.ones_like(x), x) * torch.exp(loss)
