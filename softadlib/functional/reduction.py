"""What every function of per-sample losses does first and last: check them, and reduce."""

import torch
from torch import Tensor

from softadlib._validation import choose, real

REDUCTIONS = ("mean", "sum", "none")


def check_losses(
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


def reduce(values: Tensor, weights: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Σ wᵢvᵢ/Σ wᵢ, Σ wᵢvᵢ or wᵢvᵢ, as `reduction` says; ValueError for an unknown one."""
    choose("reduction", reduction, REDUCTIONS)
    if reduction == "mean":
        if weights is None:
            return values.mean()
        # divided before they meet the graph: nothing to differentiate
        weights = weights / weights.sum(dtype=values.dtype)
    values = values if weights is None else values * weights
    return values if reduction == "none" else values.sum()


def is_traced() -> bool:
    """Whether the code runs once to be recorded, so that no look at a value may decide anything."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def check_number(name: str, value: float | Tensor, **bounds: float) -> None:
    """Raise `UserError` unless `value` lies within `bounds`, those of `_validation.real`.

    A tensor's values are read on a CPU only, and not under `vmap`, `compile` or a trace, where
    nothing can be read without a wait or an error.
    """
    if not isinstance(value, Tensor):
        real(name, value, **bounds)
        return
    if value.device.type != "cpu" or is_traced():
        return
    try:
        extremes = [v.item() for v in value.detach().aminmax()]
    except RuntimeError:  # a batched, fake or proxy tensor has no value to read
        return
    for extreme in extremes:
        real(name, extreme, **bounds)
