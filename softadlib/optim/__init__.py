"""Optimizers that step with a gradient taken elsewhere, as SAM does: wrappers of torch.optim optimizers."""

from softadlib.optim.huggingface import SAMTrainerMixin
from softadlib.optim.rules import FDGR, GNP, MSAM
from softadlib.optim.sam import ASAM, SAM

__all__ = ["ASAM", "FDGR", "GNP", "MSAM", "SAM", "SAMTrainerMixin"]
