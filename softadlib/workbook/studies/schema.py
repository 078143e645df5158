"""Names, order and types of the columns of a table of results, and the key of a run.

A row is one run at one measured epoch. `knob` is the value of the method's hyperparameter.
Measures of one split of the data have its name at their end: `loss_test`, `ece_val`, `quantiles_train`.
"""

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from softadlib.trainer.evaluation import FITS, MEASURES
from softadlib.trainer.splits import PARTS

if TYPE_CHECKING:
    import pandas as pd

LOSSES = ("loss_train", "loss_val", "loss_test")
RUN_KEY = ["label_noise", "trial", "knob"]
"""Columns that tell the runs of one dataset and method apart."""
ROW_ORDER = ["dataset", "method", *RUN_KEY, "epoch"]
"""Columns that identify a row, in the order in which a table is sorted."""
ALL_COLUMNS = ["dataset", "method", "trial", "label_noise", "knob", "epoch", *MEASURES]
"""Columns of every row."""
CLOSED_FORM = ["linked_loss", "linked_ece"]
"""Loss and calibration error of the class probabilities in closed form, of a profile with `closed_form`."""
CLOSED_FORM_BEST = ["linked_best_epoch", "linked_best_loss", "linked_best_ece"]
"""The same at the epoch of their own lowest validation loss, in the row of the last epoch.

Files of profile `link` hold these columns. They are not measured any more.
"""
CALIBRATION = [
    "ece",
    *(f"{fit}_{value}" for fit in FITS for value in ("temperature", "loss", "ece")),
    *CLOSED_FORM,
    *CLOSED_FORM_BEST,
]
"""Measures that have numbers at the last epoch, and at the best with `best_epoch`; NaN elsewhere."""
SINGLE_LOSSES = ["samples", "loss", "quantiles", *CALIBRATION]
"""Measures of single samples' losses and of calibration: a number for each split, or for all of them."""
OF_ALL_SPLITS = ("plain_temperature", "prior_temperature", "linked_best_epoch")
"""Of these, the ones that are the same on every split."""


def columns_of(measure: str) -> list[str]:
    """Return the columns that hold one of `SINGLE_LOSSES`; the mean of `loss` goes as `mean_loss`."""
    if measure in OF_ALL_SPLITS:
        return [measure]
    name = "mean_loss" if measure == "loss" else measure  # `loss_test` is a measure of every row
    return [f"{name}_{split}" for split in PARTS]


LOSS_COLUMNS = [column for measure in SINGLE_LOSSES for column in columns_of(measure)]
"""Columns of the rows at which losses of single samples were measured; NaN in the others."""
HAS_LOSSES = columns_of("samples")[0]
"""The column that is filled in exactly these rows."""
_OTHER_TYPES = {"dataset": "str", "method": "str", "trial": "int64", "epoch": "int64"}
DTYPES = {column: _OTHER_TYPES.get(column, "float64") for column in (*ALL_COLUMNS, *LOSS_COLUMNS)}
"""The pandas type of every column."""
DTYPES |= dict.fromkeys(columns_of("quantiles"), "object")


class RunKey(NamedTuple):
    """Identity of a run within one dataset and method."""

    label_noise: float
    trial: int
    knob: float | None
    """None for a method without a hyperparameter: in a table that is NaN, which equals nothing."""

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
