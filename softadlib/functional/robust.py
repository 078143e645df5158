"""Robust objectives of per-sample losses: CVaR, χ²-DRO and tilted. Each is monotone in every loss.

`sample_weight` (n,) of at least 0 says how much each sample counts, as if it were there that many times.
A sample of weight 0 changes nothing. NaN for an empty batch and where nothing counts, as torch's mean.
Raises ValueError for a weight below 0.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from softadlib.functional.reduction import (
    Number,
    Weights,
    check_losses,
    check_number,
    check_weights,
    number_like,
)


def cvar(losses: Tensor, beta: Number, *, sample_weight: Weights = None) -> Tensor:
    """min over θ of θ + mean(ℓ − θ)₊/(1−β), (n,) → (): the mean of the worst (1−β)n losses.

    `beta` in [0, 1), float or (); 0 is the mean. Where (1−β)n is not whole, the last of the worst
    counts by the fraction left. The value is the exact minimum. Raises ValueError for β outside.
    Rockafellar & Uryasev (2000).

    >>> cvar(torch.tensor([1.0, 4.0, 2.0, 3.0]), 0.5)
    tensor(3.5000)
    """
    check_number("beta", beta, low=0, below=1)
    losses = check_losses(losses, beta, per_sample=False, name="beta")
    if not losses.numel():
        return losses.mean()
    ranked = _rank(losses, sample_weight)
    total = (1 - beta) * ranked.total
    total = losses.new_zeros(()) + total
    share = (total - ranked.before).clamp(min=0).minimum(ranked.weights) / total
    return (share * torch.where(share > 0, ranked.losses, 0)).sum()  # 0 · ∞ would be NaN


class Ranked(NamedTuple):
    """Per-sample losses from the worst to the best, and how much each counts. Shapes (n,) and ()."""

    losses: Tensor
    weights: Tensor
    """How much each loss counts."""
    before: Tensor
    """How much counts before each loss: Σ of the weights of worse ones."""
    total: float | Tensor
    """How much counts in all."""


def _rank(losses: Tensor, weights: Weights) -> Ranked:
    """Sort losses from the worst. Samples of weight 0 go last, with the smallest loss of the others."""
    if weights is None:
        losses = losses.flatten()
        before = torch.arange(len(losses), dtype=losses.dtype, device=losses.device)
        worst_first = losses.sort(descending=True).values
        return Ranked(worst_first, torch.ones_like(before), before, len(losses))
    weights, losses = _flat_weights(weights, losses), losses.flatten()
    minimum = torch.where(weights > 0, losses, math.inf).amin().detach()
    counted = torch.where(weights > 0, losses, minimum)
    worst_first, order = counted.sort(descending=True, stable=True)
    weights = weights[order]
    return Ranked(worst_first, weights, weights.cumsum(0) - weights, weights.sum())


def _flat_weights(weights: Tensor, losses: Tensor) -> Tensor:
    """Return the weights (n,) in the losses' dtype; `UserError` for one below 0, where it can be read."""
    return check_weights(weights, losses).flatten().to(losses.dtype)


def chi2_dro(losses: Tensor, radius: Number, *, sample_weight: Weights = None) -> Tensor:
    """min over θ of θ + √((1+2r)·mean(ℓ − θ)₊²), (n,) → (): the worst mean over a χ² ball.

    The ball holds the weights q on the samples with ½·mean (nq − 1)² ≤ r. `radius` ≥ 0, float or ();
    0 gives the mean. The value is mean + √(2r·Var) while every sample keeps a positive weight, and the
    maximum for n ≤ 1 + 2r. It is exact: no iteration. Raises ValueError for r < 0. Losses are squared:
    ∞ from about 1e19 in float32, NaN for a loss of ∞. Duchi & Namkoong (2019).

    >>> chi2_dro(torch.tensor([1.0, 3.0]), 0.125)  # 2 + √(2·0.125·1)
    tensor(2.5000)
    """
    check_number("radius", radius, low=0)
    losses = check_losses(losses, radius, per_sample=False, name="radius")
    if not losses.numel():
        return losses.mean()
    worst, each, before, n = _rank(losses, sample_weight)
    top = worst[0].detach()  # subtracted, so that losses which share the maximum are exactly 0
    worst = worst - top
    # The dual θ + √((1+2r)·S(θ)/n), S(θ) = Σ wᵢ(ℓᵢ − θ)₊², is convex. Between two neighbouring
    # losses a fixed set of samples keeps weight. Its slope at θ is 1 − √((1+2r)/n)·A/√S with
    # A = Σ wᵢ(ℓᵢ − θ)₊, so it still falls as θ falls to the loss z of rank k + 1 where
    # (1+2r)/n·A² > S. With W, Σ and Q the sums of w, wℓ and wℓ² over the k worst,
    # A = Σ − W·z and S = Q − 2z·Σ + W·z².
    z = worst.detach()
    count, following = before[1:], z[1:]
    sums, squares = (each * z).cumsum(0)[:-1], (each * z**2).cumsum(0)[:-1]
    above = sums - count * following
    above_squared = squares - 2 * following * sums + count * following**2
    keep = 1 + ((1 + 2 * radius) / n * above**2 <= above_squared).sum()
    weight = torch.where(torch.arange(len(z), device=z.device) < keep, each, 0)
    k = weight.sum()
    # The minimum over those that keep weight: their mean + √(variance·((1+2r)·k − n)/n).
    mean = (each * torch.where(weight > 0, worst, 0)).sum() / k
    variance = (each * torch.where(weight > 0, (worst - mean) ** 2, 0)).sum() / k
    square = variance * ((k - n + 2 * radius * k) / n).clamp(min=0)
    # The slope of √ is infinite at 0; there all that keep weight keep the same.
    root = torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0)
    return top + mean + root


def tilted(losses: Tensor, t: Number, *, sample_weight: Weights = None) -> Tensor:
    """ln(mean exp(tℓ))/t, (n,) → (): from the minimum (t → −∞) by the mean (0) to the maximum.

    The derivative in the losses is softmax(tℓ). `t` per nat, float or (). Stable for large tℓ and for small t.
    Raises ValueError for a t that is not finite. NaN for a loss of ∞. Li et al. (2021).

    >>> tilted(torch.tensor([0.0, math.log(3)]), 1.0)  # ln((1 + 3)/2)
    tensor(0.6931)
    """
    check_number("t", t)
    losses = check_losses(losses, t, per_sample=False, name="t")
    if not losses.numel():
        return losses.mean()
    t = number_like(losses, t)
    if sample_weight is None:
        losses = losses.flatten()
        mean, share = losses.mean(), None
    else:
        share = _flat_weights(sample_weight, losses)
        share = share / share.sum()
        losses = losses.flatten()
        losses = torch.where(share > 0, losses, 0)
        mean = (share * losses).sum()
    no_tilt = t.abs() < torch.finfo(t.dtype).tiny  # 1/t overflows: the mean
    rate = torch.where(no_tilt, 1, t)
    z = rate * (losses - mean)
    z = z if share is None else torch.where(share > 0, z, 0)
    far = z.logsumexp(0) - math.log(len(z)) if share is None else (z + share.log()).logsumexp(0)
    growth = torch.expm1(z.clamp(-1, 1))
    near = torch.log1p(growth.mean() if share is None else (share * growth).sum())
    return mean + torch.where(no_tilt, 0, torch.where(z.abs().amax() < 1, near, far) / rate)
