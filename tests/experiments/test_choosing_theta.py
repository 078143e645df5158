"""The arms of the θ study against rows whose answer is plain."""

import math

import numpy as np
import pandas as pd
import pytest
from helpers.choosing import row, rows
from helpers.workspace import REPOSITORY

from softadlib._validation import UserError
from softadlib.experiments.choosing_theta import strategies
from softadlib.training.profiles import load


def test_every_arm_takes_its_own():
    lines = strategies.arms(*rows(1)).set_index("arm")
    assert lines["theta"].drop("F").to_dict() == {
        "A": 0.0413, "B": 0.05, "C": 0.1, "D": 0.01, "E": 0.4, "G": 0.02, "H": 0.1,
    }  # fmt: skip
    assert math.isnan(lines["theta"]["F"])
    assert lines["acc_test"]["A"] == 0.99
    assert lines["trainings"].to_dict() == {
        "A": 1,
        "B": 2,
        "C": 3,
        "D": 3,
        "E": 3,
        "F": 1,
        "G": 2,
        "H": 1,
    }
    # the best of the grid on the test part is .90, whatever the oracle reached
    assert lines["regret"].round(9).to_dict() == {
        "A": -0.09, "B": 0.01, "C": 0.0, "D": 0.03, "E": 0.02, "F": 0.1, "G": 0.04, "H": 0.0,
    }  # fmt: skip
    assert lines["gap"]["B"] == pytest.approx(0.35)


def test_no_other_arm_takes_an_oracles_value():
    grid, auto, low = rows(1)
    others = [row("softad", 0, strategies.oracle("spiral", q), 1.0, 0.0, 1.0) for q in (0.0, 0.1)]
    lines = strategies.arms(pd.concat([grid, pd.DataFrame(others)]), auto, low).set_index("arm")
    assert lines["theta"][["C", "D", "E"]].tolist() == [0.1, 0.01, 0.4]
    assert lines["theta"]["A"] == 0.0413, "nor the oracle that of another case"


def test_tables_put_together_may_share_an_index():
    grid, auto, low = rows(2)
    parts = pd.concat([grid[:7].reset_index(drop=True), grid[7:].reset_index(drop=True)])
    pd.testing.assert_frame_equal(
        strategies.arms(parts, auto, low), strategies.arms(grid, auto, low)
    )


def test_trials_without_every_arm_are_left_out():
    grid, auto, low = rows(3)
    lines = strategies.arms(grid, auto[auto["trial"] != 1], low)
    assert sorted(lines["trial"].unique()) == [0, 2]
    no_oracle = strategies.arms(*rows(2, dataset="digits"))
    assert set(no_oracle["arm"]) == set(strategies.ARMS) - {"A"}
    with pytest.raises(UserError, match="softad train choosing"):
        strategies.arms(grid, auto[:0], low)


def test_differences_are_paired_by_trial():
    lines = strategies.arms(*rows(2))
    table = strategies.compared(lines, "B", "C")
    # .89 − .90 and .90 − .90, in points; t(.975, 1) = 12.706205
    assert table["points"].tolist() == pytest.approx([-0.5])
    assert table["points low"].tolist() == pytest.approx([-0.5 - 12.706205 * 0.5], abs=1e-5)
    assert table["nats"].tolist() == pytest.approx([3.5 - 4.0])
    assert table["n"].tolist() == [2]


def test_cases_of_a_trial_are_averaged_before_they_are_counted():
    both = [pd.concat(t) for t in zip(rows(2), rows(2, noise=0.1), rows(3, dataset="digits"))]
    table = strategies.compared(strategies.arms(*both), "B", "C")
    assert table["n"].tolist() == [3, 2, 2, 2]
    assert table.index[-1][0] == "synthetic cases"
    alone = table.loc[("gaussian", 0.0)]
    np.testing.assert_allclose(table.iloc[-1], alone)  # both cases are alike: no more certain


def test_a_case_without_the_oracle_is_left_out_of_its_comparison():
    both = [pd.concat(t) for t in zip(rows(2), rows(2, dataset="digits"))]
    table = strategies.compared(strategies.arms(*both), "B", "A")
    assert table.index.tolist() == [("gaussian", 0.0)]


