"""Soft ascent-descent, flooding and sharpness-aware training for PyTorch.

The public names are imported on first use, so that `softad --help` does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

# What type checkers and editors read. Each module says in `__all__` what is public.
if TYPE_CHECKING:
    from softadlib import functional as functional
    from softadlib.calibration import *  # noqa: F403
    from softadlib.diagnosis import *  # noqa: F403
    from softadlib.losses import *  # noqa: F403
    from softadlib.monitor import *  # noqa: F403
    from softadlib.optim import *  # noqa: F403
    from softadlib.trainer.train_many import train_many as train_many

__version__ = "0.2.0"
NAMES = {
    "losses": (
        "ERM",
        "AdaFlood",
        "CVaR",
        "CalibrationWarning",
        "ChiSquareDRO",
        "Criterion",
        "Flooding",
        "Focal",
        "IFlood",
        "InertWarning",
        "SoftAD",
        "Tilted",
        "cross_entropy_levels",
        "gather_losses",
        "hf_loss",
    ),
    "optim": ("ASAM", "FDGR", "GNP", "MSAM", "SAM", "SAMTrainerMixin"),
    "calibration": ("expected_calibration_error", "fit_temperature"),
    "diagnosis": ("Diagnosis", "diagnose"),
    "monitor": ("LossMonitor",),
    "trainer.train_many": ("train_many",),
}
"""Module → its public names."""
__all__ = ["__version__", "functional"]
__all__ += [name for names in NAMES.values() for name in names]


def __getattr__(name: str) -> Any:
    if name == "functional" or name in NAMES:
        return importlib.import_module(f".{name}", __name__)
    for module, names in NAMES.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    if name in ("AccumulatedFlooding", "DistributionWarning"):
        raise ImportError(
            f"{name} of 0.2.0 is gone: the page recipes has Flooding in micro-batches"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
