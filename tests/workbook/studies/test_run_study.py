"""A study: what is trained, measured, selected and stored, and what a later call still has to do."""

import contextlib
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.protocols import store_of, train
from helpers.protocols import tiny as protocol
from helpers.workspace import make_home, tree

from softadlib._validation import UserError
from softadlib.models import MODELS
from softadlib.trainer.splits import PARTS
from softadlib.workbook.studies import results, run_study
from softadlib.workbook.studies.run_study import commit
from softadlib.workbook.studies.schema import RUN_KEY, run_keys
from softadlib.workbook.studies.study import Study
from softadlib.workbook.studies.train_runs import train_runs

pytestmark = pytest.mark.usefixtures("home")
WIDER = {"settings": {"softad": {"sigma": 2.0}}}


def trained(made, method="softad"):
    """Return how many runs and replays each call has trained."""
    sessions = store_of(made, method).provenance().sessions
    return [(session.runs_trained, session.runs_replayed) for session in sessions]


def assert_equal(a, b):
    pd.testing.assert_frame_equal(a, b, check_exact=True)


# First pass and replay


def test_losses_that_are_not_stored_are_made_by_a_replay():
    rows = train(protocol(curves="all"), "softad")
    assert results.read_losses("tiny").empty
    assert_equal(train(protocol(), "softad")[rows.columns], rows)
    assert len(results.read_losses("tiny")) == 18
    assert trained(protocol()) == [(4, 0), (0, 2)]


def test_every_run_ends_and_the_selected_have_curves_and_losses():
    rows = train(protocol(), "softad")
    assert_equal(rows, results.read("tiny"))
    chosen = set(run_keys(results.select(rows)))
    assert len(chosen) == 2
    epochs = rows.groupby(["label_noise", "trial", "knob"])["epoch"].apply(list)
    assert {key: epochs[key] for key in chosen} == {key: [0, 2, 4] for key in chosen}
    assert [e for key, e in epochs.items() if key not in chosen] == [[4], [4]]
    losses = results.read_losses("tiny")
    assert set(run_keys(losses)) == chosen
    assert len(losses) == 2 * 3 * 3, "two runs, three epochs, three parts"
    measured = rows[rows["samples_train"].notna()]
    assert len(measured) == 2 * 3
    for part in PARTS:
        means = measured[[f"mean_loss_{part}", f"loss_{part}"]].to_numpy()
        np.testing.assert_allclose(means[:, 0], means[:, 1], rtol=1e-12)
    assert trained(protocol()) == [(4, 2)]


@pytest.mark.parametrize(
    ("curves", "count", "losses"), [("none", 4, 0), ("all", 12, 0), ("selected", 8, 18)]
)
def test_curves_are_measured_where_asked(curves, count, losses):
    assert len(train(protocol(curves=curves), "softad")) == count
    assert len(results.read_losses("tiny")) == losses


@pytest.mark.parametrize("method", ["erm", "sam"])
def test_a_grid_of_one_value_is_measured_along_the_way_at_once(method):
    rows = train(protocol(), method)
    assert rows["epoch"].tolist() == [0, 2, 4] * 2
    assert trained(protocol(), method) == [(2, 0)]
    assert len(results.read_losses("tiny")) == 18


def test_replayed_rows_are_those_of_measuring_everything():
    changes = {"model": "mlp1x1000", "dtype": "float32", "grids": {"sam": [0.02, 0.05]}}
    selected = train(protocol(**changes), "sam")
    every = train(protocol(**changes, curves="all", profile="every"), "sam")
    keys = [*RUN_KEY, "epoch"]
    both = selected[keys].merge(every, on=keys)[every.columns]
    assert len(both) == 2 * (3 + 1), "of each trial, the epochs of a curve and one end"
    assert_equal(both, selected[every.columns])


