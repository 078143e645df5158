"""Criteria: each takes logits and targets, and returns a loss to call `backward()` on."""

from softadlib.losses.adaflood import AdaFlood
from softadlib.losses.criterion import Criterion
from softadlib.losses.huggingface import hf_loss
from softadlib.losses.robust import ChiSquareDRO, CVaR, Tilted, gather_losses
from softadlib.losses.softad import ERM, Flooding, Focal, IFlood, SoftAD
from softadlib.losses.thresholded import CalibrationWarning, InertWarning, cross_entropy_levels

__all__ = [
    "ERM",
    "AdaFlood",
    "CVaR",
    "CalibrationWarning",
    "ChiSquareDRO",
    "Criterion",
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
