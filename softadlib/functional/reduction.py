"""The first and the last step of every objective: check what is given, and reduce."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softadlib._validation import UserError, choose, real

Number = float | Tensor
"""A number, or a tensor of shape () or (n,)."""
Weights = Tensor | None
"""How much each sample counts, in the shape of the losses; None where all count 1."""
REDUCTIONS = ("mean", "sum", "none")
HALF = (torch.float16, torch.bfloat16)


def check_losses(
    losses: Tensor, value: Number = 0.0, per_sample: bool = True, name: str = "theta"
) -> Tensor:
    """Return the losses in float32 at least; raise `UserError` for wrong shapes and types.

    `value` is that of the hyperparameter `name`, with one for each loss where `per_sample` allows it.
    """
    if not isinstance(losses, Tensor) or not losses.is_floating_point() or losses.ndim == 0:
        raise UserError(
            "losses must be a float tensor of per-sample values, shape (n,), as reduction='none' gives, "
            f"got {kind_of(losses)}"
        )
    if not isinstance(value, Tensor):
        check_number(name, value)
    elif value.ndim and not (per_sample and value.shape == losses.shape):
        wanted = f"() or {tuple(losses.shape)}" if per_sample else "()"
        raise UserError(f"{name} must have shape {wanted}, got {tuple(value.shape)}")
    return in_float32(losses)


def as_tensor(values: Any) -> Tensor:
    """Return `values` as a tensor; of arrays also those that torch refuses."""
    if isinstance(values, np.ndarray):  # torch takes no negative strides and no foreign byte order
        values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    return torch.as_tensor(values)


def kind_of(value: object) -> str:
    """Return dtype and shape of a tensor, and the type of anything else, for a message."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__


def in_float32(values: Tensor) -> Tensor:
    """Return values of half precision in float32, others as they are."""
    return values.float() if values.dtype in HALF else values


def check_weights(weights: Tensor, losses: Tensor) -> Tensor:
    """Return the weights in float32 at least; raise `UserError` unless there is one ≥ 0 for each loss."""
    if not isinstance(weights, Tensor) or weights.shape != losses.shape:
        raise UserError(
            f"sample_weight must be a tensor of shape {tuple(losses.shape)}, one per loss, got {kind_of(weights)}"
        )
    if weights.dtype != torch.bool:
        check_number("sample_weight", weights, low=0)
    return in_float32(weights)


def reduce(values: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
    """Σ wᵢvᵢ/Σ wᵢ, Σ wᵢvᵢ or wᵢvᵢ, as `reduction` says; the mean of nothing is NaN."""
    choose("reduction", reduction, REDUCTIONS)
    if reduction == "mean" and (weights is None or not values.numel()):
        return values.mean()
    if weights is not None:
        weights = check_weights(weights, values)
        if reduction == "mean":
            # Divided before they meet the graph: nothing to differentiate.
            weights = weights / weights.sum(dtype=values.dtype)
        values = values * weights
    return values if reduction == "none" else values.sum()


def number_like(losses: Tensor, value: Number) -> Tensor:
    """Return `value` as a 0-d tensor of the losses' kind; a plain number is not copied from the host."""
    if isinstance(value, Tensor):
        return value.to(losses)
    return losses.new_full((), value)


def is_hidden(value: Tensor) -> bool:
    """Tell whether the value cannot be read: under `compile`, `vmap` and `grad`."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(value)


def check_number(name: str, value: Number, **bounds: float) -> None:
    """Raise `UserError` unless `value` lies within `bounds`, those of `_validation.real`.

    A tensor is read on a CPU only, and not under `vmap` or `compile`: elsewhere reading it would wait
    for the device, or it has no value yet. A number is not checked under `compile`.
    """
    if not isinstance(value, Tensor):
        # From its second value on a number is a symbol in a compiled function.
        if not (torch.compiler.is_compiling() and type(value) in (int, float)):
            real(name, value, **bounds)
        return
    if is_hidden(value) or value.device.type != "cpu" or not value.numel():
        return
    try:
        extremes = [extreme.item() for extreme in value.detach().aminmax()]
    except RuntimeError:  # a fake or a proxy tensor has no value
        return
    for extreme in extremes:
        real(name, extreme, **bounds)
