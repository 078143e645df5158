"""Optimizers that step with a gradient taken elsewhere, as SAM does: wrappers of torch.optim optimizers."""

from softadlib.optim.huggingface import SAMTrainerMixin
from softadlib.optim.sam import ASAM, FDGR, GNP, MSAM, SAM

__all__ = ["ASAM", "FDGR", "GNP", "MSAM", "SAM", "SAMTrainerMixin"]
