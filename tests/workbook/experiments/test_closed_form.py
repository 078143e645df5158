"""Ratios of test losses on the stored rows of profile link, recomputed from the files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from softadlib.workbook.experiments import closed_form

FOLDER = Path(__file__).resolve().parents[3] / "outputs" / "link" / "vehicle"


@pytest.fixture(scope="module")
def long():
    every = closed_form.relative_losses("link")
    return every[every["dataset"] == "vehicle"]


def stored(method, trial, label_noise):
    """Return the rows of one trial as the file has them: the best epoch, if it is another, and the last."""
    rows = pd.read_parquet(FOLDER / f"{method}.parquet")
    return rows[(rows["trial"] == trial) & (rows["label_noise"] == label_noise)]


def ratio(long, side, form, trial, label_noise):
    of = closed_form.at_small_theta(long)
    of = of[(of["side"] == side) & (of["form"] == form)]
    (value,) = of.loc[(of["trial"] == trial) & (of["label_noise"] == label_noise), "ratio"]
    return value


@pytest.mark.parametrize(("trial", "label_noise"), [(0, 0.0), (3, 0.1), (9, 0.2)])
def test_a_ratio_is_that_of_the_losses_in_the_files(long, trial, label_noise):
    erm = stored("erm", trial, label_noise)
    softad = stored("softad", trial, label_noise)
    softad = softad[softad["knob"] == 0.01]
    erm_last = erm.loc[erm["epoch"].idxmax()]
    last = softad.loc[softad["epoch"].idxmax()]
    erm_best = erm.loc[erm["loss_val"].idxmin()]
    best = softad.loc[softad["loss_val"].idxmin()]
    expected = {
        ("last epoch", "softmax"): last["loss_test"] / erm_last["loss_test"],
        ("last epoch", "closed form"): last["linked_loss_test"] / erm_last["loss_test"],
        ("last epoch", "one temperature"): last["prior_loss_test"] / erm_last["loss_test"],
        ("stopped early", "softmax"): best["loss_test"] / erm_best["loss_test"],
        ("stopped early", "closed form"): last["linked_best_loss_test"] / erm_best["loss_test"],
    }
    for (side, form), value in expected.items():
        assert ratio(long, side, form, trial, label_noise) == pytest.approx(value, rel=1e-6)


def test_erm_relative_to_itself_is_one(long):
    erm = long[(long["method"] == "erm") & (long["form"] == "softmax")]
    assert len(erm) == 60  # 10 trials, 3 fractions, 2 sides
    assert (erm["ratio"] == 1).all()


def test_of_sets_is_the_geometric_mean_over_trials(long):
    softad = closed_form.at_small_theta(long)
    line = closed_form.of_sets(softad, ["label_noise", "side", "form"]).iloc[0]
    same = softad[
        (softad["label_noise"] == line["label_noise"])
        & (softad["side"] == line["side"])
        & (softad["form"] == line["form"])
    ]
    assert line["n"] == len(same) == 10
    assert line["ratio"] == pytest.approx(np.prod(same["ratio"]) ** (1 / 10))


def test_the_temperature_of_erm_is_the_geometric_mean_over_trials_in_the_file():
    rows = pd.read_parquet(FOLDER / "erm.parquet")
    rows = rows[rows["label_noise"] == 0.1]
    last = rows[rows["epoch"] == rows["epoch"].max()]
    best = rows.loc[rows.groupby("trial")["loss_val"].idxmin()]
    found = closed_form.erm_temperatures("link")
    found = found[(found["dataset"] == "vehicle") & (found["label_noise"] == 0.1)]
    found = found.set_index("side")["temperature"]
    assert len(last) == len(best) == 10
    for side, of in (("last epoch", last), ("stopped early", best)):
        product = of["prior_temperature"].prod()
        assert found[side] == pytest.approx(product ** (1 / 10), rel=1e-9)
