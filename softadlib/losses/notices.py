"""The warnings of the criteria, and the line that they point to."""

import sys
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
    """Warn at the caller's line outside this package and torch; Python 3.11 names a line in here."""
    if sys.version_info >= (3, 12):
        warnings.warn(message, category, skip_file_prefixes=OURS_AND_TORCHS)
    else:
        warnings.warn(message, category, stacklevel=2)
