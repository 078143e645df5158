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
        IFlood,
        SoftAD,
        Tilted,
        cross_entropy_levels,
        gather_losses,
    )
    from softadlib.optim import ASAM, FDGR, GNP, MSAM, SAM

__version__ = "0.2.0"
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
    "IFlood",
    "SoftAD",
    "Tilted",
    "__version__",
    "cross_entropy_levels",
    "expected_calibration_error",
    "fit_temperature",
    "functional",
    "gather_losses",
]


_HOMES = {
    ".optim": ("ASAM", "FDGR", "GNP", "MSAM", "SAM"),
    ".calibration": ("expected_calibration_error", "fit_temperature"),
}
"""Where names are that are not in `losses`."""


def __getattr__(name: str) -> Any:
    if name in ("functional", "losses", "optim"):
        return importlib.import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), ".losses")
    value = getattr(importlib.import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
