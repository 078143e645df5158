"""Methods at the same training loss: straight lines between points given by hand."""

import numpy as np
import pandas as pd
import pytest

from softadlib.workbook.experiments import frontier


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
    points = frontier.at_training_loss(rows, [0.1, 0.2, 0.3, 0.5], "gap")
    assert points["value"].tolist()[:3] == pytest.approx([0.2, 0.1, 0.05])
    assert np.isnan(points["value"].iloc[3]), "the grid does not reach 0.5"


def test_runs_above_ln_2_and_runs_without_a_value_are_left_out():
    rows = pd.concat(
        [
            grid("softad", 0, [0.1, 0.3, 0.9], [0.2, 0.1, 5.0]),
            grid("erm", 0, [0.0], [0.4]).assign(knob=np.nan),
        ]
    )
    points = frontier.at_training_loss(rows, [0.2, 0.5], "gap")
    assert set(points["method"]) == {"softad"}
    assert points["value"].iloc[0] == pytest.approx(0.15)
    assert np.isnan(points["value"].iloc[1]), "no line to the run at 0.9"


def test_differences_pair_trials_and_need_three():
    rows = pd.concat(
        [grid("softad", t, [0, 1], [0.3 + t / 10, 0.3 + t / 10]) for t in range(4)]
        + [grid("iflood", t, [0, 1], [0.1 + t / 10, 0.1 + t / 10]) for t in range(3)]
    )
    points = frontier.at_training_loss(rows, [0.5], "gap", highest=2)
    (mean,) = frontier.minus(points, "loss_train", "softad", "iflood").values()
    assert mean == pytest.approx((0.2, 0.2, 0.2, 3))
    fewer = points[points["trial"] < 2]
    assert frontier.minus(fewer, "loss_train", "softad", "iflood") == {}
    assert frontier.minus(points, "loss_train", "softad", "sam") == {}
