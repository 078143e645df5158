"""Grids that say `auto`: θ read off an ordinary run of every trial, found once and kept."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.workspace import TINY, make_home

from softadlib._validation import UserError
from softadlib.losses.threshold import suggest
from softadlib.results import reader as store
from softadlib.results import selection
from softadlib.results.schema import MEASURES
from softadlib.training import auto_theta, study
from softadlib.training.executors import train_task
from softadlib.training.protocol import Protocol
from softadlib.workbook.cli import main


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path, sinusoid={"epochs": 12})


def protocol(method="softad", word="auto", **changes):
    base = {"profile": "tiny", "dataset": "sinusoid", "device": "cpu", **TINY, "epochs": 12}
    return Protocol.from_dict({**base, "grids": {method: word}, **changes})


@pytest.fixture
def work(monkeypatch):
    """What is trained from here on: ordinary runs as (noise, trial), others as runs."""
    done = {"ordinary": [], "runs": []}
    ordinary, runs = auto_theta.train_erm, train_task.train_runs

    def spy_ordinary(protocol, noise, trials, *args, **more):
        for trial, *rest in ordinary(protocol, noise, trials, *args, **more):
            done["ordinary"].append((noise, trial))
            yield trial, *rest

    def spy_runs(protocol, some, *rest):
        done["runs"] += some
        return runs(protocol, some, *rest)

    monkeypatch.setattr(auto_theta, "train_erm", spy_ordinary)
    monkeypatch.setattr(train_task, "train_runs", spy_runs)
    return done


@pytest.fixture
def distinct_thetas(monkeypatch):
    """Every trial's suggestion differs: short trainings would all be advised against every θ."""
    rule = auto_theta.suggest_theta

    def suggest_distinct(z, y):
        return dataclasses.replace(rule(z, y), theta=0.02 + 0.01 * z.abs().mean().item())

    monkeypatch.setattr(auto_theta, "suggest_theta", suggest_distinct)


def trained_at(suggestion, field="theta"):
    """θ of a study: the smallest one where none is suggested."""
    return max(0.01, getattr(suggestion, field) or 0.0)


def thetas(rows):
    return rows.groupby(["label_noise", "trial"])["knob"].first().tolist()


def test_two_trainings_a_trial_and_none_again(work, home, distinct_thetas):
    p, ticks = protocol(label_noise=[0.0, 0.1]), []
    units = study.Study(p, "softad").total_work()
    rows = study.run(p, "softad", progress=ticks.append)
    assert sorted(work["ordinary"]) == [(0.0, 0), (0.0, 1), (0.1, 0), (0.1, 1)]
    assert len(work["runs"]) == 4
    assert sum(ticks) == units == 8 * 12
    assert rows.groupby(["label_noise", "trial"])["knob"].nunique().tolist() == [1] * 4
    assert len(set(thetas(rows))) == 4, "each trial has its own"
    assert study.Study(p, "softad").done()
    ticks.clear()
    pd.testing.assert_frame_equal(study.run(p, "softad", progress=ticks.append), rows)
    assert len(work["ordinary"]) == len(work["runs"]) == 4
    assert sum(ticks) == units
    (line,) = store.provenances("tiny").itertuples()
    assert (line.runs, line.grid) == (4, 1)


def test_theta_is_that_of_the_ordinary_runs_validation_logits(monkeypatch):
    seen, rule = [], auto_theta.suggest_theta
    monkeypatch.setattr(auto_theta, "suggest_theta", lambda z, y: seen.append((z, y)) or rule(z, y))
    rows = study.run(protocol(), "softad")
    erm = selection.final(study.run(protocol(), "erm"))
    losses = [torch.nn.functional.cross_entropy(z, y).item() for z, y in seen]
    assert losses == pytest.approx(erm["loss_val"].tolist(), rel=1e-9)
    hits = [(z.argmax(1) == y).double().mean().item() for z, y in seen]
    assert hits == erm["acc_val"].tolist()
    assert thetas(rows) == [trained_at(rule(z, y)) for z, y in seen]


def test_rows_are_those_of_a_grid_of_that_one_value():
    rows = study.run(protocol(), "softad")
    theta = thetas(rows)[1]
    named = study.run(protocol(grids={"softad": [theta]}, profile="named"), "softad")
    ours, theirs = (r[r["trial"] == 1].reset_index(drop=True) for r in (rows, named))
    assert ours[list(MEASURES)].equals(theirs[list(MEASURES)])
    assert not selection.select(rows)["at_edge"].any(), "one suggested value has no edges"


@pytest.mark.parametrize("method", ["softad", "iflood", "flooding"])
@pytest.mark.parametrize(
    ("word", "field"), [("auto", "theta"), ("auto-low", "theta_low"), ("auto-high", "theta_high")]
)
def test_every_threshold_and_every_end_of_the_bracket(method, word, field):
    p = protocol(method, word, trials=1, curves="none")
    (theta,) = thetas(study.run(p, method))
    assert theta == trained_at(auto_theta.suggestions(p, 0.0, [0])[0], field)


def test_what_is_kept_says_why(home):
    study.run(protocol(), "softad")
    kept = sorted((home / "outputs/tiny/sinusoid/softad/suggested").iterdir())
    facts = [json.loads(path.read_text()) for path in kept]
    found = auto_theta.suggestions(protocol(), 0.0, [0, 1])
    for trial, fact in enumerate(facts):
        assert fact["theta"] is None or fact["theta_low"] <= fact["theta"] < math.log(2)
        assert fact["reasons"] == list(found[trial].reasons)
        assert fact["scaled_loss"] == found[trial].scaled_loss


