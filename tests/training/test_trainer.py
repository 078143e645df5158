"""How many runs train side by side, by which engine, and what happens where memory ends."""

import math
import weakref

import numpy as np
import pytest
import torch
from helpers.workspace import REPOSITORY, TINY, make_home
from softadlib.results.table import merge
from softadlib.training.engines.streams import StreamEngine
from softadlib.training.memory import MemoryEstimate, footprint, runs_that_fit

from softadlib._validation import UserError
from softadlib.data.splits import synthetic_splits
from softadlib.methods import METHODS
from softadlib.models import build
from softadlib.results.schema import MEASURES, RUN_KEY
from softadlib.training import trainer as trainer_module
from softadlib.training.device import free_memory
from softadlib.training.engines import factory
from softadlib.training.engines.base import TrainConfig
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.profiles import datasets_of
from softadlib.training.profiles import load as load_protocol
from softadlib.training.protocol import Protocol
from softadlib.training.trainer import Trainer, split_lot, train_runs


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path)


def protocol(**changes):
    grids = {"softad": [0.05, 0.1, 0.2, 0.3, 0.4], "sam": [0.1]}
    return Protocol.from_dict(
        {
            "profile": "tiny",
            "dataset": "gaussian",
            "device": "cpu",
            **TINY,
            "grids": grids,
            **changes,
        }
    )


def softad(**changes):
    made = protocol(**changes)
    return made, list(made.runs("softad"))


def test_on_a_cpu_every_run_is_a_lot():
    made, runs = softad()
    assert Trainer(made, runs).lots() == [[run] for run in runs]


def on_a_gpu(made, runs, network=None):
    """A trainer that divides its runs as on a GPU."""
    trainer = Trainer(made, runs)
    trainer.device, trainer.example = torch.device("cuda"), network or trainer.example
    return trainer


def test_on_a_gpu_perceptrons_are_stacked_and_convolutional_networks_take_a_stream_each(
    monkeypatch,
):
    made, runs = softad()
    monkeypatch.setattr(trainer_module, "free_memory", lambda device: None)
    convolutional = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 1), torch.nn.Linear(2, 2))
    assert on_a_gpu(made, runs).lots() == [runs]
    assert on_a_gpu(made, runs, convolutional).lots() == [runs[:5], runs[5:]], "at most 8 streams"
    two, runs = softad(stack=2)
    assert {len(lot) for lot in on_a_gpu(two, runs, convolutional).lots()} == {2}
    many, runs = softad(stack=10)
    assert [len(lot) for lot in on_a_gpu(many, runs).lots()] == [10]
    lots = on_a_gpu(many, runs, convolutional).lots()
    assert [len(lot) for lot in lots] == [5, 5], "never more than there are streams for"


def test_lots_of_a_gpu_count_what_a_capture_takes():
    """D10."""
    made, runs = softad()
    plain, captured = Trainer(made, runs).needs(), on_a_gpu(made, runs).needs()
    assert captured.parameters == 2 * plain.parameters
    assert captured.gradients == 2 * plain.gradients


def test_the_paper_s_resnets_train_in_tf32_and_its_perceptrons_do_not(monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(REPOSITORY))
    """D5: convolutions in IEEE float32 are three to four times as slow on a GPU."""
    names = datasets_of("paper")
    precision = {name: load_protocol("paper", name).precision for name in names}
    tf32 = {name for name, value in precision.items() if value == "tf32"}
    assert tf32 == {"svhn", "cifar10", "cifar100"}
    assert set(precision.values()) == {"fp32", "tf32"}


def test_lots_are_even_and_fit_the_memory_that_is_free(monkeypatch):
    made, runs = softad()
    one = on_a_gpu(made, runs).needs()
    for fit, sizes in ((10, [10]), (9, [5, 5]), (4, [4, 3, 3]), (1, [1] * 10)):
        room = math.ceil((fit + 0.5) * (one.total - one.data) / trainer_module.MARGIN)
        monkeypatch.setattr(trainer_module, "free_memory", lambda device, room=room: room)
        lots = on_a_gpu(made, runs).lots()
        assert [len(lot) for lot in lots] == sizes
        assert [run for lot in lots for run in lot] == runs


