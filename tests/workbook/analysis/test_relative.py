"""Ratios of test losses: by hand."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from softadlib.workbook.analysis import relative
from softadlib.workbook.analysis.relative import BEST, LAST, SCALED


def losses(values, dataset="gaussian"):
    """Rows of {(method, side): losses of the trials}."""
    return pd.DataFrame(
        {
            "dataset": dataset,
            "label_noise": 0.0,
            "method": method,
            "side": side,
            "trial": trial,
            "loss_test": loss,
        }
        for (method, side), trials in values.items()
        for trial, loss in enumerate(trials)
    )


def line(table, method, side):
    return table[(table["method"] == method) & (table["side"] == side)].iloc[0]


def test_trials_are_compared_one_by_one():
    table = relative.relative_to_stopped_erm(
        losses({("erm", BEST): [1, 2, 4], ("softad", LAST): [2, 4, 1]})
    )
    softad = line(table, "softad", LAST)
    assert softad["ratio"] == pytest.approx(1.0)  # 2 · 2 · 1/4
    logs = np.log([2, 2, 0.25])
    half = 4.302652729911275 * logs.std(ddof=1) / np.sqrt(3)  # Student's t, 2 degrees of freedom
    assert np.log(softad["high"]) == pytest.approx(half)
    assert softad["n"] == 3


def test_datasets_are_compared_by_their_means():
    rows = pd.concat(
        [
            losses({("erm", BEST): [1, 3], ("sam", BEST): [1, 1]}, "a"),
            losses({("erm", BEST): [4, 4], ("sam", BEST): [8, 8]}, "b"),
        ]
    )
    sam = line(relative.relative_to_stopped_erm(rows, across="dataset"), "sam", BEST)
    assert sam["ratio"] == pytest.approx(1.0)  # 1/2 and 2
    assert sam["n"] == 2
    assert np.isnan(sam["low"]), "two datasets have no interval"


def test_each_side_selects_among_its_own_epochs():
    """At the last epoch θ = 0.1 has the lower validation loss, at the best epochs θ = 0.2."""
    runs = [(0.1, 3, 0.5, 1.0), (0.1, 9, 0.6, 2.0), (0.2, 4, 0.4, 3.0), (0.2, 9, 0.7, 4.0)]
    rows = pd.DataFrame(runs, columns=["knob", "epoch", "loss_val", "loss_test"])
    rows = rows.assign(
        dataset="a", label_noise=0.0, method="softad", trial=0, acc_val=1.0, acc_test=1.0
    )
    chosen = relative.chosen_losses(rows).set_index("side")["loss_test"]
    assert chosen.to_dict() == {LAST: 2.0, BEST: 3.0}


def test_erm_stands_once_more_after_one_temperature():
    runs = [("erm", 3, 0.5, 1.0, 0.9), ("erm", 9, 0.6, 2.0, 0.8), ("sam", 3, 0.4, 3.0, 0.7)]
    rows = pd.DataFrame(
        runs, columns=["method", "epoch", "loss_val", "loss_test", "prior_loss_test"]
    )
    rows = rows.assign(dataset="a", label_noise=0.0, trial=0, knob=0.1, acc_val=1.0, acc_test=0.5)
    rows["has_best_epoch"] = True
    chosen = relative.chosen_losses(rows)
    scaled = chosen[chosen["side"] == SCALED]
    assert scaled["method"].tolist() == ["erm"]
    assert scaled["loss_test"].tolist() == [0.8], "of the last epoch"
    assert scaled["acc_test"].tolist() == [0.5]


def test_the_picture_marks_each_ratio():
    mpl.use("Agg")
    values = {
        ("erm", BEST): [1.0],
        ("erm", LAST): [2.0],
        ("softad", BEST): [0.5],
        ("sam", BEST): [0.25],
    }
    table = relative.relative_to_stopped_erm(losses(values)).assign(set="gaussian")
    fig = relative.relative_picture(table)
    ax = fig.axes[0]
    marks = [mark for mark in ax.get_lines() if mark.get_marker() != "None"]
    drawn = [x for mark in marks for x in mark.get_xdata()]
    low, high = relative.RANGE
    assert sorted(x for x in drawn if np.isfinite(x)) == [low, 0.5, 2.0], "an arrow for 0.25"
    assert "0.25" in [text.get_text() for text in ax.texts]
    low, high = sorted(ax.get_ylim())
    heights = [y for mark in marks for y in mark.get_ydata()]
    assert low + 0.1 < min(heights) < max(heights) < high - 0.1, "marks of one set are whole"
    assert [text.get_text() for text in fig.legends[0].get_texts()] == [
        *("ERM, last epoch", "SoftAD, stopped early", "SAM, stopped early")
    ], "no method that has no mark"