def test_a_trial_whose_values_are_not_all_trained_selects_none():
    wide = {"grids": {"softad": [0.1, 0.5]}}
    train(protocol(**wide, trials=1, curves="none"), "softad")
    train(protocol(grids={"softad": [0.1]}, trials=2, curves="none"), "softad")
    study = Study(protocol(**wide, trials=2), "softad")
    assert [(run.trial, run.knob) for run in study.todo] == [(1, 0.5)]
    assert [run.trial for run in study.replays] == [0]
    assert study.left == 3, "and perhaps a replay in trial 1"


@pytest.mark.parametrize("apart", ["0.01", "1e-06"])
def test_a_replay_that_ends_elsewhere_warns_and_the_last_epoch_stays(apart):
    """As where the first pass was trained on another machine."""
    made = protocol(curves="none")
    first = train(made, "softad")
    store = store_of(made, "softad")
    elsewhere = first.assign(loss_test=first["loss_test"] + float(apart))
    store.finish(elsewhere, store.provenance())
    with pytest.warns(
        UserWarning, match=rf"2 of 2 runs, trained again .* up to {apart} nats of test loss"
    ):
        rows = train(protocol(), "softad")
    assert_equal(results.final(rows)[first.columns], elsewhere)
    assert len(rows) == 8
    assert len(results.read_losses("tiny")) == 18


def test_a_gpu_stores_each_run_of_a_convolutional_network_as_it_ends(monkeypatch):
    """A CPU computes what the GPU would, and the third run is interrupted."""

    def convolution(shape, classes):
        return torch.nn.Sequential(torch.nn.Conv2d(1, 10, 8), torch.nn.Flatten())

    monkeypatch.setitem(MODELS, "convolution", convolution)
    made = protocol(dataset="digits", model="convolution", n_train=50, n_val=20, n_test=20)
    parts = store_of(made, "softad").finished_chunks

    def on_cpu(made, runs, *rest):
        if len(parts()) == 2:
            raise KeyboardInterrupt
        return train_runs(made.replace(device="cpu"), runs, *rest)

    monkeypatch.setattr(
        "softadlib.workbook.studies.run_study.pick_device", lambda name: torch.device("cuda")
    )
    monkeypatch.setattr(
        "softadlib.workbook.studies.workers.pick_device", lambda name: torch.device("cpu")
    )
    monkeypatch.setattr("softadlib.workbook.studies.run_study.train_runs", on_cpu)
    with pytest.raises(KeyboardInterrupt):
        train(made, "softad")
    assert len(parts()) == 2


def test_a_diverged_run_is_recorded_and_disturbs_nobody():
    changes = {"dtype": "float32", "model": "mlp1x1000", "curves": "none"}
    rows = train(protocol(**changes, grids={"sam": [0.05, 1e30]}), "sam")
    lost = rows[rows["knob"] == 1e30]
    assert not np.isfinite(lost[["loss_train", "loss_val", "loss_test"]]).any(axis=None)
    assert lost[["acc_train", "acc_val", "acc_test"]].isna().all(axis=None)
    alone = train(protocol(**changes, profile="alone", grids={"sam": [0.05]}), "sam")
    assert_equal(rows[rows["knob"] == 0.05].reset_index(drop=True), alone)
    assert results.select(rows)["knob"].tolist() == [0.05, 0.05]
    assert results.provenances("tiny")["diverged"].tolist() == [2]


def test_the_provenance_says_where_the_numbers_come_from():
    made = protocol()
    train(made, "erm")
    provenance = store_of(made, "erm").provenance()
    assert provenance.protocol == made.to_dict()
    assert provenance.seeds == [17716, 961412]
    (session,) = provenance.sessions
    assert (session.torch, session.jobs, session.runs_trained) == (torch.__version__, 1, 2)
    assert session.seconds > 0


# What a later call has to do


def test_nothing_is_trained_or_written_twice(home):
    first = train(protocol(), "softad")
    before = tree(home / "outputs")
    assert_equal(train(protocol(), "softad"), first)
    assert tree(home / "outputs") == before
    train(protocol(), "softad", fresh=True)
    assert trained(protocol()) == [(4, 2)], "from nothing"


