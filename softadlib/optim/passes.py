"""Pieces of a step that takes gradients at several weights: run the closure, move, read the gradients."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from softadlib.functional.gradient_rules import Grads

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of batch norm and instance norm that a pass in training mode updates."""


def run_closure(closure: Callable[[], Tensor], params: Iterable[Tensor], caller: str) -> Tensor:
    """Run the closure with gradients enabled and return its loss.

    Raises RuntimeError if it adds to the gradients of an earlier `backward()`, as a loop that
    accumulates micro-batches outside of the closure does.
    """
    with torch.enable_grad():
        watched = next((p for p in params if p.requires_grad and p.grad is not None), None)
        if watched is None:
            return closure()
        earlier = watched.grad
        # At each backward, before it adds its gradient, and at the end:
        still_there: list[bool] = []

        def look(_: Tensor | None = None) -> None:
            is_there = watched.grad is earlier and bool(dense_gradient(watched).any())
            still_there.append(is_there)

        hook = watched.register_hook(look)
        try:
            loss = closure()
        finally:
            hook.remove()
        look()
    if still_there[0]:
        raise RuntimeError(
            f"{caller}.step found gradients of an earlier backward(): in the closure call "
            "optimizer.zero_grad() first, and every micro-batch's backward() "
            "(in Lightning accumulate_grad_batches=1)"
        )
    return loss


class MovedWeights(contextlib.AbstractContextManager["MovedWeights"]):
    """Parameters at other values, until `come_back` or the end of the context.

    They are restored from a copy, since subtracting the perturbation would round. The tensors are
    taken out of `point`, so that this is the only extra copy of the weights.

    Args:
        params: the parameters by name.
        point: the values of those that move, by name.
        buffers: further tensors to restore.
    """

    def __init__(self, params: Grads, point: Grads, buffers: Iterable[Tensor] = ()):
        self.before = [(buffer, buffer.clone()) for buffer in buffers]
        try:
            for name in list(point):
                p = params[name]
                self.before.append((p, p.clone()))
                p.copy_(point.pop(name))
            torch.clear_autocast_cache()  # it holds the weights in half precision
        except BaseException:
            self.come_back()
            raise

    def come_back(self) -> None:
        for tensor, value in self.before:
            tensor.copy_(value)
        self.before.clear()
        torch.clear_autocast_cache()

    def __exit__(self, *error: object) -> None:
        self.come_back()


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the running statistics of the normalisation layers of `model`."""
    return [b for name, b in model.named_buffers() if name.rpartition(".")[2] in STATISTICS]


def dense(tensor: Tensor) -> Tensor:
    """Return `tensor`, dense if it is sparse."""
    return tensor.to_dense() if tensor.is_sparse else tensor


def dense_gradient(p: Tensor) -> Tensor:
    """Return the gradient of `p` as a dense tensor; zeros where there is none."""
    return torch.zeros_like(p) if p.grad is None else dense(p.grad)


def unscaled(params: Grads, scaler: Any) -> Grads:
    """Return the gradients of `params`, dense and without the factor of a GradScaler, by name."""
    grads = {name: dense_gradient(p) for name, p in params.items()}
    if scaler is None:
        return grads
    scale = scaler.get_scale()
    return {name: grad / scale for name, grad in grads.items()}


def all_finite(grads: Grads) -> bool:
    """Tell whether no gradient overflowed. Waits for the device once."""
    finite = [grad.isfinite().all() for grad in grads.values()]
    return bool(torch.stack([one.to(finite[0].device) for one in finite]).all())
