"""Methods at the same training loss: straight lines between points given by hand."""

import numpy as np
import pandas as pd
import pytest

from softadlib.workbook.experiments import gap


def grid(method, trial, losses, gaps):
    return pd.DataFrame(
        {
            "method": method,
            "trial": trial,
            "knob": range(len(losses)),
            "loss_train": losses,
            "gap": gaps,
        }
    )


def test_a_gap_at_a_training_loss_lies_on_the_line_between_two_runs():
    rows = grid("softad", 0, [0.4, 0.0, 0.2], [0.0, 0.3, 0.1])  # in no order
    points = gap.at_training_loss(rows, [0.1, 0.2, 0.3, 0.5], "gap")
    assert points["value"].tolist()[:3] == pytest.approx([0.2, 0.1, 0.05])
    assert np.isnan(points["value"].iloc[3]), "the grid does not reach 0.5"


def test_runs_above_ln_2_and_runs_without_a_value_are_left_out():
    rows = pd.concat(
        [
            grid("softad", 0, [0.1, 0.3, 0.9], [0.2, 0.1, 5.0]),
            grid("erm", 0, [0.0], [0.4]).assign(knob=np.nan),
        ]
    )
    points = gap.at_training_loss(rows, [0.2, 0.5], "gap")
    assert set(points["method"]) == {"softad"}
    assert points["value"].iloc[0] == pytest.approx(0.15)
    assert np.isnan(points["value"].iloc[1]), "no line to the run at 0.9"


def test_differences_pair_trials_and_need_three():
    rows = pd.concat(
        [grid("softad", t, [0, 1], [0.3 + t / 10, 0.3 + t / 10]) for t in range(4)]
        + [grid("iflood", t, [0, 1], [0.1 + t / 10, 0.1 + t / 10]) for t in range(3)]
    )
    points = gap.at_training_loss(rows, [0.5], "gap", highest=2)
    (mean,) = gap.minus(points, "loss_train", "softad", "iflood").values()
    assert mean == pytest.approx((0.2, 0.2, 0.2, 3))
    fewer = points[points["trial"] < 2]
    assert gap.minus(fewer, "loss_train", "softad", "iflood") == {}
    assert gap.minus(points, "loss_train", "softad", "sam") == {}


def test_at_constant_confidence_the_prediction_is_the_gap():
    """Two classes, all predictions with confidence 0.8: 95 % right in training, 70 % in test."""
    right, wrong = -np.log(0.8), -np.log(0.2)
    losses = {"train": 0.95 * right + 0.05 * wrong, "test": 0.7 * right + 0.3 * wrong}
    row = {"dataset": "d", "method": "softad", "knob": 0.1, "acc_train": 0.95, "acc_test": 0.7}
    rows = pd.DataFrame([row | {"loss_train": losses["train"], "loss_test": losses["test"]}])
    (cell,) = gap.at_constant_confidence(rows).itertuples()
    assert cell.gap == pytest.approx(0.25 * np.log(4))
    # c is taken from the training loss, which is −ln 0.8 where no training sample is wrong.
    sure = rows.assign(acc_train=1.0, loss_train=right)
    (cell,) = gap.at_constant_confidence(sure).itertuples()
    assert cell.gap == pytest.approx(0.3 * np.log(4))
    assert cell.predicted == pytest.approx(0.3 * np.log(4))


def test_cells_at_the_level_of_a_coin_are_left_out():
    row = {"dataset": "d", "method": "erm", "knob": np.nan, "acc_train": 0.9}
    rows = [row | {"loss_train": 0.5, "loss_test": 0.6, "acc_test": 0.5}]
    rows += [
        row
        | {"method": "softad", "knob": 1.0, "loss_train": 0.7, "loss_test": 0.7, "acc_test": 0.9}
    ]
    assert gap.at_constant_confidence(pd.DataFrame(rows)).empty


def test_a_leak_is_the_share_of_pairs_in_order():
    """Quantiles of losses that all lie below, all above, or are the same."""
    low, high = np.linspace(0, 1, 11), np.linspace(2, 3, 11)
    assert gap.leak(low, high) == 1.0
    assert gap.leak(high, low) == 0.0
    assert gap.leak(low, low) == pytest.approx(0.5)
    # Two samples each, at 0 and 1 against 0 and 2: of four pairs two are in order and one is tied.
    halves = np.array([0.0, 0.0, 2.0])  # midpoints 0 and 1
    assert gap.leak(halves, np.array([0.0, 0.0, 4.0])) == pytest.approx((2 + 1 / 2) / 4)
