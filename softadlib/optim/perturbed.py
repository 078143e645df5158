"""Whether losses are computed at perturbed weights, so that the hooks of a criterion can skip them.

An optimizer such as SAM evaluates each batch twice, and a monitor should count it once. A mark holds
for the current thread alone.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.perturbed_passes = 0
        self.perturbed_optimizers: weakref.WeakSet[object] = weakref.WeakSet()


_this_thread = _ThisThread()


@contextlib.contextmanager
def perturbed_pass() -> Iterator[None]:
    """Mark all losses that this thread computes inside the context.

    >>> with perturbed_pass():
    ...     in_perturbed_pass()
    True
    """
    _this_thread.perturbed_passes += 1
    try:
        yield
    finally:
        _this_thread.perturbed_passes -= 1


def start_perturbed(optimizer: object) -> None:
    """Mark all losses of this thread, until `end_perturbed` or the end of `optimizer`."""
    _this_thread.perturbed_optimizers.add(optimizer)


def end_perturbed(optimizer: object) -> None:
    """Take back the mark of `start_perturbed`."""
    _this_thread.perturbed_optimizers.discard(optimizer)


def in_perturbed_pass() -> bool:
    """Tell whether this thread is at perturbed weights.

    >>> in_perturbed_pass()
    False
    """
    return bool(_this_thread.perturbed_passes or _this_thread.perturbed_optimizers)
