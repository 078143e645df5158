"""Methods beside the paper's: which runs are selected, paired differences, sentences and a picture of them."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from helpers.workspace import TINY, make_home
from matplotlib.collections import LineCollection, PathCollection
from scipy import stats

from softadlib.experiments import beyond
from softadlib.results import reader
from softadlib.training import study
from softadlib.training.protocol import Protocol

MEASURED = {"gap": 0.2, "loss_test": 0.3, "acc_test": 0.9, "model_norm": 5.0, "knob": 0.5}


def made_up(**losses):
    """Runs of three trials on one set; a method's test losses, the gap 0.1 below each."""
    names = {"erm": "ERM", "asam": "ASAM", "softad": "SoftAD", "auto": "SoftAD (θ: auto)"}
    rows = [
        MEASURED
        | {"dataset": dataset, "method": "softad" if method == "auto" else method, "trial": t}
        | {"name": names[method], "loss_test": loss, "gap": loss - 0.1}
        for dataset in ("spiral", "gaussian")
        for method, values in losses.items()
        for t, loss in enumerate(values)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Profile `paper` with a grid for SoftAD, profile `more` with ASAM and a suggested θ; both have ERM."""
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path)))
    grids = {"paper": {"softad": [0.05, 0.2]}, "more": {"softad": "auto", "asam": [0.5, 1.0]}}
    for profile, grid in grids.items():
        values = TINY | {"profile": profile, "dataset": "gaussian", "grids": grid, "curves": "none"}
        for method in ("erm", *grid):
            study.run(Protocol.from_dict(values | {"device": "cpu"}), method)


def test_a_grid_is_read_from_the_paper_and_a_suggested_theta_is_a_method_of_its_own(home):
    runs = beyond.selected("more", "paper")
    assert beyond.names_in(runs) == ["ERM", "SoftAD", "SoftAD (θ: auto)", "ASAM"]
    assert not runs.duplicated(["name", "trial"]).any(), "ERM is in both profiles"
    grid = runs[runs["name"] == "SoftAD"]
    assert grid["knob"].isin([0.05, 0.2]).all()
    assert not runs.loc[runs["name"] == "SoftAD (θ: auto)", "knob"].isin([0.05, 0.2]).any()
    assert runs["gap"].tolist() == (runs["loss_test"] - runs["loss_train"]).tolist()
    assert "AdaFlood" in beyond.untrained(runs)
    assert "ASAM" not in beyond.untrained(runs)


def test_means_are_over_the_trials_that_every_method_has(home):
    """The paper's grid gets a third trial, which the other methods lack."""
    before = beyond.selected("more", "paper")
    values = TINY | {"profile": "paper", "dataset": "gaussian", "trials": TINY["trials"] + 1}
    values |= {"grids": {"softad": [0.05, 0.2]}, "curves": "none", "device": "cpu"}
    study.run(Protocol.from_dict(values), "softad")
    stored = reader.read("paper", final=True)
    assert stored.groupby("method")["trial"].nunique().to_dict() == {"erm": 2, "softad": 3}
    pd.testing.assert_frame_equal(beyond.selected("more", "paper"), before)


def test_differences_are_paired_by_trial_with_students_interval():
    erm, asam = [0.5, 0.6, 0.9], [0.4, 0.51, 0.79]
    line = beyond.against_erm(made_up(erm=erm, asam=asam)).iloc[0]
    differences = pd.Series([-0.1, -0.09, -0.11])
    half = stats.t.ppf(0.975, 2) * differences.std() / 3**0.5
    assert line[["loss", "loss_low", "loss_high"]].tolist() == pytest.approx(
        [-0.1, -0.1 - half, -0.1 + half]
    )
    assert line[["dataset", "name", "loss is", "n"]].tolist() == ["gaussian", "ASAM", "smaller", 3]
    assert beyond.against_erm(made_up(asam=asam)).empty


def test_sentences_turn_round_with_their_rows():
    erm = [0.5, 0.6, 0.9]
    better = beyond.readings(made_up(erm=erm, asam=[0.4, 0.51, 0.79]))
    assert better[0] == (
        "gaussian: the smallest gap is ASAM's 0.467, the smallest test loss ASAM's 0.567, "
        "the highest accuracy ERM's 90.0%."
    )
    assert "Mean test loss below ERM's on each of its sets: ASAM." in better
    assert (
        "Smaller test loss than ERM's by the 95 % interval, not adjusted for 2 comparisons: "
        "ASAM on gaussian and spiral."
    ) in better
    worse = beyond.readings(made_up(erm=erm, asam=[0.6, 0.51, 0.99]))
    assert "the smallest test loss ERM's 0.667" in worse[0]
    assert "Mean test loss below ERM's on none of its sets: ASAM." in worse
    assert not any("interval" in sentence for sentence in worse)
    assert "At n = 3 no exact permutation test" in worse[-1]
    known = beyond.readings(made_up(erm=erm, softad=erm, auto=erm))
    named = [sentence for sentence in known if sentence.startswith("Mean gap")]
    assert named == ["Mean gap below ERM's on none of its sets: SoftAD (θ: auto)."], (
        "Table 1 has SoftAD itself"
    )


def test_the_picture_has_a_dot_a_trial_and_a_bar_at_their_mean():
    runs = made_up(erm=[0.5, 0.6, 0.9], asam=[0.4, 0.51, 0.79])
    figure = beyond.method_panels(runs, ["gaussian", "spiral"], beyond.MEASURES)
    assert len(figure.axes) == 8
    for ax in figure.axes:
        dots = [drawn for drawn in ax.collections if isinstance(drawn, PathCollection)]
        bars = [drawn for drawn in ax.collections if isinstance(drawn, LineCollection)]
        assert len(dots) == len(bars) == 2
        for trials, bar in zip(dots, bars):
            ((start, _),) = bar.get_segments()
            assert len(trials.get_offsets()) == 3
            assert start[0] == pytest.approx(trials.get_offsets()[:, 0].mean())
    plt.close(figure)


def test_the_rule_behind_a_suggested_theta_is_named():
    advice = pd.DataFrame(
        {
            "dataset": ["spiral", "gaussian", "gaussian"],
            "rule": [1, 2, 2],
            "theta": [0.06, None, 0.1],
            "theta_low": [0.02, 0.01, 0.01],
        }
    )
    assert beyond.suggestion_readings(advice) == [
        "θ: auto comes from rule 1 of `suggest_theta` on spiral.",
        "θ: auto comes from rule 2 of `suggest_theta` on gaussian.",
        "It suggests none in 1 of 2 trials of gaussian. There SoftAD was trained at θ = 0.01, the "
        "smallest value that it can suggest.",
    ]
    assert beyond.suggestion_readings(pd.DataFrame()) == []
