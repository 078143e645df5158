"""Criteria: each takes logits and targets, and returns a loss to call `backward()` on."""

from typing import Any

from softadlib._validation import choose
from softadlib.losses.adaflood import AdaFlood
from softadlib.losses.criterion import PerSampleCriterion
from softadlib.losses.distributed import AccumulatedFlooding, gather_losses
from softadlib.losses.huggingface import hf_loss
from softadlib.losses.levels import cross_entropy_levels
from softadlib.losses.notices import CalibrationWarning, DistributionWarning, InertWarning
from softadlib.losses.robust import ChiSquareDRO, CVaR, Tilted
from softadlib.losses.softad import ERM, Flooding, Focal, IFlood, SoftAD

__all__ = [
    "ERM",
    "AccumulatedFlooding",
    "AdaFlood",
    "CVaR",
    "CalibrationWarning",
    "ChiSquareDRO",
    "DistributionWarning",
    "Flooding",
    "Focal",
    "IFlood",
    "InertWarning",
    "SoftAD",
    "Tilted",
    "cross_entropy_levels",
    "gather_losses",
    "get_criterion",
    "hf_loss",
    "list_criteria",
]

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
    """Return the criterion with this name and these settings, for a configuration file.

    Raises ValueError for an unknown name. The classes say what each setting is.

    >>> get_criterion("softad", theta=0.1).theta
    0.1
    """
    choose("criterion", name, _BY_NAME)
    return _BY_NAME[name](**settings)
