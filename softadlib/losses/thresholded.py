"""Criteria with one θ for all samples: θ itself, its place in a state, and the bounds to keep θ within.

Why a warning from `calibrated_below` on, ln 2 for cross-entropy: a sample that is classified wrongly
has at least this loss, and two classes j and k have ℓ_j + ℓ_k of at least twice it. For a smaller θ
SoftAD and iFlood therefore give the likelier class the higher score: exchanging the scores of two
classes in the wrong order lowers the risk.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softadlib._validation import real, warn, whole
from softadlib.functional.reduction import Weights
from softadlib.losses.base import Base, BaseLoss, class_axis
from softadlib.losses.criterion import Criterion


class InertWarning(UserWarning):
    """θ lies below the smallest loss that smoothed targets allow: no sample ever ascends."""


class CalibrationWarning(UserWarning):
    """θ is so high that the criterion's minimiser may predict a class that is not the likeliest."""


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


def _bounds_of(base: BaseLoss) -> Levels | None:
    """Return the levels where a loss is −ln q of its target, in nats; None of other losses.

    Class weights leave it so, because they weigh whole samples; weights inside a binary loss do not.
    """
    is_cross_entropy = base.of_classes or base.of_one_logit or base.of_one_probability
    inside = (getattr(base.loss, name, None) for name in ("weight", "pos_weight"))
    if not is_cross_entropy or base.label_smoothing or any(w is not None for w in inside):
        return None
    return Levels(minimum=0.0, calibrated_below=math.log(2))


class Thresholded(Criterion):
    """A criterion with one level θ for all samples, which may be assigned and is in `state_dict`."""

    settings: tuple[str, ...] = ("theta",)

    def __init__(self, theta: float, *, base: Base | None = None, reduction: str = "mean"):
        super().__init__(base, reduction=reduction)
        self._warned: set[type[Warning]] = set()
        self._bounds = _bounds_of(self.base)
        """Bounds of θ, None if unknown; those of a smoothed base are known from the first batch on."""
        # As a number: nn.Module registers a Parameter before the setter could refuse it.
        self.theta = real("theta", theta)

    @property
    def theta(self) -> float:
        """The level, in the unit of the loss: nats for cross-entropy."""
        return self._theta

    @theta.setter
    def theta(self, value: float) -> None:
        self._theta = real("theta", value)
        self._check_theta()

    def _check_first_batch(self, input: Any, target: Any, sample_weight: Weights) -> None:
        super()._check_first_batch(input, target, sample_weight)
        if not 0 < self.base.label_smoothing < 1 or target.is_floating_point():
            return
        classes = input.shape[class_axis(input)]
        if classes > 1:
            self._bounds = cross_entropy_levels(classes, self.base.label_smoothing)
            self._check_theta()

    def _check_theta(self) -> None:
        """Warn once of a θ from which on a wrong class wins, and once of one that no loss falls below."""
        bounds = self._bounds
        if bounds is None:
            return
        # Only an additive criterion holds every sample at θ; Flooding holds the mean loss there.
        if self.additive and self.theta >= bounds.calibrated_below:
            self._warn_once(
                f"from theta = {bounds.calibrated_below:.4f} on the criterion's minimiser may predict "
                "the wrong class; use a smaller theta",
                CalibrationWarning,
            )
        elif 0 < self.theta < bounds.minimum:  # θ ≤ 0 lets no loss ascend, smoothed or not
            self._warn_once(
                f"no loss of smoothed targets is below {bounds.minimum:.4f}, so that nothing ever "
                f"ascends; try theta = {bounds.minimum + self.theta:.4f}, as far above that",
                InertWarning,
            )

    def _warn_once(self, message: str, category: type[Warning]) -> None:
        if category not in self._warned:
            self._warned.add(category)
            warn(f"{type(self).__name__}(theta={self.theta:g}): {message}", category)

    def get_extra_state(self) -> Tensor:
        """Return θ, so that a checkpoint holds it; called by `state_dict`."""
        return torch.tensor(self.theta, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Set θ; called by `load_state_dict`."""
        self.theta = state.item()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        # A checkpoint of a network that had nn.CrossEntropyLoss() holds no θ: this one stays.
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *others)
