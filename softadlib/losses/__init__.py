"""Criteria for anyone's training loop: each takes logits and targets and gives a loss to call `backward` on."""

from .base import DistributionWarning as DistributionWarning
from .distributed import AccumulatedFlooding as AccumulatedFlooding
from .distributed import gather_losses as gather_losses
from .flooding import ERM as ERM
from .flooding import AdaFlood as AdaFlood
from .flooding import CalibrationWarning as CalibrationWarning
from .flooding import Flooding as Flooding
from .flooding import IFlood as IFlood
from .flooding import SoftAD as SoftAD
from .levels import cross_entropy_levels as cross_entropy_levels
from .robust import ChiSquareDRO as ChiSquareDRO
from .robust import CVaR as CVaR
from .robust import Tilted as Tilted
