import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.workspace import TINY, make_home, read_provenance
from joblib.externals.loky import get_reusable_executor

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.data import images
from softadlib.results import folder as places
from softadlib.results import reader as store
from softadlib.results import sample_losses, selection
from softadlib.results.folder import ResultFolder
from softadlib.results.schema import COLUMNS, MEASURES, RUN_KEY, run_keys
from softadlib.results.table import merge, pack
from softadlib.training import study, study_plan, trainer
from softadlib.training.device import machine
from softadlib.training.engines import factory
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.executors import local as executors
from softadlib.training.executors import train_task
from softadlib.training.progress import no_progress
from softadlib.training.protocol import Protocol


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path)


def protocol(**changes):
    return Protocol.from_dict(
        {"profile": "tiny", "dataset": "gaussian", "device": "cpu", **TINY, **changes}
    )


def trained(monkeypatch):
    """The runs trained from here on, one list per task."""
    calls, original = [], train_task.train_runs

    def spy(protocol, runs, epochs, *rest):
        calls.append((list(runs), set(epochs)))
        return original(protocol, runs, epochs, *rest)

    monkeypatch.setattr(train_task, "train_runs", spy)
    return calls


def test_every_run_ends_and_the_selected_have_curves():
    p = protocol()
    rows = study.run(p, "softad")
    ends = rows[rows["epoch"] == 4]
    assert len(ends) == 4
    curves = rows.groupby(["trial", "knob"])["epoch"].apply(list)
    chosen = set(zip(*selection.select(rows)[["trial", "knob"]].to_numpy().T))
    assert len(chosen) == 2
    for run, epochs in curves.items():
        assert epochs == ([0, 2, 4] if run in chosen else [4])


@pytest.mark.parametrize(("curves", "count"), [("none", 4), ("all", 12), ("selected", 4 + 2 * 2)])
def test_curves_are_measured_where_asked(curves, count):
    assert len(study.run(protocol(curves=curves), "softad")) == count


def test_a_method_without_a_knob_is_trained_once(monkeypatch):
    calls = trained(monkeypatch)
    rows = study.run(protocol(), "erm")
    assert len(calls) == 1
    assert sorted(rows["epoch"].unique()) == [0, 2, 4]


def test_replayed_rows_are_those_of_measuring_everything(monkeypatch, tmp_path):
    """A replay in other company gives the numbers of one pass, bit for bit."""
    settings = {"model": "mlp1x1000", "dtype": "float32", "epochs": 6, "trials": 3,
                "grids": {"softad": [0.05, 0.1, 0.3], "sam": [0.02, 0.05, 0.1]}}  # fmt: skip
    for method in ("softad", "sam"):
        selected = study.run(protocol(**settings), method)
        all_curves = study.run(protocol(**settings, curves="all", profile="other"), method)
        both = selected.merge(all_curves, on=["trial", "knob", "epoch"], suffixes=("", "_all"))
        assert len(both) == len(selected) > 9
        for name in MEASURES:
            assert both[name].equals(both[f"{name}_all"].rename(name)), (method, name)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_replay_that_ends_elsewhere_is_refused_each_time(jobs):
    """The first pass is one of another machine, as where an interrupted study is copied."""
    first = study.run(protocol(curves="none"), "softad")
    folder = ResultFolder("tiny", "gaussian", "softad", protocol().fingerprint("softad"))
    elsewhere = first.assign(loss_test=first["loss_test"] + 0.01)
    folder.metrics.write_bytes(pack(elsewhere[list(COLUMNS)], folder.fingerprint))
    for _ in range(2):
        with pytest.raises(UserError, match=r"the replay of softad trial \d .* ended at test loss"):
            study.run(protocol(), "softad", jobs=jobs)
        assert folder.stored_rows().equals(elsewhere), "nothing of the replay is stored"
        assert not len(sample_losses.stored(folder))


def test_replays_add_the_epochs_before_the_last(monkeypatch):
    saved, original = [], ResultFolder.save_part

    def keep(self, rows):
        saved.append(rows)
        original(self, rows)

    monkeypatch.setattr(ResultFolder, "save_part", keep)
    study.run(protocol(), "softad")
    epochs = [set(rows["epoch"]) for rows in saved]
    assert {4} in epochs, "the first pass"
    assert {0, 2} in epochs, "the replays"
    assert all(found in ({4}, {0, 2}) for found in epochs)


