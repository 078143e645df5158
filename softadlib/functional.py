"""The mathematics: per-sample losses in, scalar objectives out; gradient rules from `rules`. No state.

Every criterion takes `losses` of shape (n,) and returns a 0-d tensor. All of them are traceable by
`torch.func` (grad, vmap) and `torch.compile`; half-precision losses are computed in float32.
`weights` (n,) say how much each sample counts: means are Σ wᵢvᵢ/Σ wᵢ of the transformed losses vᵢ,
NaN where nothing counts; `reduction` "sum" gives Σ wᵢvᵢ and "none" wᵢvᵢ, (n,).
"""

import math

import torch
from torch import Tensor

from .rules import Grads as Grads
from .rules import asam_climb as asam_climb
from .rules import asam_gradient as asam_gradient
from .rules import climb as climb
from .rules import fdgr_gradient as fdgr_gradient
from .rules import global_norm as global_norm
from .rules import gnp_gradient as gnp_gradient
from .rules import number
from .rules import plain_gradient as plain_gradient
from .rules import sam_gradient as sam_gradient

SCALES = ("code", "text")
REDUCTIONS = ("mean", "sum", "none")
LN2 = math.log(2)
"""θ at and above which SoftAD and iFlood with cross-entropy stop being classification-calibrated."""


def _checked(
    losses: Tensor, knob: float | Tensor = 0.0, per_sample: bool = True, name: str = "theta"
) -> Tensor:
    """The losses, in float32 at least; ValueError for shapes and types that would give nonsense."""
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        kind = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"losses must be a float tensor of per-sample values, shape (n,), got {kind}"
        )
    if losses.ndim == 0:
        raise ValueError(
            "losses must be a float tensor of per-sample values, shape (n,), got a single value; "
            "use reduction='none'"
        )
    if isinstance(knob, Tensor) and knob.ndim and not (per_sample and knob.shape == losses.shape):
        wanted = f"() or {tuple(losses.shape)}" if per_sample else "()"
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(knob.shape)}")
    return losses.float() if losses.dtype in (torch.float16, torch.bfloat16) else losses


def reduced(values: Tensor, weights: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Σ wᵢvᵢ/Σ wᵢ, Σ wᵢvᵢ or wᵢvᵢ, as `reduction` says; ValueError for an unknown one."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} unknown; choose from {', '.join(REDUCTIONS)}")
    if reduction == "mean" and weights is None:
        return values.mean()
    if reduction == "mean":  # divided before they meet the graph: nothing to differentiate
        weights = weights / weights.sum(dtype=values.dtype)
    values = values if weights is None else values * weights
    return values if reduction == "none" else values.sum()


def rho(x: Tensor) -> Tensor:
    """ρ(x) = √(1+x²) − 1, elementwise, for any shape.

    Written x·(x/(1+√(1+x²))): the difference above is exactly 0 in float32 for |x| ≤ 1e-4, and x²
    overflows where this does not. Holland & Nakatani (2024), eq. for S_n.
    """
    return _rise(x, x)


def _rise(gap: Tensor, x: Tensor) -> Tensor:
    """gap²/(1 + √(1+x²)), which is σ²ρ(x) for gap = σx."""
    return gap * (gap / (1 + torch.hypot(torch.ones_like(x), x)))


def phi(x: Tensor) -> Tensor:
    """φ(x) = ρ′(x) = x/√(1+x²), elementwise: odd, increasing, bounded by 1, φ(0) = 0."""
    return x / torch.hypot(torch.ones_like(x), x)


