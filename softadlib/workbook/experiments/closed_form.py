"""Test losses of the softmax and of the class probabilities in closed form, relative to plain training."""

import numpy as np
import pandas as pd
from scipy.stats import gmean

from softadlib.workbook.analysis.relative import BEST, LAST
from softadlib.workbook.experiments.many_sets import FIXED_THETA
from softadlib.workbook.studies import results
from softadlib.workbook.studies.selection import CASE, RUN

SOFTMAX = "softmax"
CLOSED_FORM = "closed form"
TEMPERATURE = "one temperature"
PAIR = [*CASE, "trial", "side"]
"""What a run and the run of ERM beside it have in common."""


def rows_by_side(profile: str) -> dict[str, pd.DataFrame]:
    """Return the rows of all runs by side: at the last and at the best epoch."""
    rows = results.read(profile)
    return {LAST: results.final(rows), BEST: results.best(rows)}


def relative_losses(profile: str) -> pd.DataFrame:
    """Return test losses of a profile with `closed_form`, and their ratio to those of ERM in the same trial.

    One row per run, side and form, with columns dataset, label_noise, method, trial, knob, side,
    form, loss and ratio. The side is "last epoch" or "stopped early". The form says which class
    probabilities the cross-entropy is that of: "softmax", "closed form" (`class_probabilities`), or
    "one temperature" fitted on validation data. The ratio is to the softmax of ERM. All are stopped at
    the epoch of the softmax's lowest validation loss. In stored results of profile `link` the closed form
    is stopped at that of its own, which is not measured any more.

    Args:
        profile: a folder of `outputs/`.
    """
    rows = rows_by_side(profile)
    best_of_its_own = "linked_best_loss_test"
    stopped = (rows[BEST], "linked_loss_test")
    if best_of_its_own in rows[LAST]:
        stopped = (rows[LAST], best_of_its_own)
    columns = [
        (LAST, SOFTMAX, rows[LAST], "mean_loss_test"),
        (LAST, CLOSED_FORM, rows[LAST], "linked_loss_test"),
        (LAST, TEMPERATURE, rows[LAST], "prior_loss_test"),
        (BEST, SOFTMAX, rows[BEST], "mean_loss_test"),
        (BEST, CLOSED_FORM, *stopped),
        (BEST, TEMPERATURE, rows[BEST], "prior_loss_test"),
    ]
    frames = [
        table[[*RUN, column]].rename(columns={column: "loss"}).assign(side=side, form=form)
        for side, form, table, column in columns
    ]
    long = pd.concat(frames, ignore_index=True).dropna(subset="loss")
    plain = long[(long["method"] == "erm") & (long["form"] == SOFTMAX)]
    plain = plain.rename(columns={"loss": "erm"})[[*PAIR, "erm"]]
    long = long.merge(plain, on=PAIR)
    return long.assign(ratio=long["loss"] / long["erm"]).drop(columns="erm")


def erm_temperatures(profile: str) -> pd.DataFrame:
    """Return the temperature that validation data ask of ERM, above 1 where it is over-confident.

    One row per dataset, label noise and side: `temperature`, the geometric mean over trials.
    """
    sides = rows_by_side(profile).items()
    rows = pd.concat(of_side.assign(side=side) for side, of_side in sides)
    erm = rows[rows["method"] == "erm"]
    groups = erm.groupby(["dataset", "label_noise", "side"])["prior_temperature"]
    return groups.agg(gmean).rename("temperature").reset_index()


def at_small_theta(long: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of SoftAD at `FIXED_THETA` and σ = 1."""
    return long[(long["method"] == "softad") & np.isclose(long["knob"], FIXED_THETA)]


def of_sets(long: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the geometric mean of the ratio over trials: one row per dataset and value of `by`, and n."""
    return long.groupby(["dataset", *by])["ratio"].agg(ratio=gmean, n="size").reset_index()