@pytest.mark.parametrize("larger", [{"trials": 3}, {"grids": {"softad": [0.05, 0.3, 0.6]}}])
def test_a_larger_study_keeps_earlier_rows_and_a_smaller_one_takes_nothing_away(larger):
    small = train(protocol(), "softad")
    large = train(protocol(**larger), "softad")
    keys = [*RUN_KEY, "epoch"]
    assert_equal(small[keys].merge(large, on=keys)[small.columns], small)
    whole = train(protocol(**larger, profile="whole"), "softad")
    assert_equal(whole[keys].merge(large, on=keys)[whole.columns], whole)
    assert [runs for runs, _ in trained(protocol())] == [4, 2]
    every = results.read("tiny")
    before = tree(store_of(protocol(), "softad").folder)
    smaller = train(protocol(), "softad")
    assert set(run_keys(smaller)) == set(run_keys(small))
    assert_equal(results.read("tiny"), every)
    assert tree(store_of(protocol(), "softad").folder) == before


def test_ties_changed_later_train_the_missing_curves_alone():
    chosen = {}
    for ties in ("largest", "smallest", "largest"):
        rows = train(protocol(ties=ties), "softad")
        chosen[ties] = set(run_keys(results.select(rows, ties)))
        assert set(run_keys(results.read_losses("tiny"))) == chosen[ties]
    moved = len(chosen["smallest"] - chosen["largest"])
    assert moved
    assert trained(protocol()) == [(4, 2), (0, moved)]


@pytest.mark.parametrize(
    ("method", "changes", "differing"),
    [
        ("softad", {"lr": 0.2}, "lr 0.2, stored 0.1"),
        ("erm", {"epochs": 3, "lr": 0.2}, "lr 0.2, stored 0.1; epochs 3, stored 4"),
        ("softad", WIDER, "settings.softad.sigma 2.0, stored 1.0"),
    ],
)
def test_a_folder_has_one_protocol(home, method, changes, differing):
    """Also of a method that is not stored there yet."""
    first = train(protocol(), "softad")
    before = tree(home / "outputs")
    with pytest.raises(UserError) as refused:
        train(protocol(**changes), method)
    for words in (f"gaussian × {method}", f"({differing})", "--as NAME", "--fresh"):
        assert words in str(refused.value)
    assert tree(home / "outputs") == before
    assert not train(protocol(**changes, profile="mine"), "softad").equals(first)
    assert_equal(results.read("tiny"), first)


@pytest.mark.parametrize("word", ["false", "No", 1])
def test_nothing_is_deleted_for_a_word_that_may_mean_no(home, word):
    """papermill makes booleans of True and False alone."""
    train(protocol(), "softad")
    before = tree(home / "outputs")
    with pytest.raises(UserError, match=f"fresh must be True or False, got {word!r}"):
        train(protocol(), "softad", fresh=word)
    assert tree(home / "outputs") == before


@pytest.mark.parametrize("jobs", ["two", 0, 2.5])
def test_jobs_are_a_whole_number(home, jobs):
    with pytest.raises(UserError, match="jobs must be a whole number of at least 1"):
        train(protocol(), "softad", jobs=jobs)


def test_what_is_under_way_has_one_protocol_too(home):
    train(protocol(), "softad", shard=(1, 2))
    with pytest.raises(UserError, match=r"lr 0\.2, stored 0\.1"):
        train(protocol(lr=0.2), "softad")
    train(protocol(lr=0.2), "softad", fresh=True)
    assert store_of(protocol(), "softad").provenance().protocol["lr"] == 0.2
    assert trained(protocol()) == [(4, 2)]


# Processes and shards


