"""Every computed sentence turns round where its rows do."""

import math

import pandas as pd
import pytest

from softadlib.analysis import readings

METHODS = ("erm", "flooding", "iflood", "sam", "softad")


def row(
    method,
    knob=0.1,
    trial=0,
    *,
    train=0.1,
    test=0.2,
    acc=0.9,
    norm=50.0,
    val=0.9,
    dataset="gaussian",
):
    return {
        "dataset": dataset, "label_noise": 0.0, "method": method, "trial": trial,
        "knob": math.nan if method == "erm" else knob, "epoch": 9, "loss_train": train,
        "loss_test": test, "loss_val": test, "acc_train": 1.0, "acc_test": acc, "acc_val": val, "model_norm": norm,
    }  # fmt: skip


def rows(**changes):
    """One run of each method, two trials; `changes`: method → other values than `row`'s."""
    defaults = {
        "erm": {"train": 0.0, "test": 0.3},
        "softad": {"train": 0.5, "test": 0.55, "acc": 0.901},
    }
    return pd.DataFrame(
        [
            row(m, trial=t, **defaults.get(m, {}) | changes.get(m, {}))
            for m in METHODS
            for t in (0, 1)
        ]
    )


AS_CLAIMED = rows()
ALTERED = rows(
    erm={"train": 0.5, "test": 0.6, "norm": 40.0},
    softad={"train": 0.0, "test": 0.5, "acc": 0.8, "knob": 0.05},
    iflood={"train": 0.0, "test": 0.6},
)


@pytest.mark.parametrize(
    ("function", "start"),
    [
        (readings.gap_readings, "SoftAD has the smallest mean gap"),
        (readings.gap_readings, "ERM has the largest"),
        (readings.gap_readings, "SoftAD's test loss is above ERM's"),
    ],
)
def test_gap_sentences_turn_round(function, start):
    for table, where in ((AS_CLAIMED, "on every set here"), (ALTERED, "on no set here")):
        lines = [s for s in function(table) if start in s]
        assert len(lines) == 2, "one a tie rule"
        assert all(where in s for s in lines), lines


def test_iflood_against_softad():
    closer = rows(iflood={"train": 0.19})
    for table, where in ((AS_CLAIMED, "on no set here"), (closer, "on every set here")):
        (line, _) = [s for s in readings.gap_readings(table) if "iFlood's gap" in s]
        assert where in line


def test_accuracies_stand_with_their_sign():
    words = "SoftAD's mean test accuracy minus ERM's, in points:"
    for table, change in ((AS_CLAIMED, "+0.1"), (ALTERED, "-10.0")):
        lines = [s for s in readings.gap_readings(table) if words in s]
        assert len(lines) == 2, "one a tie rule"
        assert all(s.endswith(f"{words} {change} on gaussian.") for s in lines)


def test_gaps_that_are_not_apart_by_pairs_are_named_only_then():
    words = (
        "The 95 % interval of paired trials does not tell the two smallest gaps apart on gaussian"
    )

    def closest(table):
        return [s.partition(": ")[2] for s in readings.gap_readings(table) if words in s]

    assert closest(AS_CLAIMED) == [], "each pair differs by 0.05"
    # two trials far apart, each pair alike: the intervals of the means overlap, that of the difference does not
    shifted = AS_CLAIMED.assign(loss_test=AS_CLAIMED["loss_test"] + AS_CLAIMED["trial"])
    assert closest(shifted) == []
    spread = AS_CLAIMED.copy()
    spread.loc[(spread["method"] == "softad") & (spread["trial"] == 1), "loss_test"] = 0.6
    # differences of 0.05 and 0; 12.706 is Student's 97.5 % quantile of one degree of freedom
    half = 12.706 * 0.025
    assert (
        closest(spread)
        == [f"{words} (Flooding minus SoftAD: 0.025 [{0.025 - half:.3f}, {0.025 + half:.3f}])."] * 2
    )


def test_unequal_numbers_of_trials_are_named_only_then():
    assert not any("different data" in s for s in readings.gap_readings(AS_CLAIMED))
    more = pd.concat([AS_CLAIMED, pd.DataFrame([row("erm", trial=2, train=0.0, test=0.3)])])
    other = AS_CLAIMED.assign(dataset="spiral")
    assert [
        s for s in readings.gap_readings(pd.concat([more, other])) if "different data" in s
    ] == [
        "On gaussian methods have 2 to 3 trials: means of two methods may be over different data."
    ]


