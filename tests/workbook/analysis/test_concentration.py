"""Shares of losses around θ against counts of the losses themselves, by hand."""

import numpy as np
import pandas as pd
import pytest
from helpers.losses import run

from softadlib._validation import UserError
from softadlib.workbook.analysis import concentration


def parts(train, test=None):
    return {"train": train, "val": [1.0, 2.0], "test": train if test is None else test}


def made_up(softad=0.01, flooding=0.5):
    """SoftAD at θ = 0.5 ± softad, Flooding at 0.2 ± flooding, ERM at zero; three trials."""
    rows = []
    for trial in range(3):
        draw = np.random.default_rng(trial).uniform(-1, 1, 4000)
        rows.append(run("softad", trial, 0.5, parts(0.5 + softad * draw)))
        rows.append(run("flooding", trial, 0.2, parts(0.2 + flooding * draw)))
        rows.append(run("erm", trial, None, parts(np.full(100, 1e-4))))
    return pd.concat(rows, ignore_index=True)


def test_shares_are_those_of_counting_to_one_in_a_hundred():
    losses = np.random.default_rng(3).exponential(0.4, 5000)
    (line,) = (
        concentration.shares(run("softad", 0, 0.3, parts(losses), epochs=(10,)))
        .query("split == 'train'")
        .itertuples()
    )
    assert line.near == pytest.approx(((losses > 0.2) & (losses < 0.4)).mean(), abs=0.01)
    q = np.quantile(losses, [0.25, 0.75])
    assert line.spread == pytest.approx(q[1] - q[0], rel=1e-5)


def test_near_is_within_a_tenth_of_a_nat_at_every_theta():
    losses = np.array([0.0] * 250 + [0.09] * 250 + [0.11] * 500)
    line = concentration.shares(run("softad", 0, 0.005, parts(losses), epochs=(10,)))
    assert line.query("split == 'train'")["near"].item() == pytest.approx(0.5, abs=0.01)


def test_losses_that_are_all_equal_are_all_near_or_none():
    assert concentration.share_below(np.full(101, 0.5), 0.5) == 1
    assert concentration.share_below(np.full(101, 0.5), 0.499) == 0


def test_a_method_without_theta_is_measured_against_softads_of_its_trial():
    rows = pd.concat([
        run("softad", 0, 0.1, parts([0.1])), run("softad", 1, 0.6, parts([0.6])),
        run("erm", 0, None, parts([0.1])), run("erm", 1, None, parts([0.1])),
        run("sam", 2, 0.05, parts([0.1])), run("flooding", 2, 0.2, parts([0.1])),
    ])  # fmt: skip
    lines = concentration.with_theta(rows).drop_duplicates(["method", "trial"])
    theta = lines.set_index(["method", "trial"])["theta"].to_dict()
    assert theta == {("softad", 0): 0.1, ("softad", 1): 0.6, ("erm", 0): 0.1, ("erm", 1): 0.6,
                     ("flooding", 2): 0.2}, "SAM's radius is no θ"  # fmt: skip


def test_the_table_has_means_and_n():
    table = concentration.concentration(made_up()).set_index("method")
    assert list(table.index) == ["erm", "flooding", "softad"]
    assert table.loc["softad", ["theta", "near", "n"]].tolist() == [0.5, 1, 3]
    assert table.loc["softad", "spread"] == pytest.approx(0.01, rel=0.05)
    assert table.loc["flooding", "near"] == pytest.approx(0.2, abs=0.02)
    assert table.loc["erm", "near"] == 0


def test_a_profile_without_losses_ends_in_one_line():
    with pytest.raises(UserError, match=r"^profile 'none' has no results"):
        concentration.read("none")
