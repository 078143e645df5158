"""Losses after temperature scaling, paired with ERM: numbers by hand, and sentences that turn round."""

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
    assert row[["loss is", "gap is", "n"]].tolist() == ["larger", "smaller", 4]
    assert table.loc[("softad", "fit with prior"), "loss is"] == "smaller"


def test_sentences_turn_round_with_their_rows():
    gap, loss, _ = temperature.readings(made_up(0.4, 0.5015))
    assert gap.startswith(
        "SoftAD's gap against ERM's: smaller as trained and after either fit on gaussian (-0.190, "
    )
    assert loss == (
        "SoftAD's test loss against ERM's: larger as trained, smaller after either fit on gaussian "
        "(+0.315, -0.100 and -0.100, n = 4)."  # 0.615 − 0.3 and 0.4015 − 0.5015
    )
    higher = temperature.readings(made_up(0.5, 0.4))
    assert "larger as trained and after either fit on gaussian" in higher[1]
    equal = temperature.readings(made_up(0.4985, 0.5))
    assert "larger as trained, undecided after either fit on gaussian" in equal[1]
    assert "fit with prior SoftAD 0.40" in "".join(temperature.best_readings(made_up(0.4, 0.5)))
    assert "fit with prior ERM 0.40" in "".join(temperature.best_readings(made_up(0.5, 0.4)))


def test_the_best_is_named_among_methods_with_equally_many_trials():
    rows = made_up(0.4, 0.5)
    fewer = rows[(rows["method"] != "softad") | (rows["trial"] < 2)]
    said = temperature.best_readings(fewer)
    assert all("of the methods with 4 trials: " in sentence for sentence in said)
    assert "SoftAD" not in "".join(said), "its mean is over other trials"


def test_a_fit_that_fell_to_its_bound_is_not_ranked():
    rows = made_up(0.4, 0.5)
    fallen = (rows["method"] == "erm") & (rows["trial"] == 2) & (rows["part"] == "test")
    rows.loc[fallen, "plain_temperature"] = 1e-3
    said = temperature.best_readings(rows)
    assert said[:2] == [
        "gaussian, lowest test loss of all methods: as trained ERM 0.300, fit with prior SoftAD 0.402.",
        "gaussian, smallest gap of all methods: as trained SoftAD 0.100, fit with prior SoftAD 0.000.",
    ]
    assert said[2:] == [
        "gaussian, plain fit: not ranked, since T falls to its bound in 1 run of these methods."
    ]


def test_one_trial_decides_nothing():
    rows = made_up()
    for sentence in temperature.readings(rows[rows["trial"] == 0])[:2]:
        assert "undecided as trained and after either fit" in sentence


def test_fits_that_disagree_are_both_told():
    rows = made_up(0.5, 0.4)  # larger than ERM's
    is_test = (rows["method"] == "softad") & (rows["part"] == "test")
    rows.loc[is_test, "prior_loss"] -= 0.3  # smaller
    assert (
        "larger as trained, larger after the plain fit, smaller after the fit with prior on gaussian "
        "(+0.315, +0.101 and -0.199, n = 4)"
    ) in temperature.readings(rows)[1]


def test_without_erm_or_without_rows_there_is_nothing_to_say():
    rows = made_up()
    assert temperature.readings(rows[rows["method"] == "softad"]) == []
    assert temperature.scaled(rows[:0]).empty
    assert temperature.against_erm(rows[:0]).empty
    assert temperature.readings(rows[:0]) == temperature.best_readings(rows[:0]) == []
