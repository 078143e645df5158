"""A value of theta from one ordinary run, instead of a grid."""

from softadlib.losses.threshold.suggest import Suggestion, suggest_theta

__all__ = ["Suggestion", "suggest_theta"]
