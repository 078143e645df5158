"""Methods at the same final training loss, and at the same θ: nothing is selected."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from softadlib.functional import LN2
from softadlib.workbook.analysis.statistics import Mean, paired


def at_training_loss(
    rows: pd.DataFrame, losses: Sequence[float], measure: str, highest: float = LN2
) -> pd.DataFrame:
    """Return a measure of every trial at given final training losses, by interpolation along its grid.

    Args:
        rows: final rows of one dataset; a method's runs of a trial are joined in the order of their
            training losses.
        losses: final training losses in nats.
        measure: a column.
        highest: runs that end with a training loss above it are left out: two-class networks invert.

    Returns:
        Columns method, trial, loss_train, value; NaN where a trial's grid does not reach a loss.
    """
    lines = []
    kept = rows[rows["knob"].notna() & (rows["loss_train"] < highest)]
    for (method, trial), runs in kept.groupby(["method", "trial"]):
        along = runs.sort_values("loss_train")
        values = np.interp(losses, along["loss_train"], along[measure], left=np.nan, right=np.nan)
        lines += [(method, trial, loss, value) for loss, value in zip(losses, values)]
    return pd.DataFrame(lines, columns=["method", "trial", "loss_train", "value"])


def minus(points: pd.DataFrame, by: str, method: str, rival: str) -> dict[float, Mean]:
    """Return method − rival paired by trial at each value of column `by`; fewer than 3 pairs are left out.

    `points` has columns method, trial, `by` and value.
    """
    found = {}
    for at, part in points.groupby(by):
        wide = part.pivot(index="trial", columns="method", values="value")
        if {method, rival} <= set(wide) and len(both := wide[[method, rival]].dropna()) >= 3:
            found[float(at)] = paired(both[method], both[rival])
    return found
