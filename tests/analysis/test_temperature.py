"""Losses after temperature scaling, paired with ERM, and reliability: numbers by hand."""

import numpy as np
import pandas as pd
import pytest
from helpers.losses import run
from scipy import stats

from softadlib.analysis import temperature

TRIALS = range(4)


def made_up(softad_scaled=0.4, erm_scaled=0.5):
    """As trained SoftAD has test loss 0.6 + t/100, ERM 0.3; gaps 0.1 and 0.29. Scaled as told."""
    rows = []
    for t in TRIALS:
        for method, knob, train, test, scaled in (
            ("softad", 0.5, 0.5 + t / 100, 0.6 + t / 100, softad_scaled + t / 1000),
            ("erm", None, 0.01, 0.3, erm_scaled),
        ):
            losses = {"train": [train], "val": [1.0], "test": [test]}
            columns = {
                f"{fit}_loss": {"train": scaled - 0.1 * (method == "erm"), "test": scaled}
                for fit in ("plain", "prior")
            }
            columns |= {f"{fit}_temperature": {"test": 0.25} for fit in ("plain", "prior")}
            columns["ece"] = {"test": 0.2}
            rows.append(run(method, t, knob, losses, **columns))
    return pd.concat(rows, ignore_index=True)


def test_runs_have_loss_gap_and_calibration_error_of_every_scaling():
    table = temperature.scaled(made_up())
    trained = table.loc[("gaussian", "softad", "as trained")]
    assert trained["loss"] == pytest.approx(0.615)
    assert trained[["gap", "ece", "temperature", "n"]].tolist() == pytest.approx([0.1, 0.2, 1, 4])
    scaled = table.loc[("gaussian", "erm", "fit with prior")]
    assert scaled[["loss", "gap", "temperature"]].tolist() == pytest.approx([0.5, 0.1, 0.25])


def test_differences_are_paired_with_students_interval():
    table = temperature.against_erm(made_up()).set_index(["method", "scaling"])
    row = table.loc[("softad", "as trained")]
    differences = [0.3 + t / 100 for t in TRIALS]
    half = stats.t.ppf(0.975, 3) * pd.Series(differences).std() / 2
    assert row[["loss", "loss_low", "loss_high"]].tolist() == pytest.approx(
        [0.315, 0.315 - half, 0.315 + half]
    )
    assert row["n"] == 4
    assert table.loc[("softad", "fit with prior"), "loss_high"] < 0


def test_one_run_that_fell_to_its_bound_does_not_make_the_middle():
    rows = made_up()
    fallen = (rows["method"] == "erm") & (rows["trial"] == 2) & (rows["part"] == "test")
    rows.loc[fallen, "plain_loss"] = 300.0
    assert temperature.scaled(rows).loc[("gaussian", "erm", "plain fit"), "loss"] == 0.5


def test_without_erm_or_without_rows_there_is_nothing_to_compare():
    rows = made_up()
    assert temperature.against_erm(rows[rows["method"] == "softad"]).empty
    assert temperature.against_erm(rows[:0]).empty


def test_reliability_of_two_classes_by_counting():
    """Losses of a probability p of the right class, from draws; accuracy and confidence counted."""
    p = np.random.default_rng(0).beta(4, 2, 20_000)
    quantiles = np.quantile(-np.log(p), np.linspace(0, 1, 1001))
    table = temperature.reliability(quantiles, bins=5)
    confidence, right = np.maximum(p, 1 - p), p > 0.5
    for place in range(5):
        inside = (confidence >= 0.5 + place / 10) & (confidence < 0.6 + place / 10)
        assert table.loc[place, "confidence"] == pytest.approx(confidence[inside].mean(), abs=0.005)
        assert table.loc[place, "accuracy"] == pytest.approx(right[inside].mean(), abs=0.03)
        assert table.loc[place, "share"] == pytest.approx(inside.mean(), abs=0.01)
    assert table["share"].sum() == pytest.approx(1)


def test_a_loss_held_at_theta_is_right_and_hardly_confident():
    table = temperature.reliability(np.full((3, 101), 0.6))
    (line,) = table.to_dict("records")
    assert line == {"confidence": pytest.approx(np.exp(-0.6)), "accuracy": 1.0, "share": 1.0}