def test_ties_the_other_way_and_back_leave_the_provenance_of_the_last():
    chosen = {}
    for ties in ("largest", "smallest", "largest"):
        made = protocol(ties=ties)
        rows = study.run(made, "softad")
        folder = ResultFolder("tiny", "gaussian", "softad", made.fingerprint("softad"))
        assert folder.read_provenance().protocol["ties"] == ties
        chosen[ties] = set(run_keys(selection.select(rows, ties)))
        assert set(run_keys(sample_losses.stored(folder))) <= chosen[ties]
    assert chosen["largest"] != chosen["smallest"]


def test_a_gpu_replays_where_training_costs_less_than_measuring():
    """D3, in forward passes by hand: 3 × n_train × gradients × epochs against measured samples."""
    paper = {"n_train": 100, "n_val": 100, "n_test": 20000, "epochs": 500, "curve_every": 1}
    assert study_plan.replay_pays(protocol(**paper), 1, 1 / 40)  # 150,000 against 9.9 million
    assert study_plan.replay_pays(protocol(**paper), 2, 1 / 40)
    sizes = {"n_train": 100, "n_val": 50, "n_test": 50, "epochs": 9, "curve_every": 1}
    assert not study_plan.replay_pays(protocol(**sizes), 1, 0.5)  # 2,700 against 0.5 × 2,000
    more = {**sizes, "n_test": 500}
    assert study_plan.replay_pays(protocol(**more), 1, 0.5)  # 2,700 against 0.5 × 6,500
    assert not study_plan.replay_pays(protocol(**more), 1, 0.6)  # against 0.4 × 6,500 = 2,600
    assert not study_plan.replay_pays(protocol(**more), 2, 0.5)  # 5,400
    whole = protocol(dataset="digits", n_train=0, n_val=0, n_test=0)
    assert not study_plan.replay_pays(whole, 1, 0.1)


LOTS = 5


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """A study that takes its device for a GPU: stacked runs, lots of five. Returns what was measured."""
    cpu, measured, original = torch.device("cpu"), [], VmapEngine.measure

    def measure(self, runs):
        measured.append((len(self), list(runs)))
        return original(self, runs)

    class Executor(executors.SerialExecutor):
        def describe(self):
            return machine(cpu)

    def lots(self):
        return [self.runs[i : i + LOTS] for i in range(0, len(self.runs), LOTS)]

    monkeypatch.setattr(trainer, "pick_device", lambda name: cpu)
    monkeypatch.setattr(trainer.Trainer, "lots", lots)
    monkeypatch.setattr(factory, "ENGINES", [VmapEngine])
    monkeypatch.setattr(VmapEngine, "measure", measure)
    return Executor(torch.device("cuda")), measured


GPU = {"dtype": "float32", "n_test": 200, "trials": 3, "grids": {"softad": [0.05, 0.3, 0.9]}}


def test_on_a_gpu_whole_lots_are_replayed_and_the_selected_measured(as_on_a_gpu, monkeypatch):
    """D3: nine runs in lots of five and four, twice; curves of the three selected."""
    executor, measured = as_on_a_gpu
    units, p = [], protocol(**GPU)
    rows = study.run(p, "softad", executor=executor, progress=units.append)
    assert measured[:2] == [(5, [0, 1, 2, 3, 4]), (4, [0, 1, 2, 3])], "the ends, of all runs"
    assert {size for size, _ in measured[2:]} <= {5, 4}, "the lots of the first pass again"
    assert sum(len(runs) for _, runs in measured[2:]) == 3 * 3, "three epochs of three runs"
    everything = protocol(**GPU, curves="all", profile="other")
    expected = study.run(everything, "softad", executor=executor)
    chosen = selection.select(rows)[RUN_KEY].merge(expected, on=RUN_KEY)
    curves = selection.select(rows)[RUN_KEY].merge(rows, on=RUN_KEY)
    pd.testing.assert_frame_equal(curves, chosen)  # bit for bit
    assert len(rows) == 9 + 3 * 2
    plan = study.Study(p, "softad", torch.device("cuda"))
    assert plan.done()
    assert sum(units) == plan.total_work() == 2 * 9 * 4
    (session,) = read_provenance(plan.folder.provenance)["sessions"]
    assert (session["runs_trained"], session["runs_replayed"]) == (9, 9)