def test_shards_put_together_equal_one_call(home, tmp_path_factory, monkeypatch):
    """Each is trained in a folder of its own, and their outputs are copied into one."""
    made, method = protocol(trials=3), "softad"
    for i in (1, 2):
        folder = make_home(tmp_path_factory.mktemp("shard"))
        monkeypatch.setenv("SOFTAD_HOME", str(folder))
        train(made, method, shard=(i, 2))
        shutil.copytree(folder / "outputs", home / "outputs", dirs_exist_ok=True)
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    assert results.read("tiny").empty
    rows = train(made, method)
    assert sorted(trained(made, method)) == [(2, 1), (4, 2)]
    assert not store_of(made, method).chunks_folder.exists()
    assert_equal(train(made.replace(profile="whole"), method), rows)
    assert_equal(results.read_losses("whole"), results.read_losses("tiny"))
    with pytest.raises(UserError, match="deletes what other shards did"):
        train(made, method, shard=(1, 2), fresh=True)


def test_two_processes_change_nothing(home, tmp_path, monkeypatch):
    """The second workbook's processes are those of the first."""
    made = protocol(trials=3, model="mlp1x1000", dtype="float32")
    one = train(made, "softad")
    assert np.isfinite(results.final(one)["loss_test"]).all()
    losses = results.read_losses("tiny")
    for name in ("first", "second"):
        monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path / name)))
        assert_equal(train(made, "softad", jobs=2), one)
        assert_equal(results.read_losses("tiny"), losses)
        assert trained(made, "softad") == [(6, 3)]


def test_jobs_are_processes_one_per_core_by_default(monkeypatch):
    """As many as asked for, but not more than there are trainings; a GPU has one."""
    asked = []

    def workers(jobs, executor):
        asked.append(jobs)
        return contextlib.nullcontext()

    monkeypatch.setattr(run_study, "workers", workers)
    monkeypatch.setattr(run_study.loky, "cpu_count", lambda: 3)
    run_study.run_study(Study(protocol(curves="none"), "softad"))
    run_study.run_study(Study(protocol(curves="none", profile="two"), "softad"), jobs=2)
    run_study.run_study(Study(protocol(curves="none", profile="many"), "softad"), jobs=64)
    assert asked == [3, 2, 4]
    sessions = store_of(protocol(), "softad").provenance().sessions
    assert [session.jobs for session in sessions] == [3]


def test_a_second_process_on_the_same_study_is_refused_in_one_line(home, start):
    folder = store_of(protocol(), "softad").folder
    folder.mkdir(parents=True)
    lock = f"FileLock({str(folder / '.softad.lock')!r})"
    code = f"from filelock import FileLock; l = {lock}; l.acquire(); print('locked', flush=True); input()"
    other = start(sys.executable, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == "locked\n"
    before = tree(home / "outputs")
    with pytest.raises(UserError, match=r"^tiny: gaussian × softad is under way in another"):
        train(protocol(), "softad")
    assert tree(home / "outputs") == before
    train(protocol(), "erm")
    other.kill()
    other.wait()
    train(protocol(), "softad")  # a killed process holds nothing


# Surroundings


def test_an_output_folder_that_cannot_be_written_is_refused_before_training(home):
    (home / "outputs").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        train(protocol(), "erm")
    os.remove(home / "outputs")
    train(protocol(), "erm")


def test_a_session_names_the_commit_with_a_mark_where_files_other_than_results_differ(
    home, monkeypatch
):
    git = ["git", "-C", str(home), "-c", "user.name=a", "-c", "user.email=a@b"]
    for call in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *call], check=True)
    (home / "outputs").mkdir()
    (home / "outputs/new").write_text("results")
    subprocess.run([*git, "add", "-A"], check=True)
    assert commit() is None, "the package that runs lies elsewhere"
    monkeypatch.setattr(run_study, "__file__", str(home / "softadlib/run_study.py"))
    assert commit()[-1] != "+"
    (home / "params/tiny/gaussian.yaml").write_text("changed")
    assert commit()[-1] == "+"
