"""Soft ascent-descent, flooding and sharpness-aware training for PyTorch."""

from . import functional
from .bases import DistributionWarning
from .contrasts import ChiSquareDRO, CVaR, Tilted
from .losses import ERM, AdaFlood, CalibrationWarning, Flooding, IFlood, SoftAD
from .optimizers import ASAM, FDGR, GNP, SAM
from .parts import FloodingParts, gathered
from .threshold import suggest_theta

__version__ = "0.1.0"
__all__ = [
    "ASAM",
    "ERM",
    "FDGR",
    "GNP",
    "SAM",
    "AdaFlood",
    "CVaR",
    "CalibrationWarning",
    "ChiSquareDRO",
    "DistributionWarning",
    "Flooding",
    "FloodingParts",
    "IFlood",
    "SoftAD",
    "Tilted",
    "__version__",
    "functional",
    "gathered",
    "suggest_theta",
]
