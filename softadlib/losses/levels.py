"""What ln 2 is to cross-entropy, for other losses: levels of θ beyond which the minimiser goes wrong.

A sample that is classified wrongly has at least the loss `right_below`; and where class j outscores
class k, ℓ_j + ℓ_k is at least twice that. Exchanging the two scores therefore shows that SoftAD and
iFlood prefer the likelier class for every θ below it, as they do for θ < ln 2 with cross-entropy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Levels:
    """Losses of one sample, in the units of its loss."""

    least: float
    """No score gives less: below it nothing is ever pushed up."""
    right_below: float
    """Every sample with less is classified rightly: the place of ln 2."""
    wrong_from: float
    """Every sample with this or more is classified wrongly: the place of ln K; ∞ if there is none."""
    equal: float
    """Loss of equal scores, about where training starts."""


def _entropy(*parts: tuple[float, float]) -> float:
    """−Σ count·p·ln p, in nats, for pairs (count, p)."""
    return sum(count * p * -math.log(p) for count, p in parts if count and p)


def cross_entropy_levels(classes: int, smoothing: float = 0.0) -> Levels:
    """Levels of `nn.CrossEntropyLoss(label_smoothing=smoothing)`, in nats.

    With a = 1 − ε + ε/K and b = ε/K the least loss is the entropy of (a, b, …, b) and `right_below`
    that of ((a+b)/2, (a+b)/2, b, …, b); ε = 0 gives 0 and ln 2. `wrong_from` is ln K for ε = 0; a
    smoothed loss grows without end on samples that are classified rightly and surely.
    """
    if classes < 2 or not 0 <= smoothing < 1:
        raise ValueError(
            f"need at least 2 classes and smoothing in [0, 1), got {classes} and {smoothing}"
        )
    b = smoothing / classes
    a = 1 - smoothing + b
    least, tied = _entropy((1, a), (classes - 1, b)), _entropy((2, (a + b) / 2), (classes - 2, b))
    equal = math.log(classes)
    return Levels(least, tied, math.inf if smoothing else equal, equal)


def hinge_levels(classes: int, margin: float = 1.0) -> Levels:
    """Levels of `nn.MultiMarginLoss(margin=margin)`, Σ_{i≠y} max(0, margin − x_y + x_i)/K.

    Classified wrongly, one of the K − 1 terms is at least the margin; rightly, all are below it.
    """
    if classes < 2 or margin <= 0:
        raise ValueError(
            f"need at least 2 classes and a positive margin, got {classes} and {margin}"
        )
    equal = margin * (classes - 1) / classes
    return Levels(0.0, margin / classes, equal, equal)


def _gaussian(sd: float, points: int = 4001) -> tuple[Tensor, Tensor]:
    """Values of Gaussian noise, evenly spaced to 8 sd, and their probabilities."""
    z = torch.linspace(-8, 8, points, dtype=torch.float64)
    density = torch.exp(-z.square() / 2)
    return sd * z, density / density.sum()


def bias(criterion: Criterion, sd: float = 1.0, most: float = 3.0) -> float:
    """The b in [0, `most`·sd] that minimises E criterion(b + u, 0) for noise u of N(0, sd²).

    What a regression does at a point where it has all data: 0 is the conditional mean. `criterion`
    takes (input, target) and gives one value per sample (`reduction="none"`).
    """
    noise, weight = _gaussian(sd)
    shifts = torch.linspace(0, most * sd, 301, dtype=torch.float64)
    input = shifts[:, None] + noise
    risk = (criterion(input, torch.zeros_like(input)) * weight).sum(1)
    return shifts[risk.argmin()].item()


def unbiased_below(
    make: Callable[[float], Criterion], sd: float = 1.0, most: float = 20.0
) -> float:
    """The θ at which the conditional mean stops being a minimum of E make(θ)(b + u, 0), u of N(0, sd²).

    Found where the second derivative in b, E f(u)·(u²/sd² − 1)/sd², changes sign. Squared error:
    iFlood sd² times the median of χ² with 3 degrees of freedom, 2.366; SoftAD 3·sd² as σ → ∞.
    """
    noise, weight = _gaussian(sd)
    against = weight * ((noise / sd).square() - 1)

    def curvature(theta: float) -> float:
        return (make(theta)(noise, torch.zeros_like(noise)) * against).sum().item()

    low, high = 0.0, most * sd**2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if curvature(middle) > 0 else (low, middle)
    return low