def test_a_single_run_that_does_not_fit_is_refused_before_it_starts(monkeypatch):
    made, runs = softad()
    monkeypatch.setattr(trainer_module, "free_memory", lambda device: 100)
    with pytest.raises(UserError, match=r"needs .* for one run, but cpu has 0.0 GiB free"):
        Trainer(made, runs).lots()


def test_a_lot_that_runs_out_of_memory_is_halved_and_nothing_is_lost(monkeypatch):
    made, runs = softad()
    whole = train_runs(made, runs, {4})
    original, tried, saved = Trainer.rows, [], []

    def small(self, lot, *rest):
        tried.append(len(lot))
        if len(lot) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, lot, *rest)

    monkeypatch.setattr(Trainer, "rows", small)
    monkeypatch.setattr(Trainer, "lots", lambda self: [runs])
    monkeypatch.setattr(factory, "ENGINES", [VmapEngine])
    rows = train_runs(made, runs, {4}, save=lambda rows, losses: saved.append(rows))
    assert tried == [10, 5, 2, 3, 5, 2, 3]
    for table in (rows, merge(saved)):
        assert table[RUN_KEY].equals(whole[RUN_KEY])
        np.testing.assert_allclose(table[list(MEASURES)], whole[list(MEASURES)], rtol=1e-11)


def test_finished_runs_are_stored_where_a_later_one_is_interrupted():
    made, runs = softad()
    epochs, saved = [], []

    def interrupt(units):
        epochs.append(units)
        if sum(epochs) > made.epochs:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_runs(made, runs, {4}, interrupt, lambda rows, losses: saved.append(rows))
    (rows,) = saved
    assert rows.equals(train_runs(made, runs[:1], {4}))


def test_a_single_run_out_of_memory_is_one_line():
    with pytest.raises(UserError, match="ran out of memory with a single run"):
        split_lot([object()])


def test_engines_and_lots_do_not_move_a_number_in_float64(monkeypatch):
    made, runs = softad()
    expected = train_runs(made, runs, {0, 4})
    for engine, size in ((VmapEngine, 10), (VmapEngine, 3), (StreamEngine, 2)):
        monkeypatch.setattr(trainer_module, "make_engine", engine)
        lots = [runs[i : i + size] for i in range(0, len(runs), size)]
        trainer = Trainer(made, runs)
        rows = merge([trainer.rows(lot, {0, 4}) for lot in lots])
        np.testing.assert_allclose(
            rows.filter(regex="loss|acc|norm"), expected.filter(regex="loss|acc|norm"), rtol=1e-11
        )


def test_a_replay_of_a_whole_lot_measures_the_selected_alone_bit_for_bit(monkeypatch):
    """D3: the lots of the first pass again, with curves of a few runs; other lots are skipped."""
    made, runs = softad(dtype="float32")
    monkeypatch.setattr(factory, "ENGINES", [VmapEngine])
    trainer, lots, units = Trainer(made, runs), [runs[:6], runs[6:]], []
    first = merge([trainer.rows(lot, {4}) for lot in lots])
    only = {runs[1].key, runs[4].key}
    again = merge([trainer.rows(lot, {0, 2, 4}, units.append, only=only) for lot in lots])
    chosen = first[[(q, t, v) in only for q, t, v in first[RUN_KEY].itertuples(index=False)]]
    assert len(again) == 3 * len(only)
    assert again[again["epoch"] == 4].reset_index(drop=True).equals(chosen.reset_index(drop=True))
    assert sum(units) == 4 * len(runs), "every run counts as trained"


