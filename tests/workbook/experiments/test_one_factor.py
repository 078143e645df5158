"""Claims beside ERM and the choice among runs, on rows made by hand."""

import math

import pandas as pd
import pytest

from softadlib.workbook.experiments import one_factor
from softadlib.workbook.studies.params import load

ERM_GAPS = (0.10, 0.12, 0.11, 0.13, 0.09, 0.12)


def runs(method, knob, gaps, accuracy, setting="as the paper", loss=0.3):
    """One run a trial; norms rise from 10 on, whatever the method."""
    return pd.DataFrame(
        {
            "setting": setting,
            "dataset": "spiral",
            "method": method,
            "knob": knob,
            "trial": range(len(gaps)),
            "gap": gaps,
            "model_norm": [10.0 + trial for trial in range(len(gaps))],
            "acc_test": accuracy,
            "loss_train": [loss - gap for gap in gaps],
            "loss_test": loss,
        }
    )


def softad_finds(gaps, accuracy, **options):
    rows = pd.concat(
        [runs("erm", math.nan, ERM_GAPS, 0.9), runs("softad", 0.01, gaps, accuracy, **options)]
    )
    return one_factor.beside_erm(rows, margin=1.0).set_index("claim")


def test_six_smaller_gaps_are_a_finding_and_equal_norms_none():
    found = softad_finds([gap - 0.05 for gap in ERM_GAPS], 0.9)
    assert found["finds"].to_dict() == {
        "smaller gap": "yes",
        "smaller norm": "open",
        "accuracy as good": "yes",
        "lower test loss": "open",
    }
    assert found.loc["smaller gap", "mean"] == pytest.approx(-0.05)
    assert found.loc["smaller gap", "ratio"] == pytest.approx((0.67 - 0.30) / 0.67)
    assert set(found["n"]) == {6}


def test_the_opposite_is_a_no_and_lost_accuracy_too():
    found = softad_finds([gap + 0.05 for gap in ERM_GAPS], 0.88, loss=0.4)["finds"]
    assert found["smaller gap"] == found["lower test loss"] == "no"
    assert found["accuracy as good"] == "no"
    near = softad_finds(ERM_GAPS, [0.88, 0.9] * 3)["finds"]
    assert near["accuracy as good"] == "open"  # −1 point on average, not known better


def test_diverged_runs_are_left_out_and_five_trials_decide_nothing():
    found = softad_finds([0.01] * 5 + [math.nan], 0.9)
    assert set(found["n"]) == {5}
    assert set(found["finds"]) == {"n < 6"}


def test_counts_are_over_settings_and_sets():
    yes = softad_finds([gap - 0.05 for gap in ERM_GAPS], 0.9).reset_index()
    no = softad_finds([gap + 0.05 for gap in ERM_GAPS], 0.9).reset_index()
    counted = one_factor.counts(pd.concat([yes, yes, no]))
    assert counted.loc[("softad", 0.01), "smaller gap"] == "2 / 0 / 1"
    assert counted.loc[("softad", 0.01), "smaller norm"] == "0 / 3 / 0"


def test_the_best_run_has_the_highest_accuracy_then_the_lowest_loss():
    rows = pd.DataFrame(
        {
            "dataset": "spiral",
            "trial": [0, 0, 0, 1, 1],
            "acc_val": [0.9, 0.9, 0.8, 0.7, 0.9],
            "loss_val": [0.5, 0.4, 0.3, 0.1, math.inf],
            "name": ["a", "b", "c", "d", "diverged"],
        }
    )
    assert one_factor.best(rows, "accuracy")["name"].tolist() == ["b", "d"]
    assert one_factor.best(rows, "loss")["name"].tolist() == ["c", "d"]


@pytest.mark.parametrize("dataset", ["gaussian", "sinusoid", "spiral"])
def test_every_setting_changes_one_thing(dataset):
    base = load("robust", dataset).to_dict()
    for profile in one_factor.SETTINGS:
        changed = load(profile, dataset).to_dict()
        names = {name for name in base if changed[name] != base[name]}
        names -= {"profile", "grids"}
        assert names in (set(), {"optimizer", "weight_decay"}) or len(names) == 1
        assert (names == set()) == (profile == "robust")
        assert ("decay" in changed["grids"]) == (profile in one_factor.LEARNING_RATES)
