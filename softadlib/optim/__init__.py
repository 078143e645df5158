"""Optimizers that step with a gradient taken elsewhere, as SAM does: wrappers of torch.optim optimizers."""

from softadlib.optim.huggingface import SAMTrainerMixin as SAMTrainerMixin
from softadlib.optim.sam import ASAM as ASAM
from softadlib.optim.sam import FDGR as FDGR
from softadlib.optim.sam import GNP as GNP
from softadlib.optim.sam import MSAM as MSAM
from softadlib.optim.sam import SAM as SAM
