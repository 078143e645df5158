"""The strategies of the θ study against rows whose answer is plain."""

import math

import numpy as np
import pandas as pd
import pytest
from helpers.choosing import row, rows
from helpers.losses import run

from softadlib._validation import UserError
from softadlib.experiments.choosing_theta import strategies
from softadlib.training.profiles import load

NOBODY = pd.DataFrame(columns=[*strategies.CASE, "trial", "theta"])


def compare(grid, suggested, lower_end):
    """The suggestions are those of both rules."""
    return strategies.compare_strategies(grid, suggested, suggested, lower_end)


def test_every_strategy_takes_its_own():
    lines = compare(*rows(1)).set_index("strategy")
    assert lines["theta"].drop("erm").to_dict() == {
        "oracle": 0.0413, "suggested": 0.05, "former rule": 0.05, "former lower end": 0.02,
        "grid, largest tie": 0.1, "grid, smallest tie": 0.01, "grid, lowest loss": 0.4,
        "constant 0.1": 0.1, "constant 0.01": 0.01,
    }  # fmt: skip
    assert math.isnan(lines["theta"]["erm"])
    assert lines["acc_test"]["oracle"] == 0.99
    assert lines["trainings"].to_dict() == {
        "oracle": 1, "suggested": 2, "former rule": 2, "former lower end": 2, "erm": 1,
        "grid, largest tie": 3, "grid, smallest tie": 3, "grid, lowest loss": 3,
        "constant 0.1": 1, "constant 0.01": 1,
    }  # fmt: skip
    assert lines["gap"]["suggested"] == pytest.approx(0.35)


def test_where_no_theta_is_suggested_the_ordinary_run_stays():
    grid, auto, low = rows(2)
    advice = pd.DataFrame(
        {"dataset": "gaussian", "label_noise": 0.0, "trial": [0, 1], "theta": [math.nan, 0.06]}
    )
    suggested = strategies.follow_advice(auto, grid, advice)
    lines = strategies.compare_strategies(grid, suggested, auto, low)
    own = lines[lines["strategy"] == "suggested"].set_index("trial")
    assert own["acc_test"].tolist() == [0.80, 0.90]
    assert math.isnan(own["theta"][0])
    assert own["trainings"].tolist() == [1, 2]
    unchanged = strategies.follow_advice(auto, grid, NOBODY)
    assert unchanged["acc_test"].tolist() == auto["acc_test"].tolist()


def test_the_ordinary_run_scaled_has_its_accuracy_and_the_loss_of_its_temperature():
    grid, auto, low = rows(2)
    losses = pd.concat(
        run("erm", trial, None, {part: [1.0] for part in ("train", "val", "test")},
            prior_loss={"train": 0.2 + trial, "test": 0.3 + trial})
        for trial in range(2)
    )  # fmt: skip
    scaled = strategies.scale_ordinary(grid, losses)
    lines = strategies.compare_strategies(grid, auto, auto, low, scaled).set_index("strategy")
    ordinary, after = lines.loc["erm"], lines.loc["erm + temperature"]
    assert after["loss_test"].tolist() == [0.3, 1.3]
    assert after["gap"].tolist() == pytest.approx([0.1, 0.1])
    assert after["acc_test"].tolist() == ordinary["acc_test"].tolist()
    assert after["trainings"].tolist() == [1, 1]
    assert strategies.scale_ordinary(grid, losses[:0]).empty


def test_no_other_strategy_takes_an_oracles_value():
    grid, auto, low = rows(1)
    others = [row("softad", 0, strategies.oracle("spiral", q), 1.0, 0.0, 1.0) for q in (0.0, 0.1)]
    lines = compare(pd.concat([grid, pd.DataFrame(others)]), auto, low).set_index("strategy")
    names = ["grid, largest tie", "grid, smallest tie", "grid, lowest loss"]
    assert lines["theta"][names].tolist() == [0.1, 0.01, 0.4]
    assert lines["theta"]["oracle"] == 0.0413, "nor the oracle that of another case"


def test_trials_without_every_strategy_are_left_out():
    grid, auto, low = rows(3)
    lines = compare(grid, auto[auto["trial"] != 1], low)
    assert sorted(lines["trial"].unique()) == [0, 2]
    no_oracle = compare(*rows(2, dataset="digits"))
    assert set(no_oracle["strategy"]) == set(strategies.STRATEGIES) - {
        "oracle",
        "erm + temperature",
    }
    with pytest.raises(UserError, match="train choosing"):
        compare(grid, auto[:0], low)


def test_differences_are_paired_by_trial():
    table = strategies.compared(compare(*rows(2)), "suggested", "grid, largest tie")
    # .89 − .90 and .90 − .90, in points; t(.975, 1) = 12.706205
    assert table["points"].tolist() == pytest.approx([-0.5])
    assert table["points low"].tolist() == pytest.approx([-0.5 - 12.706205 * 0.5], abs=1e-5)
    assert table["nats"].tolist() == pytest.approx([3.5 - 4.0])
    assert table["n"].tolist() == [2]


