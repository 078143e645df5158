"""Criteria for anyone's training loop: each takes logits and targets and gives a loss to call `backward` on."""

from .base import DistributionWarning
from .distributed import AccumulatedFlooding, gather_losses
from .flooding import ERM, AdaFlood, CalibrationWarning, Flooding, IFlood, SoftAD
from .levels import cross_entropy_levels
from .robust import ChiSquareDRO, CVaR, Tilted

__all__ = [
    "ERM",
    "AccumulatedFlooding",
    "AdaFlood",
    "CVaR",
    "CalibrationWarning",
    "ChiSquareDRO",
    "DistributionWarning",
    "Flooding",
    "IFlood",
    "SoftAD",
    "Tilted",
    "cross_entropy_levels",
    "gather_losses",
]
