"""The warnings of the criteria, and the line that they point to."""

import inspect
import warnings
from pathlib import Path

import torch

OURS_AND_TORCHS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))


class DistributionWarning(UserWarning):
    """The criterion is a function of the whole batch, and this process sees a part of it.

    Given by Flooding, CVaR, ChiSquareDRO and Tilted in a process group of several processes.
    """


class InertWarning(UserWarning):
    """θ lies below the smallest loss that smoothed or mixed targets allow: no sample ever ascends."""


class CalibrationWarning(UserWarning):
    """θ is so high that the minimiser of cross-entropy may predict a class that is not the likeliest."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the caller's line outside this package and torch."""
    # From Python 3.12 on, skip_file_prefixes=OURS_AND_TORCHS does the same.
    level = 1
    frame = inspect.currentframe()
    while frame and frame.f_back and frame.f_code.co_filename.startswith(OURS_AND_TORCHS):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
