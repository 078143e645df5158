"""Criteria for anyone's training loop: each takes logits and targets and gives a loss to call `backward` on."""

from typing import Any

from softadlib._validation import choose
from softadlib.losses.adaflood import AdaFlood as AdaFlood
from softadlib.losses.base import CalibrationWarning as CalibrationWarning
from softadlib.losses.base import DistributionWarning as DistributionWarning
from softadlib.losses.base import InertWarning as InertWarning
from softadlib.losses.base import PerSampleCriterion
from softadlib.losses.distributed import AccumulatedFlooding as AccumulatedFlooding
from softadlib.losses.distributed import gather_losses as gather_losses
from softadlib.losses.flooding import ERM as ERM
from softadlib.losses.flooding import Flooding as Flooding
from softadlib.losses.flooding import Focal as Focal
from softadlib.losses.flooding import IFlood as IFlood
from softadlib.losses.flooding import SoftAD as SoftAD
from softadlib.losses.huggingface import hf_loss as hf_loss
from softadlib.losses.levels import cross_entropy_levels as cross_entropy_levels
from softadlib.losses.robust import ChiSquareDRO as ChiSquareDRO
from softadlib.losses.robust import CVaR as CVaR
from softadlib.losses.robust import Tilted as Tilted
from softadlib.losses.theta_schedule import ThetaSchedule as ThetaSchedule

_BY_NAME: dict[str, type[PerSampleCriterion]] = {
    "erm": ERM,
    "flooding": Flooding,
    "iflood": IFlood,
    "softad": SoftAD,
    "adaflood": AdaFlood,
    "focal": Focal,
    "cvar": CVaR,
    "chi2": ChiSquareDRO,
    "tilted": Tilted,
    "accumulated_flooding": AccumulatedFlooding,
}


def list_criteria() -> list[str]:
    """Return the names that `get_criterion` knows.

    >>> list_criteria()[:4]
    ['erm', 'flooding', 'iflood', 'softad']
    """
    return list(_BY_NAME)


def get_criterion(name: str, **settings: Any) -> PerSampleCriterion:
    """Return the criterion of a name with its settings, as for a configuration file.

    ValueError for another name. The classes say what each setting is.

    >>> get_criterion("softad", theta=0.1).theta
    0.1
    """
    choose("criterion", name, _BY_NAME)
    return _BY_NAME[name](**settings)
