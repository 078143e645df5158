"""Names, order and types of the columns of the metrics table, and the key of a run."""

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from softadlib.trainer.evaluation import FITS, MEASURES

if TYPE_CHECKING:
    import pandas as pd

LOSSES = ("loss_train", "loss_val", "loss_test")
COLUMNS = ("dataset", "method", "trial", "knob", "epoch", *MEASURES)
"""One row is one run at one epoch."""
ALL_COLUMNS = [*COLUMNS[:3], "label_noise", *COLUMNS[3:]]
RUN_KEY = ["label_noise", "trial", "knob"]
"""Columns that tell the runs of one dataset and method apart."""
ROW_ORDER = ["dataset", "method", *RUN_KEY, "epoch"]
"""Columns that identify a row, in the order in which a table is sorted."""
_OTHER_TYPES = {"dataset": "str", "method": "str", "trial": "int64", "epoch": "int64"}
DTYPES = {column: _OTHER_TYPES.get(column, "float64") for column in ALL_COLUMNS}
"""The pandas type of every column."""
LINKED = ["linked_loss", "linked_ece", "linked_best_epoch", "linked_best_loss", "linked_best_ece"]
"""Columns of losses of a profile with `linked`, of methods with class probabilities in closed form.

`linked_loss` and `linked_ece` are loss and calibration error of these probabilities.
`linked_best_loss` and `linked_best_ece` are the same at epoch `linked_best_epoch`, where the validation
loss of these probabilities is lowest; they are in the row of the last epoch. Files that were written
before these columns existed have NaN.
"""
CALIBRATION = [
    "ece",
    *(f"{fit}_{value}" for fit in FITS for value in ("temperature", "loss", "ece")),
    *LINKED,
]
"""Columns of losses that hold numbers at the last epoch, and at the best with `best_epoch`; NaN elsewhere."""
LOSS_ROW = ["dataset", "method", *RUN_KEY, "epoch", "part"]
"""Columns that identify a row of losses, in the order in which they are sorted."""
LOSS_COLUMNS = [*LOSS_ROW, "samples", "loss", "quantiles", *CALIBRATION]
"""One row is one run at one epoch on one part of the data."""
LOSS_DTYPES = {c: DTYPES.get(c, "float64") for c in LOSS_COLUMNS if c != "quantiles"}
LOSS_DTYPES |= {"part": "str", "samples": "int64"}


class RunKey(NamedTuple):
    """Identity of a run within one dataset and method."""

    label_noise: float
    trial: int
    knob: float | None
    """None for a method without a knob: in a table that is NaN, which equals nothing."""

    @classmethod
    def from_values(cls, label_noise: float, trial: int, knob: float) -> "RunKey":
        """Make the key of one row of a table."""
        return cls(label_noise, int(trial), None if math.isnan(knob) else knob)


def run_keys(rows: "pd.DataFrame") -> list[RunKey]:
    """Return the key of every row."""
    return [RunKey.from_values(*row) for row in rows[RUN_KEY].itertuples(index=False)]


def measured_runs(rows: "pd.DataFrame", epochs: Collection[int]) -> set[RunKey]:
    """Return the keys of the runs that have a row of every one of `epochs`."""
    if rows.empty:
        return set()
    wanted = rows[rows["epoch"].isin(epochs)]
    counts = wanted.groupby(RUN_KEY, dropna=False, as_index=False)["epoch"].nunique()
    return set(run_keys(counts[counts["epoch"] == len(epochs)]))