def test_on_a_gpu_a_study_cut_short_trains_the_lots_of_its_label_noise_again(as_on_a_gpu):
    """Other lots would end in other last bits; what is whole is left alone."""
    executor, measured = as_on_a_gpu
    p = protocol(**GPU, label_noise=[0.0, 0.2])
    whole = study.run(protocol(**GPU, label_noise=[0.0, 0.2], profile="whole"), "softad",
                      executor=executor)  # fmt: skip

    class Accident(BaseException):
        pass

    def die(rows):
        if (rows["label_noise"] > 0).any():
            raise Accident

    with pytest.raises(Accident):
        study.run(p, "softad", executor=executor, on_rows=die)
    folder, plan = (
        study.Study(p, "softad").folder,
        study.Study(p, "softad", torch.device("cuda")),
    )
    stored = folder.stored_rows()
    (lost,) = [run for run in plan.runs if run.label_noise and run.trial == 2 and run.knob == 0.3]
    for part in (folder.path / "parts").iterdir():
        part.unlink()
    keep = ~((stored["label_noise"] > 0) & (stored["trial"] == 2) & (stored["knob"] == 0.3))
    folder.save_part(stored[keep])
    measured.clear()
    assert plan.missing(stored[keep], plan.runs, plan.first_epochs) == [lost]
    units = []
    rows = study.run(p, "softad", executor=executor, progress=units.append)
    pd.testing.assert_frame_equal(rows, whole)
    assert measured[:2] == [(5, [0, 1, 2, 3, 4]), (4, [0, 1, 2, 3])], "all of the second noise"
    assert sum(units) == plan.total_work()
    measured.clear()
    pd.testing.assert_frame_equal(study.run(p, "softad", executor=executor), whole)
    assert measured == []


def test_on_a_gpu_a_replay_may_be_measured_by_other_kernels_but_not_end_in_other_weights(
    as_on_a_gpu, monkeypatch
):
    executor, _ = as_on_a_gpu
    original = trainer.Trainer.table

    def drifting(column, by):
        def table(self, runs, measured):
            rows = original(self, runs, measured)
            return rows.assign(**{column: rows[column] + (by if 0 in measured else 0)})

        return table

    monkeypatch.setattr(trainer.Trainer, "table", drifting("loss_val", 1e-7))
    rows = study.run(protocol(**GPU), "softad", executor=executor)
    monkeypatch.setattr(trainer.Trainer, "table", original)
    ends = study.run(protocol(**GPU, profile="other"), "softad", executor=executor)
    pd.testing.assert_frame_equal(selection.final(rows), selection.final(ends))
    monkeypatch.setattr(trainer.Trainer, "table", drifting("model_norm", 1e-5))
    with pytest.raises(UserError, match="or in other lots: set `curves: none`"):
        study.run(protocol(**GPU, profile="third"), "softad", executor=executor)


def test_nothing_is_trained_twice(monkeypatch):
    first = study.run(protocol(), "softad")
    stamp = study.Study(protocol(), "softad").folder.provenance.read_bytes()
    calls = trained(monkeypatch)
    pd.testing.assert_frame_equal(study.run(protocol(), "softad"), first)
    assert calls == []
    assert study.Study(protocol(), "softad").folder.provenance.read_bytes() == stamp


