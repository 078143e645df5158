"""One setting per (dataset, label noise, method, trial), chosen by validation accuracy or loss."""

import warnings

import numpy as np
import pandas as pd

from softadlib._validation import choose
from softadlib.workbook.studies.schema import LOSSES

CASE = ["dataset", "label_noise"]
"""What methods are compared on."""
SWEEP = [*CASE, "method"]
"""The runs of one grid, of all trials."""
RUN = [*SWEEP, "trial", "knob"]
"""A single run."""


LARGEST_LOSS = 1e3
"""Nats; a run whose loss is larger has diverged. The networks here begin at a few nats and stay below 50."""


def diverged(rows: pd.DataFrame) -> pd.Series:
    """Tell which rows are of a network that has diverged: a loss is not finite, or beyond `LARGEST_LOSS`."""
    return ~(rows[list(LOSSES)] <= LARGEST_LOSS).all(axis=1)


def final(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last epoch of every run; of losses by part one for each part."""
    last = rows.groupby(RUN, dropna=False)["epoch"].transform("max")
    return rows[rows["epoch"] == last].sort_values(RUN, kind="stable", ignore_index=True)


def best(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the row of every run with its lowest validation loss: early stopping.

    Compares all measured epochs except epoch 0. In a study with `best_epoch`, training has already
    compared every epoch and stored the best one. A run whose validation loss was never finite is left
    out. Warns of runs that were measured at their last epoch alone.
    """
    if lack := lacks_best_epochs(rows):
        warnings.warn(lack, stacklevel=2)
    measured = rows[(rows["epoch"] > 0) & np.isfinite(rows["loss_val"])].reset_index(drop=True)
    lowest = measured.groupby(RUN, dropna=False)["loss_val"].idxmin()
    return measured.loc[lowest].sort_values(RUN, ignore_index=True)


def lacks_best_epochs(rows: pd.DataFrame) -> str:
    """Say how many runs were measured at their last epoch alone; "" where best epochs are known.

    `has_best_epoch`, which `results.read` takes from the provenance, tells a run whose best epoch is the
    last one from a run whose best epoch was not looked for. Rows without this column count as the latter.
    """
    rows = rows[rows["epoch"] > 0]
    stored = rows["has_best_epoch"] if "has_best_epoch" in rows else pd.Series(False, rows.index)
    runs = rows.assign(stored=stored).groupby(RUN, dropna=False)
    lacking = (runs["epoch"].nunique() == 1) & ~runs["stored"].all()
    if not lacking.any():
        return ""
    return (
        f"{lacking.sum()} of {len(lacking)} runs were measured at their last epoch alone, which then "
        "is their best; early stopping of every run needs a profile with best_epoch: true"
    )


def select(rows: pd.DataFrame, rule: str = "largest") -> pd.DataFrame:
    """Return the run of each trial that a rule selects by its last validation measures.

    Args:
        rows: a table of runs.
        rule: "largest" and "smallest" take the highest validation accuracy, and among equals the
            largest value of the hyperparameter, as the authors' code does, or the smallest. "loss"
            takes the lowest validation loss.

    Diverged runs are passed over; a trial in which all diverged has no row. Adds `tied`, how many
    runs shared the best measure, and `at_edge`: whether the choice is the first or last value of a
    grid with several.
    """
    choose("rule", rule, RULES)
    measure, best = ("loss_val", "min") if rule == "loss" else ("acc_val", "max")
    # Group by integer codes and keep few columns: a table can have millions of rows.
    ends = rows[["trial", "knob", "epoch", measure]].reset_index(drop=True)
    ends[measure] = ends[measure].where(np.isfinite(ends[measure]))
    ends["case"] = rows.groupby(SWEEP, sort=False).ngroup().to_numpy()
    run = ["case", "trial", "knob"]
    if ends.duplicated(run).any():
        ends = ends.loc[ends.groupby(run, dropna=False)["epoch"].idxmax()]
    group = ["case", "trial"]
    values = ends.groupby(group)["knob"]
    low, high = values.transform("min"), values.transform("max")
    ends["at_edge"] = ((ends["knob"] == low) | (ends["knob"] == high)) & (low < high)
    winners = ends[ends[measure] == ends.groupby(group)[measure].transform(best)]
    winners = winners.assign(tied=winners.groupby(group)[measure].transform("size"))
    winners = winners.sort_values("knob", ascending=rule != "largest", kind="stable")
    winners = winners.drop_duplicates(group)
    facts = {name: winners[name].to_numpy() for name in ("at_edge", "tied")}
    selected = rows.iloc[winners.index].assign(**facts)
    return selected.sort_values([*SWEEP, "trial"], ignore_index=True)


def curves(rows: pd.DataFrame, rule: str = "largest") -> pd.DataFrame:
    """Return the epochs that all selected runs of a case share.

    So a mean over trials is one of the same trials at every epoch. Runs that were not measured along
    the way, from epoch 0 on, are left out where others of their case were; the best epoch of a single
    run is no point of its curve.
    """
    selected = rows.merge(select(rows, rule)[RUN], on=RUN)
    selected["has_curve"] = selected.groupby([*SWEEP, "trial"])["epoch"].transform("min") == 0
    any_has = selected.groupby(CASE)["has_curve"].transform("any")
    selected = selected[selected["has_curve"] == any_has].drop(columns="has_curve")
    runs = selected.groupby([*CASE, "epoch"])["epoch"].transform("size")
    selected = selected[runs == runs.groupby([selected[c] for c in CASE]).transform("max")]
    return selected.sort_values([*SWEEP, "trial", "epoch"], ignore_index=True)


TIES = ("largest", "smallest")
RULES = (*TIES, "loss")
"""Ways to choose a hyperparameter: validation accuracy with either tie, or validation loss."""
