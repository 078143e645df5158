"""A study: what is trained, measured, selected and stored, and what a later call still has to do."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.protocols import tiny as protocol
from helpers.workspace import make_home, tree

from softadlib import results
from softadlib._validation import UserError
from softadlib.data.splits import PARTS
from softadlib.models import MODELS
from softadlib.results.schema import MEASURES, RUN_KEY, run_keys
from softadlib.training.chunk import train_runs
from softadlib.training.study import run_study, store_of

pytestmark = pytest.mark.usefixtures("home")
ADAFLOOD = {"grids": {"adaflood": [0.2, 0.5]}, "settings": {"adaflood": {"aux_folds": 2}}}


def trained(made, method="softad"):
    """Return how many runs and replays each call has trained."""
    return [(s.runs_trained, s.runs_replayed) for s in store_of(made, method).facts().sessions]


def assert_equal(a, b):
    pd.testing.assert_frame_equal(a, b, check_exact=True)


# First pass and replay


def test_losses_that_are_not_stored_are_made_by_a_replay():
    run_study(protocol(curves="all"), "softad")
    for _ in ("no losses yet", "their file is lost"):
        assert results.read_losses("tiny").empty
        run_study(protocol(), "softad")
        assert len(results.read_losses("tiny")) == 18
        store_of(protocol(), "softad").losses_file.unlink()


def test_every_run_ends_and_the_selected_have_curves_and_losses():
    rows = run_study(protocol(), "softad")
    assert_equal(rows, results.read("tiny"))
    chosen = set(run_keys(results.select(rows)))
    assert len(chosen) == 2
    epochs = rows.groupby(["label_noise", "trial", "knob"])["epoch"].apply(list)
    assert {key: epochs[key] for key in chosen} == {key: [0, 2, 4] for key in chosen}
    assert [e for key, e in epochs.items() if key not in chosen] == [[4], [4]]
    losses = results.read_losses("tiny")
    assert set(run_keys(losses)) == chosen
    assert len(losses) == 2 * 3 * 3, "two runs, three epochs, three parts"
    for part in PARTS:
        means = losses[losses["part"] == part].merge(rows, on=[*RUN_KEY, "epoch"])
        np.testing.assert_allclose(means["loss"], means[f"loss_{part}"], rtol=1e-12)
    assert trained(protocol()) == [(4, 2)]


@pytest.mark.parametrize(
    ("curves", "count", "losses"), [("none", 4, 0), ("all", 12, 0), ("selected", 8, 18)]
)
def test_curves_are_measured_where_asked(curves, count, losses):
    assert len(run_study(protocol(curves=curves), "softad")) == count
    assert len(results.read_losses("tiny")) == losses
    assert store_of(protocol(), "softad").losses_file.exists() == bool(losses)


@pytest.mark.parametrize("method", ["erm", "sam"])
def test_a_grid_of_one_value_is_measured_along_the_way_at_once(method):
    rows = run_study(protocol(), method)
    assert rows["epoch"].tolist() == [0, 2, 4] * 2
    assert trained(protocol(), method) == [(2, 0)]
    assert len(results.read_losses("tiny")) == 18


@pytest.mark.parametrize("method", ["softad", "sam"])
def test_replayed_rows_are_those_of_measuring_everything(method):
    changes = {"model": "mlp1x1000", "dtype": "float32", "epochs": 6,
               "grids": {"softad": [0.05, 0.1, 0.3], "sam": [0.02, 0.05]}}  # fmt: skip
    selected = run_study(protocol(**changes), method)
    every = run_study(protocol(**changes, curves="all", profile="every"), method)
    keys = [*RUN_KEY, "epoch"]
    both = selected[keys].merge(every, on=keys)[selected.columns]
    assert len(both) > len(changes["grids"][method]) * 2
    assert_equal(both, selected)


def test_a_replay_that_ends_elsewhere_warns_and_the_last_epoch_stays():
    """As where the first pass was trained on another machine."""
    made = protocol(curves="none")
    first = run_study(made, "softad")
    store = store_of(made, "softad")
    elsewhere = first.assign(loss_test=first["loss_test"] + 0.01)
    store.finish(elsewhere, store.losses(), store.facts())
    with pytest.warns(
        UserWarning, match=r"2 of 2 runs, trained again .* up to 0.01 nats of test loss"
    ):
        rows = run_study(protocol(), "softad")
    assert_equal(results.final(rows)[first.columns], elsewhere)
    assert len(rows) == 8
    assert len(results.read_losses("tiny")) == 18


def test_a_gpu_stores_each_run_of_a_convolutional_network_as_it_ends(monkeypatch):
    """A CPU computes what the GPU would, and the third run is interrupted."""
    layers = torch.nn.Conv2d(1, 10, 8), torch.nn.Flatten()
    monkeypatch.setitem(MODELS, "convolution", lambda *shape: torch.nn.Sequential(*layers))
    made = protocol(dataset="digits", model="convolution", n_train=50, n_val=20, n_test=20)
    parts = store_of(made, "softad").finished_parts

    def on_cpu(made, runs, *rest):
        if len(parts()) == 2:
            raise KeyboardInterrupt
        return train_runs(made.replace(device="cpu"), runs, *rest)

    devices = {"cpu": "cuda", "cuda": "cpu"}  # planned for a GPU, trained on the CPU
    monkeypatch.setattr(
        "softadlib.training.study.pick_device", lambda name: torch.device(devices[name])
    )
    monkeypatch.setattr("softadlib.training.study.train_runs", on_cpu)
    with pytest.raises(KeyboardInterrupt):
        run_study(made, "softad")
    assert len(parts()) == 2


def test_methods_share_data_and_initial_weights_in_a_trial():
    made = protocol(grids={"softad": [0.1], "sam": [0.1]})
    starts = [run_study(made, method).query("epoch == 0") for method in ("erm", "sam", "softad")]
    for start in starts[1:]:
        np.testing.assert_array_equal(start[list(MEASURES)], starts[0][list(MEASURES)])
    assert (starts[0]["loss_train"].nunique(), starts[0]["model_norm"].nunique()) == (2, 2)


def test_label_noises_are_separate_data_in_one_file():
    rows = run_study(protocol(label_noise=[0.0, 0.2], epochs=40), "erm")
    clean = run_study(protocol(profile="clean", epochs=40), "erm")
    assert_equal(rows[rows["label_noise"] == 0].reset_index(drop=True), clean)
    means = results.final(rows).groupby("label_noise")["acc_test"].mean()
    assert means[0.2] < means[0.0] - 0.1, "flipped test labels cap the accuracy"


def test_a_diverged_run_is_recorded_and_disturbs_nobody():
    changes = {"dtype": "float32", "model": "mlp1x1000", "curves": "none"}
    rows = run_study(protocol(**changes, grids={"sam": [0.05, 1e30]}), "sam")
    lost = rows[rows["knob"] == 1e30]
    assert not np.isfinite(lost[["loss_train", "loss_val", "loss_test"]]).any(axis=None)
    assert lost[["acc_train", "acc_val", "acc_test"]].isna().all(axis=None)
    alone = run_study(protocol(**changes, profile="alone", grids={"sam": [0.05]}), "sam")
    assert_equal(rows[rows["knob"] == 0.05].reset_index(drop=True), alone)
    assert results.select(rows)["knob"].tolist() == [0.05, 0.05]
    assert results.provenances("tiny")["diverged"].tolist() == [2]


def test_the_facts_say_where_the_numbers_come_from():
    made = protocol()
    run_study(made, "erm")
    facts = store_of(made, "erm").facts()
    assert facts.protocol == made.to_dict()
    assert facts.seeds == [17716, 961412]
    (session,) = facts.sessions
    assert (session.torch, session.jobs, session.runs_trained) == (torch.__version__, 1, 2)
    assert session.seconds > 0


# What a later call has to do


def test_nothing_is_trained_or_written_twice(home):
    first = run_study(protocol(), "softad")
    before = tree(home / "outputs")
    assert_equal(run_study(protocol(), "softad"), first)
    assert tree(home / "outputs") == before
    run_study(protocol(), "softad", resume=False)
    assert trained(protocol()) == [(4, 2)], "from nothing"


@pytest.mark.parametrize("larger", [{"trials": 3}, {"grids": {"softad": [0.05, 0.3, 0.6]}}])
def test_a_larger_study_keeps_earlier_rows_and_a_smaller_one_is_read_without_more(larger):
    small = run_study(protocol(), "softad")
    large = run_study(protocol(**larger), "softad")
    keys = [*RUN_KEY, "epoch"]
    assert_equal(small[keys].merge(large, on=keys)[small.columns], small)
    whole = run_study(protocol(**larger, profile="whole"), "softad")
    assert_equal(whole[keys].merge(large, on=keys)[whole.columns], whole)
    assert [runs for runs, _ in trained(protocol())] == [4, 2]
    assert_equal(run_study(protocol(), "softad")[keys], results.read("tiny")[keys])
    assert len(results.read("tiny", final=True)) == 4
    assert len(trained(protocol())) == 2, "the smaller study again trains nothing"
    assert_equal(run_study(protocol(**larger), "softad"), large)
    assert_equal(results.read("tiny"), large)


def test_ties_changed_later_train_the_missing_curves_alone():
    chosen = {}
    for ties in ("largest", "smallest", "largest"):
        rows = run_study(protocol(ties=ties), "softad")
        chosen[ties] = set(run_keys(results.select(rows, ties)))
        assert set(run_keys(results.read_losses("tiny"))) == chosen[ties]
    moved = len(chosen["smallest"] - chosen["largest"])
    assert moved
    assert trained(protocol()) == [(4, 2), (0, moved)]


def test_of_two_protocols_the_one_that_was_asked_for_last_is_read(home):
    first, second = protocol(), protocol(lr=0.2)
    rows = {made.lr: run_study(made, "softad") for made in (first, second)}
    assert not rows[0.1].equals(rows[0.2])
    for made in (first, second, first, first):
        assert_equal(run_study(made, "softad"), rows[made.lr])
        assert_equal(results.read("tiny"), rows[made.lr])
        assert trained(made) == [(4, 2)], "going back trains nothing"
    before = tree(home / "outputs")
    run_study(first, "softad")
    assert tree(home / "outputs") == before


def test_a_setting_of_one_method_leaves_the_results_of_the_others():
    for changes in ({}, {"settings": {"softad": {"sigma": 2.0}}}):
        for method in ("erm", "softad"):
            run_study(protocol(**changes), method)
    assert len(list(store_of(protocol(), "softad").folder.glob("*[0-9a-f].parquet"))) == 2
    assert trained(protocol(), "erm") == [(2, 0)]


# Processes and shards


@pytest.mark.parametrize(("method", "changes"), [("softad", {}), ("adaflood", ADAFLOOD)])
def test_shards_put_together_equal_one_call(home, tmp_path_factory, monkeypatch, method, changes):
    """Each is trained in a folder of its own, and their outputs are copied into one."""
    made = protocol(trials=3, **changes)
    for i in (1, 2):
        folder = make_home(tmp_path_factory.mktemp("shard"))
        monkeypatch.setenv("SOFTAD_HOME", str(folder))
        run_study(made, method, shard=(i, 2))
        shutil.copytree(folder / "outputs", home / "outputs", dirs_exist_ok=True)
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    assert results.read("tiny").empty
    rows = run_study(made, method)
    assert sorted(trained(made, method)) == [(2, 1), (4, 2)]
    assert not store_of(made, method).parts.exists()
    assert_equal(run_study(made.replace(profile="whole"), method), rows)
    assert_equal(results.read_losses("whole"), results.read_losses("tiny"))
    held = [store_of(p, method).held_out() for p in (made, made.replace(profile="whole"))]
    assert [sorted(h) for h in held] == [["0.0 0", "0.0 1", "0.0 2"] if changes else []] * 2
    with pytest.raises(UserError, match="deletes what other shards did"):
        run_study(made, method, shard=(1, 2), resume=False)


@pytest.mark.parametrize(
    ("method", "changes"),
    [("softad", {}), ("adaflood", ADAFLOOD | {"model": "mlp1x1000", "dtype": "float32"})],
)
def test_two_processes_change_nothing(home, tmp_path, monkeypatch, method, changes):
    """The second workbook's processes are those of the first."""
    made = protocol(trials=3, **changes)
    one = run_study(made, method)
    assert np.isfinite(results.final(one)["loss_test"]).all()
    losses = results.read_losses("tiny")
    for name in ("first", "second"):
        monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path / name)))
        assert_equal(run_study(made, method, jobs=2), one)
        assert_equal(results.read_losses("tiny"), losses)
        assert trained(made, method) == [(6, 3)]


