"""One setting per (dataset, label noise, method, trial), chosen by validation accuracy."""

import pandas as pd

from .errors import choose
from .protocol import TIES

CASE = ["dataset", "label_noise", "method"]


def final(rows: pd.DataFrame) -> pd.DataFrame:
    """The last row of every run: its highest epoch."""
    runs = [*CASE, "trial", "knob"]
    return rows.loc[rows.groupby(runs, dropna=False)["epoch"].idxmax()].sort_values(
        runs, ignore_index=True
    )


def select(rows: pd.DataFrame, ties: str = "largest") -> pd.DataFrame:
    """The run of each trial with the highest final validation accuracy.

    `ties`: among equals take the "largest" knob, as the authors' code does, or the "smallest".
    Diverged runs (accuracy NaN) are passed over; a trial in which all diverged has no row. Adds
    `tied`, how many runs shared the best accuracy, and `at_edge`, True where the choice is the
    first or last value of a grid of more than one.
    """
    choose("ties", ties, TIES)
    ends = final(rows)
    group = [*CASE, "trial"]  # a trial's own grid: one suggested θ has no edges
    low = ends.groupby(group)["knob"].transform("min")
    high = ends.groupby(group)["knob"].transform("max")
    ends = ends.assign(at_edge=((ends["knob"] == low) | (ends["knob"] == high)) & (low < high))
    best = ends.groupby(group)["acc_val"].transform("max")
    winners = ends[ends["acc_val"] == best]
    winners = winners.assign(tied=winners.groupby(group)["acc_val"].transform("size"))
    winners = winners.sort_values("knob", ascending=ties == "smallest", kind="stable")
    return winners.drop_duplicates(group).sort_values(group, ignore_index=True)


def curves(rows: pd.DataFrame, ties: str = "largest") -> pd.DataFrame:
    """All epochs of the selected runs."""
    chosen = select(rows, ties)[[*CASE, "trial", "knob"]]
    return rows.merge(chosen, on=list(chosen.columns)).sort_values(
        [*CASE, "trial", "epoch"], ignore_index=True
    )
