"""Optimizers that evaluate the gradient more than once a step: wrappers of any torch.optim optimizer."""

from softadlib.optim.huggingface import SAMTrainerMixin as SAMTrainerMixin
from softadlib.optim.sharpness import ASAM as ASAM
from softadlib.optim.sharpness import FDGR as FDGR
from softadlib.optim.sharpness import GNP as GNP
from softadlib.optim.sharpness import MSAM as MSAM
from softadlib.optim.sharpness import SAM as SAM