def test_a_second_process_on_the_same_study_is_refused_in_one_line(home):
    code = (
        "from softadlib.results.store import StudyStore\n"
        f"with StudyStore('tiny', 'gaussian', 'softad', '{protocol().fingerprint('softad')}').lock():\n"
        "    print('locked', flush=True)\n"
        "    input()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"
        before = tree(home / "outputs")
        with pytest.raises(UserError, match=r"^tiny: gaussian × softad is under way in another"):
            run_study(protocol(), "softad")
        assert tree(home / "outputs") == before
        run_study(protocol(), "erm")
        run_study(protocol(lr=0.2), "softad")
        other.kill()
    run_study(protocol(), "softad")  # a killed process holds nothing


def test_what_killed_processes_left_half_written_goes_with_the_next_call():
    parts = store_of(protocol(), "softad").parts
    parts.mkdir(parents=True)
    left = parts / f".{protocol().fingerprint('softad')}-0.0-1-0.3.pt.4711"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    run_study(protocol(), "softad")
    assert not parts.exists()


# Surroundings


def test_an_output_folder_that_cannot_be_written_is_refused_before_training(home):
    (home / "outputs").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        run_study(protocol(), "erm")
    os.remove(home / "outputs")
    run_study(protocol(), "erm")


def test_a_session_names_the_commit_with_a_mark_where_files_other_than_results_differ(home):
    git = ["git", "-C", str(home), "-c", "user.name=a", "-c", "user.email=a@b"]
    changed, marks = home / "params/tiny/gaussian.yaml", []
    for call in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *call], check=True)
    for trials in (1, 2, 3):
        run_study(protocol(trials=trials), "erm")
        marks.append(store_of(protocol(), "erm").facts().sessions[-1].commit[-1] == "+")
        subprocess.run([*git, "add", "-A"], check=True)
        if trials == 2:
            changed.write_text("# another line\n" + changed.read_text())
    assert marks == [False, False, True], (
        "before there are results, with new results, with a new file"
    )
