"""Why a loss gap is small: confidence, the training loss, and what a gap says of single samples."""

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


def at_constant_confidence(rows: pd.DataFrame, least_accuracy: float = 0.55) -> pd.DataFrame:
    r"""Return the loss gap of every cell beside what accuracy and confidence alone predict of it.

    If every prediction had the same confidence c, a right one would cost −ln c and, with two classes, a
    wrong one −ln(1 − c), so that the loss gap would be (accuracy gap) · ln(c/(1 − c)). Here c = e^−m,
    with m the mean training loss.

    Args:
        rows: final rows of any data sets.
        least_accuracy: cells below it are left out, and so are those whose training loss is above ln 2.

    Returns:
        A row per data set, method and hyperparameter, means over trials: `gap`, `predicted`,
        `accuracy_gap`, `loss_train`, `loss_test`, and n.
    """
    groups = rows.groupby(["dataset", "method", "knob"], dropna=False)
    cells = groups[["loss_train", "loss_test", "acc_train", "acc_test"]].mean()
    cells["n"] = groups.size()
    cells["gap"] = cells["loss_test"] - cells["loss_train"]
    cells["accuracy_gap"] = cells["acc_train"] - cells["acc_test"]
    cells["predicted"] = -cells["accuracy_gap"] * np.log(np.expm1(cells["loss_train"]))
    usable = (cells["loss_train"] < LN2) & (cells["acc_test"] > least_accuracy)
    return cells[usable].reset_index()


def leak(train_quantiles: np.ndarray, test_quantiles: np.ndarray) -> float:
    """Return the chance that a test sample has the larger loss than a training sample; ties count half.

    This is the AUC of a threshold on the loss that tells training samples from others: 0.5 says nothing.

    Args:
        train_quantiles: losses at equally spaced levels, (q,).
        test_quantiles: the same of test samples, (q,).
    """
    inside = (train_quantiles[1:] + train_quantiles[:-1]) / 2
    outside = (test_quantiles[1:] + test_quantiles[:-1]) / 2
    difference = outside[:, None] - inside[None, :]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def leaks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `results.read` that have quantiles of single losses, with a column `leak`."""
    if "quantiles_train" not in rows:
        return rows.head(0).assign(leak=np.nan)
    known = rows[rows["quantiles_train"].notna()]
    quantiles = zip(known["quantiles_train"], known["quantiles_test"])
    return known.assign(leak=[leak(train, test) for train, test in quantiles])
