"""Comparison over many sets: entries, means and chances to win against counts by hand."""

import numpy as np
import pandas as pd

from softadlib.trainer.evaluation import MEASURES
from softadlib.workbook.experiments.many_sets import FIXED, entries, means


def rows(*runs):
    """Rows (dataset, method, trial, knob, epoch, validation loss, test loss, test accuracy)."""
    names = ["dataset", "method", "trial", "knob", "epoch", "loss_val", "loss_test", "acc_test"]
    frame = pd.DataFrame(runs, columns=names).assign(label_noise=0.0)
    return frame.assign(**{m: 0.5 for m in MEASURES if m not in names})


ROWS = rows(
    ("a", "erm", 0, np.nan, 3, 0.4, 0.5, 0.8),
    ("a", "erm", 0, np.nan, 9, 0.9, 1.0, 0.9),
    ("a", "softad", 0, 0.01, 4, 0.5, 0.6, 0.7),
    ("a", "softad", 0, 0.01, 9, 0.6, 0.7, 0.6),
    ("a", "softad", 0, 0.1, 5, 0.45, 0.3, 0.9),
    ("a", "softad", 0, 0.1, 9, 0.7, 0.2, 0.5),
)


def test_a_method_enters_with_its_value_of_lowest_validation_loss_and_softad_once_more():
    stopped = entries(ROWS, stopped=True).set_index("entry")
    assert stopped["epoch"].to_dict() == {"ERM": 3, "SoftAD": 5, FIXED: 4}
    assert stopped["knob"].to_dict()["SoftAD"] == 0.1
    last = entries(ROWS, stopped=False).set_index("entry")
    assert last["epoch"].unique().tolist() == [9]
    assert last["knob"].to_dict()["SoftAD"] == 0.01
    lacks = entries(ROWS[ROWS["knob"] != 0.01], stopped=True)
    assert lacks["entry"].tolist() == ["ERM", "SoftAD"], "a grid without the fixed value"


def test_a_method_that_lacks_a_set_of_the_others_is_left_out():
    more = ROWS.assign(dataset="b")
    sam = ROWS[ROWS["method"] == "erm"].assign(method="sam", knob=0.1)
    erm = more[more["method"] == "erm"]
    assert "SoftAD" in set(entries(pd.concat([ROWS, erm]), stopped=True)["entry"])
    named = entries(pd.concat([ROWS, sam]), stopped=True)["entry"]
    assert {*named} == {"ERM", "SAM", "SoftAD", FIXED}
    found = entries(pd.concat([ROWS, more, sam]), stopped=True)
    assert found.groupby("entry")["dataset"].nunique().to_dict() == {
        "ERM": 2,
        "SoftAD": 2,
        FIXED: 2,
    }


A, B = "ERM", "SAM"


def runs(**losses):
    """Runs of entries A and B: {set: ((A's losses), (B's losses))}, a loss a trial."""
    frames = [
        pd.DataFrame({"dataset": name, "entry": e, "trial": range(len(v)), "loss_test": v})
        for name, pair in losses.items()
        for e, v in zip((A, B), pair)
    ]
    return pd.concat(frames).assign(label_noise=0.0, acc_test=lambda f: -f["loss_test"])


PAIRS = runs(x=((1, 1, 1, 1), (2, 2, 2, 0)), y=((1, 1), (1, 2)), z=((3,), (1,)))


def test_means_keep_the_order_of_entries_and_leave_out_sets_that_lack_one():
    more = pd.concat([PAIRS, PAIRS[PAIRS["entry"] == A].assign(dataset="w")])
    table = means(more, "loss_test", ["dataset"])
    assert table.columns.tolist() == [A, B]
    assert table.loc["x"].tolist() == [1, 1.5]
    assert table.index.tolist() == ["x", "y", "z"]


def test_means_are_of_the_trials_that_all_entries_have_and_equal_where_terms_are():
    more = pd.concat([PAIRS, runs(x=((7,), ())).assign(trial=4)])
    assert means(more, "loss_test", ["dataset"]).loc["x"].tolist() == [1, 1.5]
    same = means(runs(x=((0.1, 0.2, 0.3), (0.3, 0.2, 0.1))), "loss_test", ["dataset"])
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1
    assert same.loc["x", A] == same.loc["x", B]
