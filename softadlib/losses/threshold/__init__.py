"""A value of theta from one ordinary run, and temperature scaling, the remedy without training."""

from softadlib.losses.threshold.calibration import expected_calibration_error, fit_temperature
from softadlib.losses.threshold.minimiser import excess_loss
from softadlib.losses.threshold.suggest import Suggestion, suggest_theta

__all__ = [
    "Suggestion",
    "excess_loss",
    "expected_calibration_error",
    "fit_temperature",
    "suggest_theta",
]
