"""Objectives of per-sample losses: SoftAD, Flooding, iFlood, AdaFlood, focal, ERM. Functions without state.

Every objective takes `losses` of shape (n,) and returns a 0-d tensor. All of them are traceable by
`torch.func` (grad, vmap) and `torch.compile`. Half-precision losses are computed in float32.
`sample_weight` (n,) says how much each sample counts: the mean is Σ wᵢvᵢ/Σ wᵢ of the transformed losses vᵢ.
It is NaN for an empty batch and where nothing counts, as torch's. `reduction` "sum" gives Σ wᵢvᵢ,
"none" gives wᵢvᵢ, (n,). `UserError` (a ValueError) for a weight of another shape.
"""

import math

import torch
from torch import Tensor

from softadlib._validation import UserError, choose
from softadlib.functional.reduction import (
    Number,
    Weights,
    check_losses,
    check_number,
    kind_of,
    number_like,
    reduce,
)

SCALES = ("code", "text")
MIN_SIGMA = 1e-12
"""Smallest σ: far below it the backward pass of `softad` underflows in float32."""
LN2 = math.log(2)
"""θ at and above which SoftAD and iFlood with cross-entropy stop being classification-calibrated."""


def rho(x: Tensor) -> Tensor:
    """ρ(x) = √(1+x²) − 1, elementwise, for any shape; ∞ at ±∞, where its slope is ±1.

    Written x·(x/(1+√(1+x²))): the difference above is exactly 0 in float32 for |x| ≤ 1e-4, and x²
    overflows where this does not. Holland & Nakatani (2024), Sec. 3.

    >>> rho(torch.tensor([0.0, 0.75, -float("inf")]))
    tensor([0.0000, 0.2500,    inf])
    """
    infinite = x.isinf()
    finite = torch.where(infinite, 0, x)
    return torch.where(infinite, x.abs(), _scaled_rho(finite, finite))


def _scaled_rho(gap: Tensor, x: Tensor) -> Tensor:
    """gap²/(1 + √(1+x²)), which is σ²ρ(x) for gap = σx."""
    return gap * (gap / (1 + torch.hypot(torch.ones_like(x), x)))


def phi(x: Tensor) -> Tensor:
    """φ(x) = ρ′(x) = x/√(1+x²), elementwise, for any shape: odd, increasing, φ(0) = 0, φ(±∞) = ±1.

    Holland & Nakatani (2024), Sec. 3.

    >>> phi(torch.tensor([0.0, 0.75, -float("inf")]))
    tensor([ 0.0000,  0.6000, -1.0000])
    """
    largest = torch.finfo(x.dtype).max
    x = x.clamp(-largest, largest)
    return x / torch.hypot(torch.ones_like(x), x)


def erm(
    losses: Tensor,
    hyperparameter: object = None,
    *,
    sample_weight: Weights = None,
    reduction: str = "mean",
) -> Tensor:
    """mean ℓ, (n,) → (). `hyperparameter` is ignored; every method is called the same way. Vapnik (1992).

    Raises ValueError for losses that are no float tensor, or a single value, as all functions here do.

    >>> erm(torch.tensor([1.0, 2.0]))
    tensor(1.5000)
    """
    return reduce(check_losses(losses), sample_weight, reduction)


def flooding(losses: Tensor, theta: Number, *, sample_weight: Weights = None) -> Tensor:
    """θ + |mean ℓ − θ|, (n,) → (). Gradient: sign(mean ℓ − θ)·∇mean ℓ.

    The sign is taken once per batch, so the value does not decompose over micro-batches.
    `theta` in nats, float or (); ValueError for another shape. Ishida et al. (2020).

    >>> flooding(torch.tensor([1.0, 2.0]), 2.0)  # 2 + |1.5 − 2|
    tensor(2.5000)
    """
    return (
        theta + (reduce(check_losses(losses, theta, per_sample=False), sample_weight) - theta).abs()
    )