def test_cases_kept_apart_have_a_mean_of_their_own():
    parts = [rows(2, noise=q, dataset=d) for d, q in strategies.RISK]
    grid, auto, low = (pd.concat(tables, ignore_index=True) for tables in zip(*parts))
    auto.loc[auto["label_noise"] == strategies.APART, "acc_test"] -= 0.03
    table = strategies.compared(strategies.arms(grid, auto, low), "B", "C").droplevel(1)
    assert len(table) == 11
    # −.01 and 0 in the two trials, three points lower in three of nine cases
    assert table["points"]["synthetic cases"] == pytest.approx(-0.5 - 1)
    assert table["points"]["those kept apart"] == pytest.approx(-0.5 - 3)


def test_profiles_differ_in_their_grids_alone():
    params = REPOSITORY / "params"
    for dataset in ("gaussian", "sinusoid", "spiral"):
        found = load("choosing", dataset, params)
        assert set(found.grids["softad"]) < set(load("paper", dataset, params).grids["softad"])
        theirs = load("choosing-oracle", dataset, params).grids["softad"]
        assert set(theirs) == {strategies.oracle(dataset, q) for q in found.label_noise}
        for other in ("auto", "low", "oracle"):
            same = load(f"choosing-{other}", dataset, params)
            assert same.fingerprint() == found.fingerprint()
            assert (same.trials, same.label_noise) == (found.trials, found.label_noise)


def test_risks_lie_where_theory_has_them():
    # the sinusoid's labels are a function of the input: R* is the flips' own entropy
    for q in (0.0, 0.05, 0.1):
        flips = -sum(p * math.log(p) for p in (q, 1 - q) if p > 0)
        assert strategies.RISK["sinusoid", q] == pytest.approx(flips, abs=1e-4)
        for dataset in ("gaussian", "spiral"):
            assert strategies.RISK[dataset, q] >= flips
    assert pytest.approx(math.log(2) * 0.01, abs=5e-5) == strategies.SLACK


def test_verdicts_by_hand():
    grid, auto, low = rows(3)
    auto["acc_test"] = [0.899, 0.900, 0.901]  # against C's .90: 0 ± .25 points
    auto["loss_test"] = [3.85, 3.8, 3.75]  # against C's 4: −.2 ± .12
    (found,) = strategies.verdicts(strategies.arms(grid, auto, low)).itertuples(index=False)
    assert found == (True, False, True, False, 3)
    auto["acc_test"] = [0.869, 0.8691, 0.8689]  # three points below C and a little below D's .87
    auto["loss_test"] = [3.9, 4.0, 4.1]
    (found,) = strategies.verdicts(strategies.arms(grid, auto, low)).itertuples(index=False)
    assert found == (False, True, False, True, 3)
    auto["acc_test"] = [0.80, 0.90, 1.00]  # too uncertain for either
    (found,) = strategies.verdicts(strategies.arms(grid, auto, low)).itertuples(index=False)
    assert found == (False, False, False, False, 3)


def test_rank_correlation():
    parts = [rows(4, noise=q, dataset=d) for d, q in strategies.RISK]
    grid, auto, low = (pd.concat(tables, ignore_index=True) for tables in zip(*parts))
    risk = [
        strategies.RISK[case] for case in auto[strategies.CASE].itertuples(index=False, name=None)
    ]
    auto["knob"] = np.sqrt(risk)  # any increasing function
    lines = strategies.arms(grid, auto, low)
    assert strategies.rank_correlation(lines) == pytest.approx((1, 1, 1))
    auto["knob"] = -np.sqrt(risk)
    assert strategies.rank_correlation(strategies.arms(grid, auto, low)).value == pytest.approx(-1)
    shuffled = np.random.default_rng(0).random(len(auto))
    found = strategies.rank_correlation(strategies.arms(grid, auto.assign(knob=shuffled), low))
    assert -0.6 < found.low < found.value < found.high < 0.6
