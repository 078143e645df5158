"""Methods compared over many data sets: which runs enter, and how often one does better than another."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from softadlib.methods import METHODS
from softadlib.workbook.analysis.tables import LABELS
from softadlib.workbook.studies import results
from softadlib.workbook.studies.selection import CASE

FIXED_THETA = 0.01
"""The fixed θ, for the variant of SoftAD without tuning."""
FIXED = f"SoftAD, θ = {FIXED_THETA}"
"""Its label."""


def entries(rows: pd.DataFrame, stopped: bool) -> pd.DataFrame:
    """Return the runs that are compared, one per set, method and trial, with the method's label as `entry`.

    Each method enters with the value of the lowest validation loss. SoftAD enters once more with
    `FIXED_THETA`, where its grid has it. A method that lacks a set on which ERM and SoftAD are
    trained is left out.

    Args:
        rows: of a profile with `best_epoch`.
        stopped: measure every run at the epoch of its lowest validation loss in place of the last.
    """
    ends = results.best(rows) if stopped else results.final(rows)
    chosen = results.select(ends, "loss")
    chosen = chosen.assign(entry=chosen["method"].map(LABELS))
    fixed = ends[(ends["method"] == "softad") & np.isclose(ends["knob"], FIXED_THETA)]
    runs = pd.concat([chosen, fixed.assign(entry=FIXED)], ignore_index=True)
    sets = {name: set(zip(*(of[c] for c in CASE))) for name, of in runs.groupby("entry")}
    needed = sets[LABELS["erm"]] & sets[LABELS["softad"]]
    return runs[[sets[name] >= needed for name in runs["entry"]]]


def means(runs: pd.DataFrame, measure: str, index: Sequence[str] = CASE) -> pd.DataFrame:
    """Return the mean of a measure over the trials that all entries have: a line per set, a column per entry.

    A set without such a trial is left out. `FIXED` is the last column. Means are rounded to 12
    digits: the last bits of a mean depend on the order of its terms, and ties should stay ties.
    """
    n_entries = runs.groupby([*CASE, "trial"])["entry"].transform("nunique")
    complete = runs[n_entries == runs["entry"].nunique()]
    table = complete.pivot_table(measure, list(index), "entry", aggfunc="mean").round(12)
    labels = [LABELS[name] for name in METHODS]
    others = sorted(set(table) - {*labels, FIXED})
    return table[[name for name in (*labels, *others, FIXED) if name in table]]
