"""Which losses come from perturbed weights, so that the hooks of a criterion can skip them.

An optimizer such as SAM evaluates each batch twice, and a monitor should count it once. A mark holds
for the current thread alone.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator

from torch import Tensor


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.perturbed_passes = 0
        self.between_halves: weakref.WeakKeyDictionary[object, list[Tensor]] = (
            weakref.WeakKeyDictionary()
        )


_this_thread = _ThisThread()


@contextlib.contextmanager
def perturbed_pass() -> Iterator[None]:
    """Mark all losses that this thread computes inside the context.

    >>> import torch
    >>> with perturbed_pass():
    ...     in_perturbed_pass(torch.ones(3))
    True
    """
    _this_thread.perturbed_passes += 1
    try:
        yield
    finally:
        _this_thread.perturbed_passes -= 1


def start_perturbed(optimizer: object, params: Iterable[Tensor]) -> None:
    """Mark the losses that depend on `params`, until `end_perturbed` or the end of `optimizer`.

    Between `first_step` and `second_step` the loop may do anything else, such as train another
    model. So losses are marked by what they depend on, and not by when they are computed. FSDP2
    computes with copies of its parameters, whose losses stay unmarked.
    """
    _this_thread.between_halves[optimizer] = list(params)


def end_perturbed(optimizer: object) -> None:
    """Take back the mark of `start_perturbed`."""
    _this_thread.between_halves.pop(optimizer, None)


def in_perturbed_pass(losses: Tensor) -> bool:
    """Tell whether `losses` are computed at perturbed weights.

    >>> import torch
    >>> in_perturbed_pass(torch.ones(3))
    False
    """
    if _this_thread.perturbed_passes:
        return True
    moved = {id(p) for params in _this_thread.between_halves.values() for p in params}
    return bool(moved) and _depends_on(losses, moved)


def _depends_on(losses: Tensor, ids: set[int]) -> bool:
    """Tell whether the graph of `losses` leads to a parameter with one of the `ids`."""
    nodes = [losses.grad_fn]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in ids:  # the node of a leaf
            return True
        nodes.extend(parent for parent, _ in node.next_functions)
    return False
