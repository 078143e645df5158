"""Optimizers that evaluate the gradient more than once a step: wrappers of any torch.optim optimizer."""

from .sharpness import ASAM, FDGR, GNP, SAM

__all__ = ["ASAM", "FDGR", "GNP", "SAM"]