def test_every_trial_builds_one_network(monkeypatch):
    """D7."""
    made, runs = softad()
    trainer, built = Trainer(made, runs), []
    monkeypatch.setattr(factory, "ENGINES", [VmapEngine])
    original = Trainer.network
    monkeypatch.setattr(
        Trainer, "network", lambda self, run: built.append(run.trial) or original(self, run)
    )
    trainer.engine(runs)
    assert sorted(built) == sorted({run.trial for run in runs})


def test_a_failed_engine_is_freed_before_its_lot_is_halved(monkeypatch):
    """D1: on a GPU the halves would not fit beside it."""
    made, runs = softad()
    monkeypatch.setattr(factory, "ENGINES", [VmapEngine])
    alive, seen = weakref.WeakSet(), []

    class Trial(Trainer):
        def lots(self):
            return [runs]

        def rows(self, lot, *rest):
            seen.append(len(alive))
            engine = self.engine(lot)
            alive.add(engine)
            engine.cycle = engine  # whatever cycle there may be
            if len(lot) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return Trainer.rows(self, lot, *rest)

    monkeypatch.setattr(trainer_module, "Trainer", Trial)
    train_runs(made, runs, {4})
    assert seen[:4] == [0, 0, 0, 1], (
        "nothing is alive when a half begins, but a finished one may be"
    )


def test_progress_of_a_lot_that_is_halved_counts_once(monkeypatch):
    made, runs = softad()
    counted = []

    class Trial(Trainer):
        def lots(self):
            return [runs]

        def rows(self, lot, epochs, progress, *rest):
            if len(lot) > 3:
                progress(2 * len(lot))  # two epochs, then memory runs out
                raise torch.OutOfMemoryError("CUDA out of memory")
            return Trainer.rows(self, lot, epochs, progress, *rest)

    monkeypatch.setattr(factory, "ENGINES", [VmapEngine])
    monkeypatch.setattr(trainer_module, "Trainer", Trial)
    train_runs(made, runs, {4}, counted.append)
    assert 2 * len(runs) in counted, "it was reported"
    assert sum(counted) == made.epochs * len(runs)


def test_bf16_trains_near_fp32_and_tf32_needs_cuda():
    made, runs = softad(dtype="float32", epochs=30)
    half = protocol(dtype="float32", epochs=30, precision="bf16")
    ends = [train_runs(p, runs[:2], {30}) for p in (made, half)]
    difference = (ends[0]["loss_test"] - ends[1]["loss_test"]).abs()
    assert (difference > 0).all(), "another precision"
    assert (difference < 0.05).all()
    with pytest.raises(UserError, match="precision tf32 needs a CUDA GPU"):
        train_runs(protocol(dtype="float32", precision="tf32"), runs, {4})
    with pytest.raises(UserError, match="precision bf16 is for dtype float32"):
        protocol(dtype="float64", precision="bf16")


# Footprints, by hand


def test_a_footprint_by_hand():
    """2 → 500 four times → 2 in float32, Adam, batches of 50."""
    data = synthetic_splits("gaussian", [1], 0.0, (100, 100, 800)).to("cpu", torch.float32)
    network, recipe = build("mlp4x500", (2,), 2, 1), TrainConfig("adam", 1e-3, 50, 1)
    weights = 2 * 500 + 3 * 500 * 500 + 8 * 500 + 500 * 2 + 2
    assert weights == 756_002, "the paper's network"
    needs = footprint(network, recipe, METHODS["erm"], 3, data)
    assert needs.parameters == 3 * (4 * weights + 4 * (2 * 500 * 4 + 8))
    assert needs.optimizer == 3 * 2 * 4 * weights
    assert needs.gradients == 3 * 4 * weights
    assert needs.activations == 3 * 50 * 4 * (4 * 3 * 500 + 2 + 2)
    assert needs.data == 1000 * (2 * 4 + 8) + 1000 * 8
    assert needs.total == sum(vars(needs).values())
    assert footprint(network, recipe, METHODS["sam"], 3, data).gradients == 2 * needs.gradients
    captured = footprint(network, recipe, METHODS["erm"], 3, data, captured=True)
    assert captured.parameters == 2 * needs.parameters, "D10: copied while a step is captured"
    assert captured.gradients == 2 * needs.gradients, "a graph has its own"
    assert captured.activations == 3 * 50 * 4 * (2 * (4 * 3 * 500 + 2) + 2)
    plain = TrainConfig("sgd", 0.1, 50, 1)
    assert footprint(network, plain, METHODS["erm"], 1, data).optimizer == 0


