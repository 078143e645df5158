"""Criteria: each takes logits and targets, and returns a loss to call `backward()` on."""

from softadlib.losses.adaflood import AdaFlood
from softadlib.losses.distributed import AccumulatedFlooding, gather_losses
from softadlib.losses.huggingface import hf_loss
from softadlib.losses.levels import cross_entropy_levels
from softadlib.losses.notices import CalibrationWarning, DistributionWarning, InertWarning
from softadlib.losses.robust import ChiSquareDRO, CVaR, Tilted
from softadlib.losses.softad import ERM, Flooding, Focal, IFlood, SoftAD

__all__ = [
    "ERM",
    "AccumulatedFlooding",
    "AdaFlood",
    "CVaR",
    "CalibrationWarning",
    "ChiSquareDRO",
    "DistributionWarning",
    "Flooding",
    "Focal",
    "IFlood",
    "InertWarning",
    "SoftAD",
    "Tilted",
    "cross_entropy_levels",
    "gather_losses",
    "hf_loss",
]
