"""Monotone functions of per-sample losses: CVaR, χ²-DRO, tilted. `functional` offers them too.

`weights` (n,) of at least 0 say how much each sample counts, as if it were there that many times;
what counts 0 changes nothing. NaN where nothing counts.
"""

import math

import torch
from torch import Tensor

from softadlib.functional.reduction import check_losses, check_number


def cvar(losses: Tensor, beta: float | Tensor, *, weights: Tensor | None = None) -> Tensor:
    """min over θ of θ + mean(ℓ − θ)₊/(1−β), (n,) → (): the mean of the worst (1−β)n losses.

    `beta` in [0, 1), float or (); 0 is the mean. Where (1−β)n is not whole, the last of the worst
    counts by the fraction left, so that this is the minimum exactly. Raises ValueError for β outside.
    Rockafellar & Uryasev (2000).

    >>> cvar(torch.tensor([1.0, 4.0, 2.0, 3.0]), 0.5)
    tensor(3.5000)
    """
    check_number("beta", beta, low=0, below=1)
    worst, each, before, total = _ranked(
        check_losses(losses, beta, per_sample=False, name="beta"), weights
    )
    kept = torch.as_tensor((1 - beta) * total, dtype=worst.dtype, device=worst.device)
    taken = (kept - before).clamp(min=0).minimum(each) / kept
    return (taken * worst).sum()


def _ranked(
    losses: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, float | Tensor]:
    """Losses from the worst, how much each counts, how much counts before it, and all: (n,) thrice, ().

    What counts nothing stands last, at the least of the others.
    """
    losses = losses.flatten()
    if weights is None:
        place = torch.arange(len(losses), dtype=losses.dtype, device=losses.device)
        return losses.sort(descending=True).values, torch.ones_like(place), place, len(losses)
    weights = weights.flatten().to(losses.dtype)
    least = torch.where(weights > 0, losses, math.inf).amin().detach()
    worst, order = torch.where(weights > 0, losses, least).sort(descending=True, stable=True)
    each = weights[order]
    return worst, each, each.cumsum(0) - each, each.sum()


def chi2_dro(losses: Tensor, radius: float | Tensor, *, weights: Tensor | None = None) -> Tensor:
    """min over θ of θ + √((1+2r)·mean(ℓ − θ)₊²), (n,) → (): the worst mean over a χ² ball.

    The ball: weights q on the samples with ½·mean (nq − 1)² ≤ r. `radius` ≥ 0, float or (); 0 is
    the mean, mean + √(2r·Var) where no sample is left out, the maximum from n ≤ 1 + 2r. Solved
    exactly, by the number of samples that keep weight. Raises ValueError for r < 0. Duchi &
    Namkoong (2019).

    >>> chi2_dro(torch.tensor([1.0, 3.0]), 0.125)  # 2 + √(2·0.125·1)
    tensor(2.5000)
    """
    check_number("radius", radius, low=0)
    losses = check_losses(losses, radius, per_sample=False, name="radius")
    worst, each, before, n = _ranked(losses, weights)
    top = worst[0].detach()  # subtracted, so that losses which share the maximum are exactly 0
    worst = worst - top
    # k, how many keep weight: the first at which the dual no longer falls as θ falls to the next loss
    z = worst.detach()
    count, following = before[1:], z[1:]
    sums, squares = (each * z).cumsum(0)[:-1], (each * z**2).cumsum(0)[:-1]
    above = sums - count * following
    above_squared = squares - 2 * following * sums + count * following**2
    keep = 1 + ((1 + 2 * radius) / n * above**2 <= above_squared).sum()
    kept = torch.where(torch.arange(len(z), device=z.device) < keep, each, 0)
    k = kept.sum()
    mean = (each * torch.where(kept > 0, worst, 0)).sum() / k
    variance = (each * torch.where(kept > 0, (worst - mean) ** 2, 0)).sum() / k
    square = variance * ((k - n + 2 * radius * k) / n).clamp(min=0)
    # the slope of √ is infinite at 0; there all that keep weight keep the same
    root = torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0)
    return top + mean + root


def tilted(losses: Tensor, t: float | Tensor, *, weights: Tensor | None = None) -> Tensor:
    """ln(mean exp(tℓ))/t, (n,) → (): from the minimum (t → −∞) by the mean (0) to the maximum.

    Gradient weights are softmax(tℓ). `t` per nat, float or (). Nothing overflows at large tℓ, and
    nothing cancels at small t. Raises ValueError for a t that is not finite. Li et al. (2021).

    >>> tilted(torch.tensor([0.0, math.log(3)]), 1.0)  # ln((1 + 3)/2)
    tensor(0.6931)
    """
    check_number("t", t)
    losses = check_losses(losses, t, per_sample=False, name="t").flatten()
    t = torch.as_tensor(t, dtype=losses.dtype, device=losses.device)
    if weights is None:
        mean, share = losses.mean(), None
    else:
        share = weights.flatten() / weights.sum(dtype=losses.dtype)
        losses = torch.where(share > 0, losses, 0)
        mean = (share * losses).sum()
    rate = torch.where(t == 0, 1, t)
    z = rate * (losses - mean)
    z = z if share is None else torch.where(share > 0, z, 0)
    far = z.logsumexp(0) - math.log(len(z)) if share is None else (z + share.log()).logsumexp(0)
    growth = torch.expm1(z.clamp(-1, 1))
    near = torch.log1p(growth.mean() if share is None else (share * growth).sum())
    return mean + torch.where(t == 0, 0, torch.where(z.abs().amax() < 1, near, far) / rate)