def erm(
    losses: Tensor, knob: object = None, *, weights: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Mean of the losses, (n,) → (). `knob` is ignored; every method is called the same way."""
    return reduced(_checked(losses), weights, reduction)


def flooding(losses: Tensor, theta: float | Tensor, *, weights: Tensor | None = None) -> Tensor:
    """θ + |mean ℓ − θ|, (n,) → (). Gradient: sign(mean ℓ − θ)·∇mean ℓ.

    The sign is taken once per batch, so the value does not decompose over micro-batches.
    `theta` in nats, float or (). Ishida et al. (2020).
    """
    return theta + (reduced(_checked(losses, theta, per_sample=False), weights) - theta).abs()


def iflood(
    losses: Tensor,
    theta: float | Tensor,
    *,
    weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """mean(θ + |ℓ − θ|), (n,) → (). Gradient: mean sign(ℓ − θ)·∇ℓ.

    `theta` in nats, float, () or (n,). Xie et al. (2022).
    """
    return reduced(theta + (_checked(losses, theta) - theta).abs(), weights, reduction)


def softad(
    losses: Tensor,
    theta: float | Tensor,
    sigma: float | Tensor = 1.0,
    eta: float = 1.0,
    scale: str = "code",
    *,
    weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """η·θ + s·mean ρ((ℓ − θ)/σ) with s = σ² ("code") or σ ("text"), (n,) → ().

    Per-sample gradient weights are σφ((ℓ−θ)/σ) under "code", the authors' implementation, and
    φ((ℓ−θ)/σ) under "text", the paper's figures; they coincide at σ = 1. `theta` in nats, float, ()
    or (n,); `sigma` > 0 in nats. η moves the value only, never the gradient in the weights.
    Raises ValueError for σ ≤ 0 or an unknown scale. Holland & Nakatani (2024), Sec. 3.
    """
    if scale not in SCALES:
        raise ValueError(f"scale {scale!r} unknown; choose from {', '.join(SCALES)}")
    number("sigma", sigma, "a positive number", lambda v: v > 0)
    losses = _checked(losses, theta)
    gap = losses - theta
    one = not isinstance(sigma, Tensor) and sigma == 1  # every kernel counts on small batches
    spread = _rise(gap, gap if one else gap / sigma)
    if scale == "text" and not one:
        spread = spread / sigma
    return reduced(eta * theta + spread, weights, reduction)


def softad_weights(
    losses: Tensor, theta: float | Tensor, sigma: float | Tensor = 1.0, scale: str = "code"
) -> Tensor:
    """∂softad/∂ℓ_i · n: the weight of each sample's gradient, same shape as `losses`.

    σφ((ℓ−θ)/σ) under "code", φ((ℓ−θ)/σ) under "text"; positive descends, negative ascends.
    """
    if not isinstance(sigma, Tensor) and sigma == 1:  # every kernel counts on small batches
        return phi(losses - theta)
    weights = phi((losses - theta) / sigma)
    return sigma * weights if scale == "code" else weights


def erm_weights(losses: Tensor, knob: object = None) -> Tensor:
    """∂erm/∂ℓ_i · n = 1, same shape as `losses`."""
    return torch.ones_like(losses)


def flooding_weights(losses: Tensor, theta: float | Tensor) -> Tensor:
    """∂flooding/∂ℓ_i · n = sign(mean ℓ − θ), the same for all, same shape as `losses`."""
    return (losses.mean() - theta).sign().expand_as(losses)


def iflood_weights(losses: Tensor, theta: float | Tensor) -> Tensor:
    """∂iflood/∂ℓ_i · n = sign(ℓ_i − θ), same shape as `losses`."""
    return (losses - theta).sign()


WEIGHTS = {
    erm: erm_weights,
    flooding: flooding_weights,
    iflood: iflood_weights,
    softad: softad_weights,
}
"""Objective → its gradient in the losses, n·∂/∂ℓ_i written out, of the same arguments."""


def adaflood(
    losses: Tensor, theta: Tensor, *, weights: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """mean(θ_i + |ℓ_i − θ_i|), (n,) → (): iFlood with a level of its own for every sample.

    `theta` (n,) in nats, in the order of `losses`; make it with `flood_levels`. Raises ValueError
    for any other shape, a single level included. Bae et al. (2024).
    """
    if not isinstance(theta, Tensor) or theta.shape != _checked(losses).shape:
        got = tuple(theta.shape) if isinstance(theta, Tensor) else repr(theta)
        raise ValueError(f"theta must have shape {tuple(losses.shape)}, one per loss, got {got}")
    return iflood(losses, theta, weights=weights, reduction=reduction)


def flood_levels(
    aux_losses: Tensor, gamma: float | Tensor, alpha: float = 1.0, beta: float = 0.0
) -> Tensor:
    """θ_i = −ln((1−γ)·exp(−(αℓ_i + β)) + γ), same shape as `aux_losses`.

    ℓ_i: the loss of sample i under a model that was not trained on it. γ in [0, 1] corrects towards
    certainty: 0 gives θ_i = αℓ_i + β, 1 gives 0; θ_i ≤ −ln γ, hence at most ln 2 from γ = ½ up.
    Raises ValueError for γ outside. Bae et al. (2024).
    """
    number("gamma", gamma, "a number from 0 to 1", lambda v: 0 <= v <= 1)
    number("alpha", alpha, "a finite number", lambda v: True)
    number("beta", beta, "a finite number", lambda v: True)
    losses = _checked(aux_losses, gamma, per_sample=False, name="gamma")
    gamma = torch.as_tensor(gamma, dtype=losses.dtype, device=losses.device)
    return -torch.logaddexp(torch.log1p(-gamma) - (alpha * losses + beta), torch.log(gamma))


def adaflood_at(losses: Tensor, gamma: float | Tensor, aux: Tensor) -> Tensor:
    """`adaflood` at the `flood_levels` of held-out losses `aux` (n,), in the order of `losses`.

    Where `aux` is NaN, value and gradient are: the sign alone would make that gradient 0.
    """
    known = torch.where(aux.isnan(), aux, 1)
    return adaflood(known * losses, flood_levels(aux, gamma))


def cvar(losses: Tensor, beta: float | Tensor) -> Tensor:
    """min over θ of θ + mean(ℓ − θ)₊/(1−β), (n,) → (): the mean of the worst (1−β)n losses.

    `beta` in [0, 1), float or (); 0 is the mean. Where (1−β)n is not whole, the last of the worst
    counts by the fraction left, so that this is the minimum exactly. Rockafellar & Uryasev (2000).
    """
    number("beta", beta, "a number of at least 0 and below 1", lambda v: 0 <= v < 1)
    losses = _checked(losses, beta, per_sample=False, name="beta").flatten()
    n = len(losses)
    kept = torch.as_tensor((1 - beta) * n, dtype=losses.dtype, device=losses.device)
    place = torch.arange(n, dtype=losses.dtype, device=losses.device)
    weights = (kept - place).clamp(0, 1) / kept
    return (weights * losses.sort(descending=True).values).sum()


def chi2_dro(losses: Tensor, radius: float | Tensor) -> Tensor:
    """min over θ of θ + √((1+2r)·mean(ℓ − θ)₊²), (n,) → (): the worst mean over a χ² ball.

    The ball: weights q on the samples with ½·mean (nq − 1)² ≤ r. `radius` ≥ 0, float or (); 0 is
    the mean, mean + √(2r·Var) where no sample is left out, the maximum from n ≤ 1 + 2r. Solved
    exactly, by the number k of samples that keep weight. Duchi & Namkoong (2019).
    """
    number("radius", radius, "a number of at least 0", lambda v: v >= 0)
    losses = _checked(losses, radius, per_sample=False, name="radius").flatten()
    n = len(losses)
    worst = losses.sort(descending=True).values
    top = worst[0].detach()  # subtracted, so that losses which share the maximum are exactly 0
    worst = worst - top
    place = torch.arange(n, dtype=losses.dtype, device=losses.device)
    # k, how many keep weight: the first at which the dual no longer falls as θ falls to the next loss
    z = worst.detach()
    count, following, sums, squares = place[1:], z[1:], z.cumsum(0)[:-1], (z**2).cumsum(0)[:-1]
    above = sums - count * following
    above_squared = squares - 2 * following * sums + count * following**2
    k = 1 + ((1 + 2 * radius) / n * above**2 <= above_squared).sum().to(losses.dtype)
    kept = place < k
    mean = torch.where(kept, worst, 0).sum() / k
    variance = torch.where(kept, (worst - mean) ** 2, 0).sum() / k
    square = variance * ((k - n + 2 * radius * k) / n).clamp(min=0)
    # the slope of √ is infinite at 0; there all that keep weight keep the same
    root = torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0)
    return top + mean + root


def tilted(losses: Tensor, t: float | Tensor) -> Tensor:
    """ln(mean exp(tℓ))/t, (n,) → (): from the minimum (t → −∞) by the mean (0) to the maximum.

    Gradient weights are softmax(tℓ). `t` per nat, float or (). Nothing overflows at large tℓ, and
    nothing cancels at small t. Li et al. (2021).
    """
    number("t", t, "a finite number", lambda v: True)
    losses = _checked(losses, t, per_sample=False, name="t").flatten()
    t = torch.as_tensor(t, dtype=losses.dtype, device=losses.device)
    mean, rate = losses.mean(), torch.where(t == 0, 1, t)
    z = rate * (losses - mean)
    far = torch.logsumexp(z, 0) - math.log(len(losses))
    near = torch.log1p(torch.expm1(z.clamp(-1, 1)).mean())
    return mean + torch.where(t == 0, 0, torch.where(z.abs().amax() < 1, near, far) / rate)