def test_a_call_cut_short_keeps_the_ordinary_runs(work, monkeypatch):
    original = train_task.train_runs
    monkeypatch.setattr(train_task, "train_runs", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        study.run(protocol(), "softad")
    assert len(work["ordinary"]) == 2
    assert not study.Study(protocol(), "softad").done()
    monkeypatch.setattr(train_task, "train_runs", original)
    ticks = []
    study.run(protocol(), "softad", progress=ticks.append)
    assert len(work["ordinary"]) == 2
    assert sum(ticks) == study.Study(protocol(), "softad").total_work()


@pytest.mark.parametrize("cut", [True, False])
def test_a_broken_suggestion_is_found_again_to_the_same_bits(work, home, cut):
    before = thetas(study.run(protocol(), "softad"))
    path = next((home / "outputs/tiny/sinusoid/softad/suggested").iterdir())
    whole = path.read_text()
    facts = json.loads(whole)
    path.write_text(whole[:40] if cut else json.dumps(dict(list(facts.items())[:3])))
    assert thetas(study.run(protocol(), "softad")) == before
    assert len(work["ordinary"]) == 3
    assert len(work["runs"]) == 2
    assert path.read_text() == whole


def test_more_trials_go_on_from_there_and_two_processes_agree(work):
    study.run(protocol(), "softad")
    rows = study.run(protocol(trials=4), "softad")
    assert [t for _, t in work["ordinary"]] == [0, 1, 2, 3]
    assert [r.trial for r in work["runs"]] == [0, 1, 2, 3]
    ticks = []
    p = protocol(trials=4, profile="both")
    pd.testing.assert_frame_equal(study.run(p, "softad", jobs=2, progress=ticks.append), rows)
    assert sum(ticks) == study.Study(p, "softad").total_work()


def test_a_grid_and_auto_set_each_other_aside(work, home):
    folder = home / "outputs/tiny/sinusoid"
    grid = protocol(grids={"softad": [0.05, 0.3]})
    assert grid.fingerprint("softad") == protocol().fingerprint("softad")
    study.run(grid, "softad")
    rows = study.run(protocol(), "softad")
    assert len([p for p in folder.iterdir() if p.name.startswith("softad.")]) == 1
    assert study.Study(protocol(), "softad").done()
    pd.testing.assert_frame_equal(store.read("tiny"), rows)
    study.run(grid, "softad")
    assert sorted(store.read("tiny")["knob"].unique()) == [0.05, 0.3]


def test_fewer_trials_keep_their_suggestions(work):
    rows = study.run(protocol(), "softad")
    fewer = study.run(protocol(trials=1), "softad")  # the other trial's results are set aside
    pd.testing.assert_frame_equal(fewer, rows[rows["trial"] == 0].reset_index(drop=True))
    assert len(work["ordinary"]) == len(work["runs"]) == 2
    assert study.Study(protocol(trials=1), "softad").done()


def test_another_rule_suggests_anew(work, monkeypatch):
    study.run(protocol(), "softad")
    monkeypatch.setattr(auto_theta, "RULE", suggest.RULE + 1)
    rule = auto_theta.suggest_theta
    another = lambda z, y: dataclasses.replace(rule(z, y), theta=0.03 + z[0, 0].item() / 1000)  # noqa: E731
    monkeypatch.setattr(auto_theta, "suggest_theta", another)
    assert not study.Study(protocol(), "softad").done()
    rows = study.run(protocol(), "softad")
    assert len(work["ordinary"]) == 4
    assert rows["knob"].nunique() == 2


def test_from_nothing(work):
    rows = study.run(protocol(), "softad")
    pd.testing.assert_frame_equal(study.run(protocol(), "softad", resume=False), rows)
    assert len(work["ordinary"]) == len(work["runs"]) == 4


def test_an_ordinary_run_that_diverged_is_one_line():
    with pytest.raises(
        UserError, match=r"theta auto on sinusoid, label noise 0, trial 0: logits hold NaN"
    ) as caught:
        study.run(protocol(lr=1e30, model="mlp1x1000"), "softad")
    assert "\n" not in str(caught.value)


def test_a_word_is_no_grid_value_and_crosses_no_cliff():
    p = protocol("iflood", "auto-high", grids={"iflood": "auto-high", "softad": [0.1, 0.8]})
    assert p.cliff_note().count("1 of 2 of softad") == 1
    assert "iflood" not in p.cliff_note()
    assert Protocol.from_dict(p.to_dict()) == p
    assert [math.isnan(r.knob) for r in p.runs("iflood")] == [True, True]


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        (
            "{sam: auto}",
            "grids.sam must be a list of numbers, got 'auto'; flooding, iflood, softad",
        ),
        ("{softad: automatic}", "'automatic' unknown; choose from auto, auto-low, auto-high"),
        ("{softad: [auto]}", "theta in grids.softad must be a number of at least 0, got 'auto'"),
        ("{adaflood: auto}", "grids.adaflood must be a list of numbers"),
        ("{erm: auto}", "method in grids 'erm' unknown"),
    ],
)
def test_bad_words_are_one_line(grids, message, capsys):
    assert main(["train", "tiny", "-p", "grids", grids]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said


def test_by_the_command(home, capsys):
    command = ["train", "tiny", "--method", "softad", "-j", "1", "-p", "grids", "{softad: auto}"]
    assert main(command) == 0
    rows = store.read("tiny")
    assert sorted(rows["trial"].unique()) == [0, 1]
    assert np.isfinite(rows["loss_test"]).all()
    assert (rows["knob"] < math.log(2)).all()
