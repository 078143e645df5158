"""Criteria for anyone's training loop: each takes logits and targets and gives a loss to call `backward` on."""

from softadlib.losses.adaflood import AdaFlood as AdaFlood
from softadlib.losses.base import DistributionWarning as DistributionWarning
from softadlib.losses.distributed import AccumulatedFlooding as AccumulatedFlooding
from softadlib.losses.distributed import gather_losses as gather_losses
from softadlib.losses.flooding import ERM as ERM
from softadlib.losses.flooding import CalibrationWarning as CalibrationWarning
from softadlib.losses.flooding import Flooding as Flooding
from softadlib.losses.flooding import IFlood as IFlood
from softadlib.losses.flooding import SoftAD as SoftAD
from softadlib.losses.levels import cross_entropy_levels as cross_entropy_levels
from softadlib.losses.robust import ChiSquareDRO as ChiSquareDRO
from softadlib.losses.robust import CVaR as CVaR
from softadlib.losses.robust import Tilted as Tilted
