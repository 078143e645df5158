"""Methods compared over many data sets: which runs enter, and how often one does better than another."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from softadlib import results
from softadlib.analysis.statistics import Mean
from softadlib.methods import METHODS
from softadlib.results.selection import CASE

FIXED_THETA = 0.01
"""The fixed θ, for the variant of SoftAD without tuning."""
FIXED = f"SoftAD, θ = {FIXED_THETA}"
"""Its label."""
HIGHER_IS_BETTER = {"acc_test"}
"""Measures of which more is better; of all others less is."""


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
    chosen = chosen.assign(entry=[METHODS[method].label for method in chosen["method"]])
    fixed = ends[(ends["method"] == "softad") & np.isclose(ends["knob"], FIXED_THETA)]
    runs = pd.concat([chosen, fixed.assign(entry=FIXED)], ignore_index=True)
    sets = {name: set(zip(*(of[c] for c in CASE))) for name, of in runs.groupby("entry")}
    needed = sets[METHODS["erm"].label] & sets[METHODS["softad"].label]
    return runs[[sets[name] >= needed for name in runs["entry"]]]


def means(runs: pd.DataFrame, measure: str, index: Sequence[str] = CASE) -> pd.DataFrame:
    """Return the mean of a measure over the trials that all entries have: a line per set, a column per entry.

    A set without such a trial is left out. `FIXED` is the last column. Means are rounded to 12
    digits: the last bits of a mean depend on the order of its terms, and equal means are to be equal.
    """
    n_entries = runs.groupby([*CASE, "trial"])["entry"].transform("nunique")
    complete = runs[n_entries == runs["entry"].nunique()]
    table = complete.pivot_table(measure, list(index), "entry", aggfunc="mean").round(12)
    order = [*(method.label for method in METHODS.values()), FIXED]
    return table[sorted(table, key=order.index)]


def wins(runs: pd.DataFrame, measure: str, entry: str, other: str) -> list[np.ndarray]:
    """Return of each set whether `entry` does better than `other`, trial by trial: 1, 0, and ½ for equal."""
    sides = {}
    for name in (entry, other):
        part = runs[runs["entry"] == name]
        sides[name] = part.set_index([*CASE, "trial"])[measure]
    better = sides[entry].sub(sides[other]).dropna() * (1 if measure in HIGHER_IS_BETTER else -1)
    return [(np.sign(d.to_numpy()) + 1) / 2 for _, d in better.groupby(level=CASE)]


def chance_to_win(runs: pd.DataFrame, measure: str, entry: str, other: str) -> Mean:
    """Return how likely `entry` does better than `other` on the same trial of a set drawn at random.

    The mean over sets of the share of trials won, the probability of improvement of Agarwal et al.
    (2021) for paired trials, with its 95 % interval by the stratified bootstrap: trials are drawn
    anew within each set. It is 0 to 1 where a set has a single trial. n counts sets.
    """
    won = wins(runs, measure, entry, other)
    mean = float(np.mean([w.mean() for w in won]))
    if min(map(len, won)) < 2:
        return Mean(mean, 0.0, 1.0, len(won))

    def statistic(*sets: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(np.mean([s.mean(axis=axis) for s in sets], axis=0))

    drawn = stats.bootstrap(
        won, statistic, method="percentile", n_resamples=2000, random_state=np.random.default_rng(0)
    )
    low, high = drawn.confidence_interval
    return Mean(mean, float(low), float(high), len(won))
