"""Passes of a closure: what is around them, and the weights and gradients of each."""

import contextlib
import weakref
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from softadlib._validation import UserError
from softadlib.functional.gradient_rules import Grads

Mark = tuple[weakref.ref[Tensor], int]  # an id may later be that of another tensor


@contextlib.contextmanager
def frozen_statistics(model: nn.Module | None) -> Iterator[None]:
    """Let batch and instance norm normalise by the batch, but leave their running buffers alone."""
    layers = [
        m
        for m in (model.modules() if model else ())
        if isinstance(m, nn.modules.batchnorm._NormBase)
    ]
    tracked = [m.track_running_stats for m in layers]
    buffers = [(m.running_mean, m.running_var) for m in layers]
    for m in layers:
        if m.training:
            m.track_running_stats, m.running_mean, m.running_var = False, None, None
    try:
        yield
    finally:
        for m, track, (mean, var) in zip(layers, tracked, buffers):
            m.track_running_stats, m.running_mean, m.running_var = track, mean, var


@contextlib.contextmanager
def without_scaler() -> Iterator[None]:
    """Turn torch's refusal to unscale twice before an update into advice: a closure runs twice."""
    try:
        yield
    except RuntimeError as error:
        if "unscale_()" not in str(error):
            raise
        raise UserError(
            "GradScaler unscales once a step, and the closure runs more than once: train in bfloat16 "
            "(torch.autocast, no scaler), or divide the gradients by a fixed scale in the closure"
        ) from error


def mark_gradients(params: list[Tensor]) -> dict[int, Mark]:
    """Return which gradients are there, and how often they were written to, by parameter."""
    return {id(p): (weakref.ref(p.grad), p.grad._version) for p in params if p.grad is not None}


def is_marked(p: Tensor, marks: Mapping[int, Mark]) -> bool:
    """Tell whether the gradient of `p` is that of its mark, and nothing was added to it."""
    mark, grad = marks.get(id(p)), p.grad
    return bool(mark and grad is not None and mark[0]() is grad and mark[1] == grad._version)


def set_weights(named: Grads, weights: Grads) -> None:
    """Copy weights into parameters; autocast forgets the copies in half precision that it keeps."""
    for name, p in named.items():
        p.copy_(weights[name])
    torch.clear_autocast_cache()


def take_gradient(p: Tensor) -> Tensor:
    """Take the dense gradient off `p`, so that the next pass cannot write into it."""
    grad, p.grad = p.grad, None
    if grad is None:
        return torch.zeros_like(p)
    if grad.is_sparse:
        return grad.to_dense()
    # A view lies in a bucket of DDP's, which the next pass does write into.
    return grad.clone() if grad._is_view() else grad
