"""Levels of θ for smoothed cross-entropy: what 0 and ln 2 are to the plain one.

A sample that is classified wrongly has at least the loss `calibrated_below`. Where class j outscores
class k, ℓ_j + ℓ_k is at least twice that. Exchanging the two scores therefore shows that SoftAD and
iFlood prefer the likelier class for every θ below it, as they do for θ < ln 2 with cross-entropy.
"""

import math
from typing import NamedTuple

from softadlib._validation import real, whole


class Levels(NamedTuple):
    """Losses of one sample, in the unit of its loss."""

    minimum: float
    """No score gives less: a θ below it never pushes a sample up."""
    calibrated_below: float
    """Every sample with less is classified rightly: ln 2 for cross-entropy."""
    inverted_from: float = math.inf
    """Every sample with this or more is classified wrongly: ln K for cross-entropy; ∞ if there is none."""


def cross_entropy_levels(classes: int, smoothing: float = 0.0) -> Levels:
    """Return the levels of `nn.CrossEntropyLoss(label_smoothing=smoothing)`, in nats.

    With a = 1 − ε + ε/K and b = ε/K the minimum is the entropy of (a, b, …, b), `calibrated_below`
    that of ((a+b)/2, (a+b)/2, b, …, b); ε = 0 gives 0 and ln 2. `inverted_from` is ln K for ε = 0. A
    smoothed loss has none: it grows without bound on samples that are classified rightly and surely.

    Args:
        classes: K, at least 2.
        smoothing: ε in [0, 1).

    Raises:
        ValueError: for other numbers.

    Example:
        >>> round(cross_entropy_levels(3, 0.1).calibrated_below, 4)
        0.8162
    """
    classes = whole("classes", classes, 2)
    smoothing = real("smoothing", smoothing, low=0, below=1)
    b = smoothing / classes
    a = 1 - smoothing + b
    tie = (a + b) / 2
    rest = (classes - 1) * _entropy(b)
    return Levels(
        minimum=_entropy(a) + rest,
        calibrated_below=2 * _entropy(tie) + rest - _entropy(b),
        inverted_from=math.inf if smoothing else math.log(classes),
    )


def _entropy(share: float) -> float:
    """Return −p·ln p, in nats."""
    return -share * math.log(share) if share else 0.0