def test_theta_sentences_turn_round():
    above = pd.concat([rows(softad={"knob": 0.5}), rows(softad={"knob": 0.6, "val": 0.5})])
    below = rows(softad={"knob": 0.05})
    assert "is above Flooding's on every set here" in readings.theta_readings(above)[0]
    assert "gaussian 0.50 against 0.10" in readings.theta_readings(above)[0]
    assert "it is above in 2 of 2 on gaussian" in readings.theta_readings(above)[1]
    assert "is above Flooding's on no set here" in readings.theta_readings(below)[0]
    assert "it is above in 0 of 2 on gaussian" in readings.theta_readings(below)[1]


def test_trajectory_sentences_turn_round():
    norm, order, loss = readings.trajectory_readings(
        AS_CLAIMED.assign(model_norm=AS_CLAIMED["loss_test"].rsub(60))
    )
    assert "SoftAD's is the smallest" in norm
    assert "the highest training loss is that of the same method" in norm
    assert "(not the same order)" in order
    assert "above ERM's 0.300" in loss
    norm, order, loss = readings.trajectory_readings(ALTERED)
    assert "ERM's is the smallest at the end, 40.0" in norm
    assert "below ERM's 0.600" in loss
    assert "-10.0 points" in loss
    same = rows(erm={"train": 0.01}, sam={"train": 0.02, "test": 0.31}, flooding={"train": 0.03, "test": 0.32},
                iflood={"train": 0.04, "test": 0.33})  # fmt: skip
    assert "(the same order)" in readings.trajectory_readings(same)[1]


def test_sentences_along_the_grid_turn_round():
    def grid(high_acc, low_loss):
        swept = [row("softad", 0.1, test=low_loss), row("softad", 0.8, acc=high_acc)]
        return pd.DataFrame([row("erm", test=0.3), *swept])

    across, low = readings.grid_readings(grid(0.1, 0.2))
    assert (
        "from θ = 0.10 to 0.80, across ln 2, SoftAD's accuracy goes from 90.0% to 10.0%" in across
    )
    assert "0.200 is below ERM's 0.300" in low
    across, low = readings.grid_readings(grid(0.95, 0.4))
    assert "90.0% to 95.0%" in across
    assert "0.400 is not below ERM's 0.300" in low


def test_a_theta_of_each_trials_own_is_no_grid():
    own = [row("softad", 0.1, 0), row("softad", 0.2, 1), row("erm", trial=0), row("erm", trial=1)]
    assert readings.grid_readings(pd.DataFrame(own)) == []
    both = [*own, row("softad", 0.3, 0), row("softad", 0.3, 1)]
    (line,) = readings.grid_readings(pd.DataFrame(both))
    assert line.startswith("gaussian: at θ = 0.30, the smallest of the grid")
    (alone,) = readings.grid_readings(pd.DataFrame([row("softad", 0.1), row("erm")]))
    assert alone.startswith("gaussian: at θ = 0.10, SoftAD's test loss")


def test_nothing_is_compared_with_erm_where_there_is_none():
    swept = [row("softad", 0.1), row("softad", 0.8, acc=0.2)]
    (across,) = readings.grid_readings(pd.DataFrame(swept))
    assert "across ln 2" in across


def test_few_trials_decide_nothing():
    assert "no exact permutation test" in readings.trials_sentence([3, 3])
    assert "n = 1 to 3" in readings.trials_sentence([1, 3])
    mixed = readings.trials_sentence([3, 15])
    assert mixed.startswith("n = 3 to 15; sets with fewer than 6 trials cannot show a difference")
    assert readings.trials_sentence([6, 15]) == "n = 6 to 15."


def test_no_sentence_without_the_methods_it_speaks_of():
    assert readings.gap_readings(AS_CLAIMED[AS_CLAIMED["method"] != "sam"]) == []
    assert readings.theta_readings(AS_CLAIMED[AS_CLAIMED["method"] == "erm"]) == []
    assert readings.trajectory_readings(AS_CLAIMED[AS_CLAIMED["method"] == "erm"]) == []


def test_sentences_of_one_tie_rule_stand_below_its_name():
    largest, smallest = readings.RULES.values()
    sentences = ["One.", f"{largest}: Two.", f"{largest}: Three.", f"{smallest}: Four.", "Five."]
    expected = [
        "- One.",
        f"- {largest}:",
        "  - Two.",
        "  - Three.",
        f"- {smallest}:",
        "  - Four.",
        "- Five.",
    ]
    assert readings.bullets(sentences).splitlines() == expected