@pytest.mark.parametrize(
    "stage", ["first stack", "before the replay", "before the table", "before the provenance"]
)
def test_a_sweep_cut_short_goes_on_where_it_was(monkeypatch, stage):
    p = protocol(stack=8, trials=6, grids={"softad": [0.05, 0.1, 0.3]})  # 18 runs: tasks of 8, 8, 2
    whole = study.run(
        protocol(stack=8, trials=6, grids={"softad": [0.05, 0.1, 0.3]}, profile="whole"), "softad"
    )

    class Accident(BaseException):
        pass

    stacks = {"first stack": 1, "before the replay": 3}.get(stage, 99)
    original, write = train_task.train_runs, _workspace.write
    count = 0

    def cut(*args, **kwargs):
        nonlocal count
        count += 1
        if count > stacks:
            raise Accident
        return original(*args, **kwargs)

    def cut_write(path, content):
        if path.name == {
            "before the table": "metrics.parquet",
            "before the provenance": "provenance.json",
        }.get(stage):
            raise Accident
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(train_task, "train_runs", cut)
        patch.setattr(places, "write", cut_write)
        with pytest.raises(Accident):
            study.run(p, "softad")
    assert not study.Study(p, "softad").done()
    assert store.read("tiny").empty
    calls = trained(monkeypatch)
    rows = study.run(p, "softad")
    pd.testing.assert_frame_equal(rows, whole)
    left = {"first stack": 10 + 6, "before the replay": 6}.get(stage, 0)
    assert sum(len(runs) for runs, _ in calls) == left
    place = study.Study(p, "softad").folder
    names = ["metrics.parquet", "provenance.json", "selected.parquet"]
    assert sorted(f.name for f in place.path.iterdir()) == names