def iflood(
    losses: Tensor, theta: Number, *, sample_weight: Weights = None, reduction: str = "mean"
) -> Tensor:
    """mean(θ + |ℓ − θ|), (n,) → (). Gradient: mean sign(ℓ − θ)·∇ℓ.

    `theta` in nats, float, () or (n,); ValueError for another shape. Xie et al. (2022).

    >>> iflood(torch.tensor([1.0, 2.0]), 1.25)  # (1.5 + 2)/2
    tensor(1.7500)
    """
    return reduce(theta + (check_losses(losses, theta) - theta).abs(), sample_weight, reduction)


def softad(
    losses: Tensor,
    theta: Number,
    sigma: Number = 1.0,
    eta: float = 1.0,
    scale: str = "code",
    *,
    sample_weight: Weights = None,
    reduction: str = "mean",
) -> Tensor:
    """η·θ + s·mean ρ((ℓ − θ)/σ) with s = σ² ("code") or σ ("text"), (n,) → ().

    The derivative in a loss is σφ((ℓ−θ)/σ) under "code", the authors' implementation, and
    φ((ℓ−θ)/σ) under "text", the paper's figures; they coincide at σ = 1. `theta` in nats, float, ()
    or (n,); `sigma` > 0 in nats, likewise. η moves the value only, never the gradient in the weights.
    Raises ValueError for σ below 1e-12 or an unknown scale. A tensor σ that cannot be read (under
    `vmap`, `compile` or on a GPU) gives NaN where it is not positive. NaN for a loss of ∞.
    Holland & Nakatani (2024), Sec. 3. A value of the whole batch counts as one loss, so that SoftAD
    goes over CVaR or χ²-DRO too (Holland & Hamada 2025): `softad(cvar(losses, 0.5).view(1), 0.1)`.

    >>> softad(torch.tensor([0.25, 1.75]), 1.0)  # 1 + ρ(0.75)
    tensor(1.2500)
    >>> softad(torch.tensor([0.25, 1.75]), 1.0, reduction="none")
    tensor([1.2500, 1.2500])
    >>> from softadlib.functional import cvar
    >>> softad(cvar(torch.tensor([0.25, 1.75]), 0.5).view(1), 1.0)  # the worse half is 1.75
    tensor(1.2500)
    """
    choose("scale", scale, SCALES)
    check_number("eta", eta)
    gap = check_losses(losses, theta) - theta
    if is_one(sigma):
        spread = _scaled_rho(gap, gap)
    else:
        sigma = checked_sigma(losses, sigma)
        spread = _scaled_rho(gap, gap / sigma)
        if scale == "text":
            spread = spread / sigma
    return reduce(eta * theta + spread, sample_weight, reduction)


def is_one(sigma: Number) -> bool:
    """Tell whether σ is the plain number 1: every kernel left out counts on small batches."""
    return type(sigma) in (int, float) and bool(sigma == 1)


def checked_sigma(losses: Tensor, sigma: Number) -> Number:
    """σ, NaN where it is a tensor that is not positive and cannot be read; `UserError` otherwise."""
    check_number("sigma", sigma, low=MIN_SIGMA)
    check_losses(losses, sigma, name="sigma")
    return torch.where(sigma > 0, sigma, math.nan) if isinstance(sigma, Tensor) else sigma


def softad_width(losses: Tensor, sigma: Number, theta: float = 0.01) -> Tensor:
    """`softad` at a fixed θ, its width σ the swept value: θ + σ·mean ρ((ℓ − θ)/σ), (n,) → ().

    The scale is "text": no gradient weight exceeds 1, so σ does not change the step. For σ → 0 it is
    iFlood. Holland & Nakatani (2024), Sec. 3.

    >>> softad_width(torch.tensor([0.25, 1.75]), 1.0, 1.0)  # 1 + ρ(0.75)
    tensor(1.2500)
    """
    return softad(losses, theta, sigma, scale="text")


def softad_logcosh(losses: Tensor, theta: Number) -> Tensor:
    """θ + mean ln cosh(ℓ − θ), (n,) → (): SoftAD with another ρ, of weights tanh(ℓ − θ).

    Holland & Nakatani (2024), Sec. 3, say of ρ(x) = √(1+x²) − 1 that nothing is special about it.

    >>> softad_logcosh(torch.tensor([0.0, 2.0]), 1.0)  # 1 + ln cosh 1
    tensor(1.4338)
    """
    gap = check_losses(losses, theta) - theta
    return theta + (torch.logaddexp(gap, -gap) - LN2).mean()


