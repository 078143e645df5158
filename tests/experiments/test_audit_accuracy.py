"""Claims on accuracy and on the speed of convergence, against numbers worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from softadlib.experiments.audit import accuracy

CASE = {"dataset": "gaussian", "label_noise": 0.0}


def selected(**accuracies):
    """One selected run of each method and trial."""
    return pd.DataFrame(
        [
            {**CASE, "method": method, "trial": trial, "acc_test": value, "knob": knob}
            for method, values in accuracies.items()
            for trial, value in enumerate(values)
            for knob in [np.nan if method == "erm" else 0.1]
        ]
    )


def test_accuracy_by_hand():
    """Differences −1 and +1 points: mean 0, half width 12.706 (Student, 1 degree of freedom)."""
    (line,) = accuracy.compare_accuracy(
        selected(erm=[0.80, 0.80], softad=[0.79, 0.81]), margin=1.0
    ).to_dict("records")
    assert line["mean"] == pytest.approx(0)
    assert line["high"] == pytest.approx(12.7062, abs=1e-3)
    assert (line["against"], line["finds"], line["n"]) == ("erm", "open", 2)


@pytest.mark.parametrize(
    ("ours", "word"), [([0.795, 0.7951], "comparable"), ([0.70, 0.7001], "lower")]
)
def test_findings_follow_the_interval(ours, word):
    chosen = selected(erm=[0.8, 0.8], softad=ours)
    table = accuracy.compare_accuracy(chosen, margin=1.0)
    assert table["finds"].tolist() == [word]
    (sentence,) = accuracy.readings(table, pd.DataFrame(), 1.0)
    assert f"shown in {int(word == 'comparable')} of 1" in sentence
    assert f"contradicted in {int(word == 'lower')}" in sentence


def curve(method, trial, losses):
    knob = np.nan if method == "erm" else 0.1
    facts = {**CASE, "method": method, "trial": trial, "knob": knob}
    return [{**facts, "epoch": epoch, "loss_test": loss} for epoch, loss in enumerate(losses)]


def test_epochs_to_loss_by_hand():
    """ERM's lowest is 0.5, so the level is 0.55; epoch 0 is before any step and does not count."""
    rows = pd.DataFrame(
        [
            *curve("erm", 0, [0.4, 0.9, 0.6, 0.5, 0.8]),
            *curve("softad", 0, [0.7, 0.55, 0.56, 0.6, 0.6]),
            *curve("flooding", 0, [0.7, 0.6, 0.6, 0.6, 0.6]),
        ]
    )
    other = pd.DataFrame(curve("softad", 0, [0.1, 0.1])).assign(knob=0.2)  # not selected
    chosen = selected(erm=[1.0], softad=[1.0], flooding=[1.0])
    table = accuracy.epochs_to_loss(pd.concat([rows, other]), chosen, factor=1.1)
    assert table.set_index("method")["epochs"].to_dict() == {
        "erm": 3.0, "softad": 1.0, "flooding": pytest.approx(np.nan, nan_ok=True),
    }  # fmt: skip
    summary = accuracy.fastest(table)
    assert summary["reached"].loc[("gaussian", 0.0), "flooding"] == "0 of 1"
    assert np.isinf(summary["median epoch"].loc[("gaussian", 0.0), "flooding"])
    (sentence,) = accuracy.readings(pd.DataFrame(), table, 1.0)
    assert "smallest in 1 of 1 cases (n = 1 trials)" in sentence


def test_epochs_are_those_of_trials_of_which_every_method_has_a_curve():
    erm = curve("erm", 0, [0.9, 0.6, 0.5]) + curve("erm", 1, [0.9, 0.5, 0.6])
    rows = pd.DataFrame(
        erm + curve("softad", 0, [0.9, 0.5, 0.5]) + curve("softad", 1, [0.9, 0.5])[1:]
    )
    table = accuracy.epochs_to_loss(rows, selected(erm=[1.0, 1.0], softad=[1.0, 1.0]), 1.1)
    assert table["trial"].tolist() == [0, 0], "SoftAD's second trial was measured at its end alone"


def test_runs_measured_at_the_end_alone_have_no_epochs():
    rows = pd.DataFrame(curve("erm", 0, [0.4, 0.9])[1:])
    assert accuracy.epochs_to_loss(rows, selected(erm=[1.0]), 1.1).empty
