"""Optimizers that evaluate the gradient more than once a step: wrappers of any torch.optim optimizer."""

from .sharpness import ASAM as ASAM
from .sharpness import FDGR as FDGR
from .sharpness import GNP as GNP
from .sharpness import SAM as SAM