def test_cases_of_a_trial_are_averaged_before_they_are_counted():
    both = [pd.concat(t) for t in zip(rows(2), rows(2, noise=0.1), rows(3, dataset="digits"))]
    table = strategies.compared(compare(*both), "suggested", "grid, largest tie")
    assert table["n"].tolist() == [3, 2, 2, 2]
    assert table.index[-1][0] == "mean, synthetic"
    assert table["cases"].iloc[-1] == 2
    alone = table.loc[("gaussian", 0.0)].drop("cases")
    np.testing.assert_allclose(table.iloc[-1].drop("cases"), alone)  # alike: no more certain


@pytest.fixture
def all_cases():
    parts = [rows(3, noise=q, dataset=d) for d, q in strategies.BAYES_RISK]
    return tuple(pd.concat(tables, ignore_index=True) for tables in zip(*parts))


def test_verdicts_follow_the_rows(all_cases):
    grid, auto, low = all_cases
    trial = auto["trial"].to_numpy()
    better, worse = auto.copy(), auto.copy()
    better[["acc_test", "loss_test"]] = np.array([0.9 + trial / 1000, 3.8 + trial / 100]).T
    worse[["acc_test", "loss_test"]] = np.array([0.88 + trial / 1000, 4.1 + trial / 100]).T
    for suggested, accuracy, loss in ((better, "kept", "lower"), (worse, "lost", "higher")):
        lines = strategies.compare_strategies(grid, suggested, auto, low)
        line = strategies.verdicts(lines).loc["constant 0.1"]
        assert (line["accuracy"], line["loss"], line["n"]) == (accuracy, loss, 3)


def test_the_headline_turns_round_with_the_rows(all_cases):
    grid, auto, low = all_cases
    for loss, word in ((3.8, "lower"), (4.2, "higher")):
        former = auto.assign(loss_test=loss + auto["trial"] / 1000)
        text = strategies.headline(strategies.compare_strategies(grid, auto, former, low))
        assert f"the former rule has {word} test loss than the constant 0.1" in text
        assert "n = 3 trials" in text


def test_six_problems_by_hand():
    benchmark = [
        {"problem": "a", "theta": 0.01, "erm_acc": 80.0, "softad_acc": 79.0 + seed}
        | {"erm_loss": 1.0, "scaled_loss": 0.5, "softad_loss": 0.75}
        for seed in (0, 1)
    ]
    (line,) = strategies.six_problems(benchmark).to_dict("records")
    assert line["points"] == pytest.approx(-0.5)
    assert line["points high"] == pytest.approx(-0.5 + 12.706205 * 0.5, abs=1e-5)
    assert (line["nats"], line["nats to scaled"], line["n"]) == (-0.25, 0.25, 2)


def test_profiles_differ_in_their_grids_alone():
    for dataset in ("gaussian", "sinusoid", "spiral"):
        grid = load("choosing", dataset)
        assert set(grid.grids["softad"]) < set(load("paper", dataset).grids["softad"])
        oracles = load("choosing-oracle", dataset).grids["softad"]
        assert set(oracles) == {strategies.oracle(dataset, q) for q in grid.label_noise}
        for other in ("auto", "low", "oracle", "suggested"):
            same = load(f"choosing-{other}", dataset)
            assert same.fingerprint("softad") == grid.fingerprint("softad")
            assert (same.trials, same.label_noise) == (grid.trials, grid.label_noise)


def test_risks_lie_where_theory_has_them():
    # the sinusoid's labels are a function of the input: R* is the flips' own entropy
    for q in (0.0, 0.05, 0.1):
        flips = -sum(p * math.log(p) for p in (q, 1 - q) if p > 0)
        assert strategies.BAYES_RISK["sinusoid", q] == pytest.approx(flips, abs=1e-4)
        for dataset in ("gaussian", "spiral"):
            assert strategies.BAYES_RISK[dataset, q] >= flips
    assert pytest.approx(math.log(2) * 0.01, abs=5e-5) == strategies.DROP_SLACK


def test_the_words_on_six_problems_turn_round_with_the_rows():
    def line(points, low):
        return {"points": points, "nats to scaled low": low}

    table = pd.DataFrame.from_dict(
        {"a": line(-0.5, 0.1), "b": line(-1.5, -0.1), "a, told": line(-4.0, 0.2)}, orient="index"
    )
    assert "In 0 of 2 problems told of no noise" in strategies.six_problems_in_words(table, 0.4)
    untold, told = strategies.six_problems_in_words(table, 0.5).split("In ")[1:]
    assert untold.startswith("1 of 2 problems told of no noise")
    assert "(the largest fall is 1.50)" in untold
    assert "in 1 of them" in untold
    assert told.startswith("0 of 1 problems told the flip rate")
