"""Soft ascent-descent, flooding and sharpness-aware training for PyTorch.

The public names are imported on first use, so that `softad --help` does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softadlib import functional
    from softadlib.calibration import expected_calibration_error, fit_temperature
    from softadlib.losses import (
        ERM,
        AccumulatedFlooding,
        AdaFlood,
        CalibrationWarning,
        ChiSquareDRO,
        CVaR,
        DistributionWarning,
        Flooding,
        Focal,
        IFlood,
        InertWarning,
        SoftAD,
        ThetaSchedule,
        Tilted,
        cross_entropy_levels,
        gather_losses,
        get_criterion,
        hf_loss,
        list_criteria,
    )
    from softadlib.monitor import LossMonitor
    from softadlib.optim import ASAM, FDGR, GNP, MSAM, SAM, SAMTrainerMixin

__version__ = "0.2.0"
_HOMES = {
    ".optim": ("ASAM", "FDGR", "GNP", "MSAM", "SAM", "SAMTrainerMixin"),
    ".calibration": ("expected_calibration_error", "fit_temperature"),
    ".monitor": ("LossMonitor",),
    ".training.many": ("train_many",),  # not in `__all__`: it needs the workbook's packages
}
"""Where names are that are not in `losses`."""
__all__ = [
    "ASAM",
    "ERM",
    "FDGR",
    "GNP",
    "MSAM",
    "SAM",
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
    "LossMonitor",
    "SAMTrainerMixin",
    "SoftAD",
    "ThetaSchedule",
    "Tilted",
    "__version__",
    "cross_entropy_levels",
    "expected_calibration_error",
    "fit_temperature",
    "functional",
    "gather_losses",
    "get_criterion",
    "hf_loss",
    "list_criteria",
]


def __getattr__(name: str) -> Any:
    if name in ("functional", "losses", "optim", "calibration", "monitor"):
        return importlib.import_module(f".{name}", __name__)
    home = next((home for home, names in _HOMES.items() if name in names), ".losses")
    if home == ".losses" and name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home, __name__), name)
    except ModuleNotFoundError as error:
        if home != ".training.many":
            raise
        raise ImportError(
            f"train_many needs {error.name}; run in a clone of it: pip install '.[workbook]'"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "train_many"})