def softad_no_ascent(losses: Tensor, theta: Number) -> Tensor:
    """θ + mean ρ(max(ℓ − θ, 0)), (n,) → (): `softad` that leaves losses below θ alone.

    An ablation: the weights of SoftAD where it descends, 0 where it would ascend.

    >>> softad_no_ascent(torch.tensor([0.25, 1.75]), 1.0)  # 1 + ρ(0.75)/2
    tensor(1.1250)
    """
    return theta + rho((check_losses(losses, theta) - theta).relu()).mean()


def iflood_no_ascent(losses: Tensor, theta: Number) -> Tensor:
    """mean max(ℓ, θ), (n,) → (): `iflood` that leaves losses below θ alone.

    An ablation: weight 1 where iFlood descends, 0 where it would ascend.

    >>> iflood_no_ascent(torch.tensor([1.0, 2.0]), 1.5)  # (1.5 + 2)/2
    tensor(1.7500)
    """
    return theta + (check_losses(losses, theta) - theta).relu().mean()


def focal(
    losses: Tensor, gamma: Number, *, sample_weight: Weights = None, reduction: str = "mean"
) -> Tensor:
    """mean((1 − p)^γ·ℓ) with p = e^−ℓ, (n,) → (): the focal loss of cross-entropies ℓ.

    `gamma` at least 0, float, () or (n,); 0 is the mean. Losses of at least 0. Lin et al. (2017).

    >>> focal(torch.tensor([math.log(2)]), 2.0)  # ¼·ln 2
    tensor(0.1733)
    """
    check_number("gamma", gamma, low=0)
    losses = check_losses(losses, gamma, name="gamma")
    return reduce(power_of_miss(losses, gamma)[1] * losses, sample_weight, reduction)


def power_of_miss(losses: Tensor, gamma: Number) -> tuple[Tensor, Tensor]:
    """Return 1 − e^−ℓ and its power γ; where ℓ = 0 they are 1 and 0^γ, so that no gradient is ∞·0."""
    zero = losses == 0
    miss = torch.where(zero, 1, -torch.expm1(-losses))
    at_zero = torch.zeros_like(losses) ** gamma
    return miss, torch.where(zero, at_zero, miss**gamma)


def adaflood(
    losses: Tensor, theta: Tensor, *, sample_weight: Weights = None, reduction: str = "mean"
) -> Tensor:
    """mean(θ_i + |ℓ_i − θ_i|), (n,) → (): iFlood with one level for each sample.

    `theta` (n,) in nats, in the order of `losses`; make it with `flood_levels`. Raises ValueError
    for any other shape, a single level included. Bae et al. (2024).

    >>> adaflood(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.0]))  # (2 + 2)/2
    tensor(2.)
    """
    if not isinstance(theta, Tensor) or theta.shape != check_losses(losses).shape:
        raise UserError(
            f"theta must have shape {tuple(losses.shape)}, one per loss, got {kind_of(theta)}"
        )
    return iflood(losses, theta, sample_weight=sample_weight, reduction=reduction)


def flood_levels(
    aux_losses: Tensor, gamma: Number, alpha: float = 1.0, beta: float = 0.0
) -> Tensor:
    """θ_i = −ln((1−γ)·exp(−(αℓ_i + β)) + γ), same shape as `aux_losses`.

    ℓ_i: the loss of sample i under a model that was not trained on it. γ in [0, 1] corrects towards
    certainty: 0 gives θ_i = αℓ_i + β, 1 gives 0; θ_i ≤ −ln γ, hence at most ln 2 from γ = ½ up.
    Raises ValueError for γ outside. Bae et al. (2024).

    >>> flood_levels(torch.tensor([0.0, math.log(2)]), 0.5)  # −ln 1, −ln(½·½ + ½)
    tensor([-0.0000, 0.2877])
    """
    check_number("gamma", gamma, low=0, high=1)
    check_number("alpha", alpha)
    check_number("beta", beta)
    losses = check_losses(aux_losses, gamma, per_sample=False, name="gamma")
    gamma = number_like(losses, gamma)
    return -torch.logaddexp(torch.log1p(-gamma) - (alpha * losses + beta), torch.log(gamma))