def test_more_trials_extend_what_is_there(monkeypatch):
    few = study.run(protocol(), "softad")
    calls = trained(monkeypatch)
    more = study.run(protocol(trials=3), "softad")
    assert {r.trial for runs, _ in calls for r in runs} == {2}
    old = more[more["trial"] < 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(old, few)
    sessions = read_provenance(study.Study(protocol(trials=3), "softad").folder.provenance)[
        "sessions"
    ]
    assert [s["runs_trained"] for s in sessions] == [4, 2]


def test_an_edited_protocol_neither_uses_nor_destroys_the_old_result(monkeypatch):
    study.run(protocol(), "softad")
    old = study.Study(protocol(), "softad").folder
    before = old.metrics.read_bytes()
    calls = trained(monkeypatch)
    study.run(protocol(lr=0.2), "softad")
    assert sum(len(r) for r, _ in calls) == 4 + 2
    (aside,) = [p for p in old.path.parent.iterdir() if p.name.startswith("softad.")]
    assert (aside / "metrics.parquet").read_bytes() == before


def test_a_setting_of_one_method_leaves_the_results_of_the_others(monkeypatch):
    for method in ("erm", "softad"):
        study.run(protocol(), method)
    calls = trained(monkeypatch)
    changed = protocol(settings={"softad": {"sigma": 2.0}})
    study.run(changed, "erm")
    assert not calls
    study.run(changed, "softad")
    assert calls


def test_a_smaller_grid_keeps_the_dropped_runs_aside(monkeypatch):
    study.run(protocol(), "softad")
    calls = trained(monkeypatch)
    rows = study.run(protocol(grids={"softad": [0.05]}), "softad")
    assert all(0 in epochs for _, epochs in calls), "no first pass: those runs were there"
    assert rows["knob"].unique().tolist() == [0.05]
    folder = study.Study(protocol(), "softad").folder.path.parent
    assert any(p.name.startswith("softad.") for p in folder.iterdir())


@pytest.mark.parametrize("fewer", [{"trials": 1}, {"grids": {"softad": [0.05]}}])
def test_runs_that_a_smaller_study_set_aside_are_not_trained_again(monkeypatch, fewer):
    whole = study.run(protocol(), "softad")
    folder = study.Study(protocol(), "softad").folder
    losses = folder.selected.read_bytes()
    small = study.run(protocol(**fewer), "softad")
    assert len(small) < len(whole)
    calls = trained(monkeypatch)
    again = study.run(protocol(), "softad")
    assert calls == []
    # Among fewer values another run may be selected, whose curve is measured then.
    pd.testing.assert_frame_equal(again.merge(whole[[*RUN_KEY, "epoch"]]), whole)
    assert len(again[again["epoch"] == protocol().epochs]) == 4
    assert folder.read_provenance().runs == 4
    assert folder.selected.read_bytes() == losses
    assert study.Study(protocol(), "softad").done()
    study.run(protocol(), "softad", resume=False)
    assert sum(len(runs) for runs, epochs in calls if 0 not in epochs) == 4, "fresh forgets them"


def test_fresh_forgets(monkeypatch):
    study.run(protocol(), "softad")
    calls = trained(monkeypatch)
    study.run(protocol(), "softad", resume=False)
    assert sum(len(r) for r, _ in calls) == 6
    place = study.Study(protocol(), "softad").folder
    assert len(read_provenance(place.provenance)["sessions"]) == 1


def test_fresh_forgets_checkpoints_of_models_that_are_trained_before_the_runs():
    made = protocol(grids={"adaflood": [0.1]}, epochs=8, checkpoint_every=2)
    units = []

    def stop(n):
        units.append(n)
        if sum(units) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(made, "adaflood", progress=stop)
    folder = study.Study(made, "adaflood").folder
    assert all(p.name.startswith(made.fingerprint("erm")) for p in folder.checkpoints.iterdir())
    study.run(made, "adaflood", resume=False)
    (session,) = read_provenance(folder.provenance)["sessions"]
    assert session.get("epochs_resumed", 0) == 0
    assert not folder.checkpoints.exists()


def test_processes_change_nothing(tmp_path):
    p = protocol(stack=8, trials=9, grids={"softad": [0.05, 0.1]})
    one = study.run(p, "softad")
    units = []
    two = study.run(
        protocol(**{**p.to_dict(), "profile": "other"}), "softad", jobs=2, progress=units.append
    )
    pd.testing.assert_frame_equal(one, two)
    assert sum(units) == study.Study(p, "softad").total_work() == (18 + 9) * 4


def test_ticks_add_up_to_the_planned_units_resumed_or_not(monkeypatch):
    p, units = protocol(), []
    study.run(p, "sam", progress=units.append)
    total = study.Study(p, "sam").total_work()
    assert sum(units) == total == 2 * 4 * 2, (
        "two runs, four epochs, two gradients; nothing to choose from"
    )
    again = []
    study.run(p, "sam", progress=again.append)
    assert sum(again) == total


def test_ticks_add_up_where_a_study_grows(monkeypatch):
    """Of the trials that are there some selected runs have their curves, whatever is trained anew."""
    study.run(protocol(), "softad")
    for changes in (
        {"trials": 4},
        {"trials": 4, "grids": {"softad": [0.05, 0.3, 1.5]}},
        {"trials": 5, "grids": {"softad": [0.05, 0.3, 0.5, 1.5]}},
    ):
        grown, ticks = protocol(**changes), []
        study.run(grown, "softad", progress=ticks.append)
        assert sum(ticks) == study.Study(grown, "softad").total_work()


@pytest.mark.parametrize(("aux", "models"), [("folds", 4), ("last-layer", 1)])
@pytest.mark.parametrize("jobs", [1, 2])
def test_ticks_count_the_models_that_hold_samples_out(aux, models, jobs):
    changes = {
        "grids": {"adaflood": [0.2, 0.5]},
        "settings": {"adaflood": {"aux": aux, "aux_folds": 4}},
    }
    p, units = protocol(**changes), []
    study.run(p, "adaflood", progress=units.append, jobs=jobs)
    plan = study.Study(p, "adaflood")
    # two trials: two values, the selected one again, and the models
    assert sum(units) == plan.total_work() == 2 * (2 + 1 + models) * 4
    (session,) = read_provenance(plan.folder.provenance)["sessions"]
    assert session["runs_for_samples"] == 2 * models
    more, units = protocol(**changes, trials=3), []
    study.run(more, "adaflood", progress=units.append, jobs=jobs)
    assert sum(units) == study.Study(more, "adaflood").total_work() == 3 * (2 + 1 + models) * 4
    again = []
    study.run(more, "adaflood", progress=again.append, jobs=jobs)
    assert sum(again) == sum(units)


def test_label_noises_are_separate_data_in_one_file():
    rows = study.run(protocol(label_noise=[0.0, 0.2]), "softad")
    clean = study.run(protocol(profile="clean"), "softad")
    kept = rows[rows["label_noise"] == 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, clean)
    long = study.run(protocol(label_noise=[0.0, 0.2], epochs=80, profile="long"), "erm")
    means = selection.final(long).groupby("label_noise")["acc_test"].mean()
    assert means[0.2] < means[0.0] - 0.1, "flipped test labels cap the accuracy"


def test_methods_share_data_and_initial_weights_in_a_trial():
    p = protocol(grids={"softad": [0.1], "sam": [0.1]}, curves="all")
    starts = [
        study.run(p, m).query("epoch == 0")[list(MEASURES)].to_numpy()
        for m in ("erm", "sam", "softad")
    ]
    np.testing.assert_array_equal(starts[0], starts[1])
    np.testing.assert_array_equal(starts[0], starts[2])
    assert (starts[0][0] != starts[0][1]).all(), "trials differ"


def test_a_diverged_run_is_recorded_and_disturbs_nobody():
    p = protocol(dtype="float32", curves="none", model="mlp1x1000", grids={"sam": [0.05, 1e30]})
    rows = study.run(p, "sam")
    lost = rows[rows["knob"] == 1e30]
    assert not np.isfinite(lost[["loss_train", "loss_val", "loss_test"]]).any(axis=None)
    assert lost[["acc_train", "acc_val", "acc_test"]].isna().all(axis=None)
    alone = study.run(
        protocol(**{**p.to_dict(), "profile": "alone", "grids": {"sam": [0.05]}}), "sam"
    )
    pd.testing.assert_frame_equal(rows[rows["knob"] == 0.05].reset_index(drop=True), alone)
    facts = json.loads(study.Study(p, "sam").folder.provenance.read_text())
    assert facts["diverged"] == [{"label_noise": 0.0, "trial": t, "knob": 1e30} for t in (0, 1)]
    assert selection.select(rows)["knob"].tolist() == [0.05, 0.05]


def test_provenance_says_where_the_numbers_come_from():
    p = protocol()
    study.run(p, "erm")
    facts = read_provenance(study.Study(p, "erm").folder.provenance)
    assert facts["protocol"] == p.to_dict()
    assert facts["seeds"] == [17716, 961412]
    assert facts["runs"] == 2
    (session,) = facts["sessions"]
    assert session["torch"] == torch.__version__
    assert session["runs_trained"] == 2
    assert math.isfinite(session["seconds"])


def test_thread_count_is_restored():
    torch.set_num_threads(2)
    try:
        study.run(protocol(), "erm")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_an_unwritable_output_folder_is_refused_before_training(home, monkeypatch):
    (home / "outputs").write_text("in the way")
    calls = trained(monkeypatch)
    with pytest.raises(UserError, match="cannot be written"):
        study.run(protocol(), "erm")
    assert calls == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_on_rows_hears_every_row_once_in_this_process_after_it_was_saved(jobs):
    get_reusable_executor().shutdown()  # workers of an earlier test write to its folder
    place, heard, saved = study.Study(protocol(), "softad").folder, [], []

    def on_rows(rows):
        heard.append(rows)
        kept = place.stored_rows().set_index([*RUN_KEY, "epoch"])
        saved.append(rows.set_index([*RUN_KEY, "epoch"]).index.isin(kept.index).all())

    rows = study.run(protocol(), "softad", jobs=jobs, on_rows=on_rows)
    assert len(heard) > 1
    assert all(saved)
    assert sum(len(r) for r in heard) == len(rows), "each row once"
    pd.testing.assert_frame_equal(merge(heard), rows)
    study.run(protocol(), "softad", on_rows=lambda rows: pytest.fail("nothing was left to do"))


def test_what_on_rows_raises_ends_the_call_and_loses_nothing():
    def on_rows(rows):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        study.run(protocol(), "softad", on_rows=on_rows)
    assert len(study.Study(protocol(), "softad").folder.stored_rows())


class WorkspaceTask:
    """Return the folders that a worker reads and writes."""

    units = 0

    def run(self, context):
        return _workspace.home(), images.data_root()


def test_processes_left_by_an_earlier_call_work_in_this_one_s_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("SOFTAD_DATA", raising=False)
    executor = executors.ProcessExecutor(torch.device("cpu"), 2)
    context = executors.TaskContext(None, None, no_progress)
    for name in ("first", "second"):
        home = make_home(tmp_path / name).resolve()
        monkeypatch.setenv("SOFTAD_HOME", str(home))
        results = [result for _, result in executor.map([WorkspaceTask()] * 4, context)]
        assert results == [(home, home / "data")] * 4
