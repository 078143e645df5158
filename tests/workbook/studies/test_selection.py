import numpy as np
import pandas as pd
import pytest

from softadlib._validation import UserError
from softadlib.trainer.evaluation import MEASURES
from softadlib.workbook.studies import selection


def table(entries, dataset="gaussian", method="softad", epochs=(0, 9)):
    """Rows of runs given as (trial, knob, final validation accuracy)."""
    return pd.DataFrame(
        {
            "dataset": dataset,
            "method": method,
            "trial": t,
            "label_noise": 0.0,
            "knob": k,
            "epoch": e,
            **dict.fromkeys(MEASURES, 0.5),
            "acc_val": acc if e == epochs[-1] else 1.0,
        }
        for t, k, acc in entries
        for e in epochs
    )


def test_the_best_final_validation_accuracy_wins():
    rows = table(
        [
            (0, 0.1, 0.90),
            (0, 0.2, 0.95),
            (0, 0.3, 0.91),
            (1, 0.1, 0.99),
            (1, 0.2, 0.98),
            (1, 0.3, 0.97),
        ]
    )
    for ties in ("largest", "smallest"):
        chosen = selection.select(rows, ties)
        assert chosen["knob"].tolist() == [0.2, 0.1], (
            "epoch 0 has accuracy 1.0 everywhere and must not count"
        )
        assert chosen["epoch"].tolist() == [9, 9]
        assert chosen["tied"].tolist() == [1, 1]
        assert chosen["at_edge"].tolist() == [False, True]


def test_ties_go_where_they_are_sent():
    rows = table([(0, 0.3, 0.9), (0, 0.1, 0.9), (0, 0.2, 0.9), (0, 0.4, 0.8)])
    assert selection.select(rows, "largest")["knob"].tolist() == [0.3]
    assert selection.select(rows, "smallest")["knob"].tolist() == [0.1]
    assert selection.select(rows, "largest")["tied"].tolist() == [3]
    assert selection.select(rows, "largest")["at_edge"].tolist() == [False]
    assert selection.select(rows, "smallest")["at_edge"].tolist() == [True]
    with pytest.raises(UserError, match="'median' unknown; choose from largest, smallest, loss"):
        selection.select(rows, "median")


def test_diverged_runs_are_passed_over():
    rows = table([(0, 0.1, np.nan), (0, 0.2, 0.6), (1, 0.1, np.nan), (1, 0.2, np.nan)])
    chosen = selection.select(rows)
    assert chosen[["trial", "knob"]].to_numpy().tolist() == [[0, 0.2]]


def test_by_loss_the_lowest_validation_loss_wins_and_of_equals_the_smallest_value():
    rows = table([(0, 0.1, 0.9), (0, 0.2, 0.8), (0, 0.3, 0.7), (1, 0.1, 0.9), (1, 0.2, 0.9)])
    rows.loc[rows["epoch"] == 9, "loss_val"] = [0.3, 0.2, 0.2, np.inf, 0.9]
    rows.loc[rows["epoch"] == 0, "loss_val"] = 0.01
    chosen = selection.select(rows, "loss")
    assert chosen["knob"].tolist() == [0.2, 0.2]
    assert chosen["tied"].tolist() == [2, 1]
    assert chosen["at_edge"].tolist() == [False, True]
    assert chosen["loss_val"].tolist() == [0.2, 0.9]
    assert selection.select(rows.assign(loss_val=np.inf), "loss").empty


def test_the_best_epoch_is_that_of_the_lowest_validation_loss_after_the_start():
    rows = table([(0, 0.1, 0.9), (0, 0.2, 0.9), (1, np.nan, 0.9)], epochs=(0, 3, 6, 9))
    rows["loss_val"] = [0.0, 0.4, 0.2, 0.3, 0.0, np.inf, np.inf, np.nan, 0.0, np.nan, 0.5, 0.5]
    assert selection.best(rows)[["trial", "epoch"]].to_numpy().tolist() == [[0, 6], [1, 6]]


def test_early_stopping_of_some_runs_alone_is_warned_of():
    """Of curves of the selected runs: the others would be held against them at their last epoch."""
    curve = table([(0, 0.1, 0.9)], epochs=(0, 3, 6, 9))
    last = table([(0, 0.2, 0.9), (1, 0.1, 0.8)], epochs=(9,))
    with pytest.warns(UserWarning, match="2 of 3 runs were measured at their last epoch alone"):
        selection.best(pd.concat([curve, last]))


