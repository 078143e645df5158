"""Soft ascent-descent, flooding and sharpness-aware training for PyTorch."""

from . import functional
from .losses import ERM, CalibrationWarning, Flooding, IFlood, SoftAD
from .optimizers import SAM

__version__ = "0.1.0"
__all__ = [
    "ERM",
    "SAM",
    "CalibrationWarning",
    "Flooding",
    "IFlood",
    "SoftAD",
    "__version__",
    "functional",
]
