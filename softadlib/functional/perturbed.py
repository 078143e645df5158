"""Whether this thread is in a later pass of an optimizer such as SAM, at weights that are not the model's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from softadlib.functional.gradient_rules import PERTURBED

_PASSES = threading.local()


@contextmanager
def perturbed_pass() -> Iterator[None]:
    """Mark what this thread does inside as a pass at perturbed weights.

    >>> with perturbed_pass():
    ...     in_perturbed_pass()
    True
    """
    _PASSES.depth = getattr(_PASSES, "depth", 0) + 1
    try:
        yield
    finally:
        _PASSES.depth -= 1


def in_perturbed_pass() -> bool:
    """Tell whether this thread is inside a `perturbed_pass`; monitors pass over its batches.

    >>> in_perturbed_pass()
    False
    """
    return getattr(_PASSES, "depth", 0) > 0 or bool(PERTURBED)
