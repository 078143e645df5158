"""The mathematics: per-sample losses in, scalar objectives and gradient rules out. No state.

Every criterion takes `losses` of shape (n,) and returns a 0-d tensor. All of them are traceable by
`torch.func` (grad, vmap) and `torch.compile`; half-precision losses are computed in float32.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

SCALES = ("code", "text")
LN2 = math.log(2)
"""θ at and above which SoftAD and iFlood with cross-entropy stop being classification-calibrated."""

Grads = dict[str, Tensor]


def _checked(losses: Tensor, theta: float | Tensor = 0.0, per_sample: bool = True) -> Tensor:
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
    if (
        isinstance(theta, Tensor)
        and theta.ndim
        and not (per_sample and theta.shape == losses.shape)
    ):
        wanted = f"() or {tuple(losses.shape)}" if per_sample else "()"
        raise ValueError(f"theta must have shape {wanted}, got {tuple(theta.shape)}")
    return losses.float() if losses.dtype in (torch.float16, torch.bfloat16) else losses


def rho(x: Tensor) -> Tensor:
    """ρ(x) = √(1+x²) − 1, elementwise, for any shape.

    Written x·(x/(1+√(1+x²))): the difference above is exactly 0 in float32 for |x| ≤ 1e-4, and x²
    overflows where this does not. Holland & Nakatani (2024), eq. for S_n.
    """
    return x * (x / (1 + torch.hypot(torch.ones_like(x), x)))


def phi(x: Tensor) -> Tensor:
    """φ(x) = ρ′(x) = x/√(1+x²), elementwise: odd, increasing, bounded by 1, φ(0) = 0."""
    return x / torch.hypot(torch.ones_like(x), x)


def erm(losses: Tensor, knob: object = None) -> Tensor:
    """Mean of the losses, (n,) → (). `knob` is ignored; every method is called the same way."""
    return _checked(losses).mean()


def flooding(losses: Tensor, theta: float | Tensor) -> Tensor:
    """θ + |mean ℓ − θ|, (n,) → (). Gradient: sign(mean ℓ − θ)·∇mean ℓ.

    The sign is taken once per batch, so the value does not decompose over micro-batches.
    `theta` in nats, float or (). Ishida et al. (2020).
    """
    return theta + (_checked(losses, theta, per_sample=False).mean() - theta).abs()


def iflood(losses: Tensor, theta: float | Tensor) -> Tensor:
    """mean(θ + |ℓ − θ|), (n,) → (). Gradient: mean sign(ℓ − θ)·∇ℓ.

    `theta` in nats, float, () or (n,). Xie et al. (2022).
    """
    return (theta + (_checked(losses, theta) - theta).abs()).mean()


def softad(
    losses: Tensor,
    theta: float | Tensor,
    sigma: float | Tensor = 1.0,
    eta: float = 1.0,
    scale: str = "code",
) -> Tensor:
    """η·θ + s·mean ρ((ℓ − θ)/σ) with s = σ² ("code") or σ ("text"), (n,) → ().

    Per-sample gradient weights are σφ((ℓ−θ)/σ) under "code", the authors' implementation, and
    φ((ℓ−θ)/σ) under "text", the paper's figures; they coincide at σ = 1. `theta` in nats, float, ()
    or (n,); `sigma` > 0 in nats. η moves the value only, never the gradient in the weights.
    Raises ValueError for σ ≤ 0 or an unknown scale. Holland & Nakatani (2024), Sec. 3.
    """
    if scale not in SCALES:
        raise ValueError(f"scale {scale!r} unknown; choose from {', '.join(SCALES)}")
    number = isinstance(sigma, (int, float)) and not isinstance(sigma, bool)
    if not isinstance(sigma, Tensor) and not (number and sigma > 0 and math.isfinite(sigma)):
        raise ValueError(f"sigma must be a positive number, got {sigma!r}")
    losses = _checked(losses, theta)
    spread = sigma * rho((losses - theta) / sigma) * (sigma if scale == "code" else 1)
    return (eta * theta + spread).mean()


def softad_weights(
    losses: Tensor, theta: float | Tensor, sigma: float | Tensor = 1.0, scale: str = "code"
) -> Tensor:
    """∂softad/∂ℓ_i · n: the weight of each sample's gradient, same shape as `losses`.

    σφ((ℓ−θ)/σ) under "code", φ((ℓ−θ)/σ) under "text"; positive descends, negative ascends.
    """
    weights = phi((losses - theta) / sigma)
    return sigma * weights if scale == "code" else weights


def global_norm(grads: Grads) -> Tensor:
    """L2 norm of all entries of all tensors together, ()."""
    return torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(g) for g in grads.values()])
    )


def climb(params: Grads, grads: Grads, radius: float | Tensor) -> Grads:
    """w + r·g/(‖g‖ + 1e-12): a step of L2 length r up the gradient; w where g is zero.

    `radius` in weight space. Foret et al. (2021), eq. 2 with p = 2.
    """
    factor = torch.as_tensor(radius / (global_norm(grads) + 1e-12))
    return {name: torch.addcmul(p, grads[name], factor) for name, p in params.items()}


def plain_gradient(gradient: Callable[..., Grads], params: Grads, knob: object = None) -> Grads:
    """g(w): the gradient rule of every method that changes the objective only."""
    return gradient(params)


def sam_gradient(
    gradient: Callable[..., Grads], params: Grads, radius: float | Tensor, bn_update: str = "both"
) -> Grads:
    """g(w + r·g(w)/‖g(w)‖): two calls of `gradient(params, track=…)`.

    `bn_update="both"` lets the second pass move batch norm's running statistics too, as the paper's
    code does; "first" keeps those of the first pass, as most public SAMs do. Foret et al. (2021).
    """
    climbed = climb(params, gradient(params), radius)
    return gradient(climbed, track=bn_update == "both")