def test_runs_that_fit():
    one = MemoryEstimate(parameters=40, optimizer=30, gradients=20, activations=10, data=1000)
    assert runs_that_fit(1000 + 350, one, 99) == 3
    assert runs_that_fit(1000 + 350, one, 2) == 2
    assert runs_that_fit(1000 + 99, one, 99) == 0
    assert runs_that_fit(10, one, 99) == 0
    assert (
        str(one)
        == "0 MiB (parameters 0 MiB, optimizer 0 MiB, gradients 0 MiB, activations 0 MiB, data 0 MiB)"
    )


MEASURED = """
import re, torch
from softadlib.data.splits import synthetic_splits
from softadlib.methods import METHODS
from softadlib.models import build
from softadlib.training.engines.base import RunBatch, TrainConfig
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.memory import footprint
torch.set_num_threads(1)
data = synthetic_splits("gaussian", [1], 0.0, (100, 100, 2000)).to("cpu", torch.float32)
recipe, method = TrainConfig("adam", 1e-3, 50, 1), METHODS["{method}"]
def train(runs, model):
    nets = [build(model, (2,), 2, 1)] * runs
    batch = RunBatch(method, nets, data, [0] * runs, [0.1] * runs, {{"bn_update": "both"}})
    VmapEngine(batch).train(recipe, [1], ())
train(1, "linear")  # everything that is imported or made on first use
resident = int(open("/proc/self/statm").read().split()[1]) * 4096
train({runs}, "mlp4x500")
# Not ru_maxrss: across fork and exec that keeps the peak of the process that started this one.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
needs = footprint(build("mlp4x500", (2,), 2, 1), recipe, method, {runs}, data)
print((peak - resident) / needs.total)
"""


@pytest.mark.skipif(
    not __import__("os").path.exists("/proc/self/status"), reason="needs Linux's /proc"
)
@pytest.mark.parametrize("method", ["erm", "sam"])
def test_the_peak_of_a_stack_is_what_was_computed(method):
    import subprocess
    import sys

    code = MEASURED.format(method=method, runs=48)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ratio = float(done.stdout)
    assert 0.6 < ratio < 1.3


def test_free_memory_of_a_gpu_counts_pytorchs_cache(monkeypatch):
    """D9: 10 bytes are free for everybody, 25 of the 30 reserved are in use."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 25)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    assert free_memory(torch.device("cuda")) == 15


def test_free_memory_of_a_gpu_is_bounded_by_the_fraction_of_this_process(monkeypatch):
    """D16: four tasks that share a GPU must not each plan with all of it."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 6)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5)
    for fraction, free in ((1.0, 71), (0.25, 15), (0.05, 0)):
        monkeypatch.setattr(
            torch.cuda, "get_per_process_memory_fraction", lambda device, share=fraction: share
        )
        assert free_memory(torch.device("cuda")) == free


def test_available_memory_counts_what_the_kernel_would_give(monkeypatch):
    text = (
        "MemTotal: 24000000 kB\nMemFree: 200 kB\nMemAvailable: 18000000 kB\nCached: 17000000 kB\n"
    )
    cpu = torch.device("cpu")
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: text)
    assert free_memory(cpu) == 18_000_000 * 1024, "a full page cache is no shortage"
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: "MemTotal: 1 kB\n")
    assert free_memory(cpu) is None