def test_what_the_provenance_says_of_best_epochs_counts_not_the_number_of_rows():
    last = table([(0, 0.2, 0.9), (1, 0.1, 0.8)], epochs=(9,))
    ends = selection.best(last.assign(has_best_epoch=True))  # all are best at their last epoch
    assert ends["epoch"].tolist() == [9, 9]
    both = table([(0, 0.2, 0.9)], epochs=(6, 9)).assign(has_best_epoch=True)
    selection.best(pd.concat([both, last.assign(has_best_epoch=True)]))
    curve = table([(0, 0.1, 0.9)], epochs=(0, 9))  # curve_every of at least the epochs
    with pytest.warns(UserWarning, match="1 of 1 runs were measured at their last epoch alone"):
        selection.best(curve.assign(has_best_epoch=False))


def test_a_loss_beyond_a_thousand_nats_has_diverged():
    rows = table([(0, 0.1, 0.9), (1, 0.1, 0.9), (2, 0.1, 0.9), (3, 0.1, 0.9)], epochs=(9,))
    rows["loss_train"] = [0.5, 1.8e5, np.nan, 1e3]
    assert selection.diverged(rows).tolist() == [False, True, True, False]


def test_the_last_row_of_every_run():
    rows = pd.concat(
        [table([(0, np.nan, 0.9)], epochs=(0, 9)), table([(1, 0.1, 0.8)], epochs=(2, 5))]
    )
    ends = selection.final(rows.sample(frac=1, random_state=0))
    assert ends[["trial", "epoch", "acc_val"]].to_numpy().tolist() == [[0, 9, 0.9], [1, 5, 0.8]]


def test_edges_are_of_a_trials_own_grid():
    one_each = selection.select(table([(0, 0.1, 0.9), (1, 0.2, 0.9), (2, 0.3, 0.9)]))
    assert not one_each["at_edge"].any()
    two_each = table([(0, 0.1, 0.8), (0, 0.2, 0.9), (1, 0.2, 0.9), (1, 0.3, 0.8)])
    assert selection.select(two_each)["at_edge"].all()


def test_groups_do_not_mix():
    rows = pd.concat(
        [
            table([(0, 0.1, 0.9), (0, 0.2, 0.8)]),
            table([(0, 0.1, 0.7), (0, 0.2, 0.8)], dataset="spiral"),
            table([(0, 0.1, 0.7), (0, 0.2, 0.8)], method="sam"),
            table([(0, 0.1, 0.1), (0, 0.2, 0.2)]).assign(label_noise=0.05),
        ]
    )
    chosen = selection.select(rows).set_index(["dataset", "label_noise", "method"])["knob"]
    assert chosen.to_dict() == {
        ("gaussian", 0.0, "softad"): 0.1,
        ("gaussian", 0.05, "softad"): 0.2,
        ("gaussian", 0.0, "sam"): 0.2,
        ("spiral", 0.0, "softad"): 0.2,
    }


def test_curves_are_all_epochs_of_the_selected():
    rows = table([(0, 0.1, 0.9), (0, 0.2, 0.8), (1, 0.1, 0.7), (1, 0.2, 0.8)], epochs=(0, 3, 9))
    shown = selection.curves(rows)
    assert shown[["trial", "knob", "epoch"]].to_numpy().tolist() == [
        [0, 0.1, 0], [0, 0.1, 3], [0, 0.1, 9], [1, 0.2, 0], [1, 0.2, 3], [1, 0.2, 9],
    ]  # fmt: skip


def test_curves_leave_out_runs_that_were_measured_at_the_end_alone():
    """Trial 1 has no curve: a mean over trials would jump at the last epoch."""
    rows = table([(0, 0.1, 0.9), (1, 0.1, 0.8)])
    last = rows["epoch"].max()
    assert set(selection.curves(rows[(rows["trial"] == 0) | (rows["epoch"] == last)])["trial"]) == {
        0
    }
    assert set(selection.curves(rows[rows["epoch"] == last])["trial"]) == {0, 1}, "no run has one"
    other = rows[rows["epoch"] == last].assign(dataset="another")
    both = selection.curves(pd.concat([rows, other]))
    assert both.groupby("dataset")["trial"].nunique().to_dict() == {"gaussian": 2, "another": 2}


def test_a_best_epoch_is_no_point_of_a_curve():
    """Trial 0 was best at epoch 4; trial 1 at the last epoch, or at one of its curve."""
    ends = table([(0, 0.1, 0.9), (1, 0.1, 0.8)], epochs=(4, 9))
    ends = ends[(ends["trial"] == 0) | (ends["epoch"] == 9)]
    assert selection.curves(ends)[["trial", "epoch"]].to_numpy().tolist() == [[0, 9], [1, 9]]
    along = table([(0, 0.1, 0.9), (1, 0.1, 0.8)], epochs=(0, 3, 9))
    both = selection.curves(pd.concat([along, ends[ends["epoch"] == 4]]))
    assert both.groupby("trial")["epoch"].apply(list).tolist() == [[0, 3, 9], [0, 3, 9]]
