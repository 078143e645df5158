"""How many runs side by side, in which layout, and what happens where memory ends."""

import math

import numpy as np
import pytest
import torch
from helpers.workspace import TINY, make_home

from softadlib._validation import UserError
from softadlib.data.splits import synthetic_splits
from softadlib.methods import METHODS
from softadlib.models import build
from softadlib.results.table import merge
from softadlib.training import trainer
from softadlib.training.device import free_memory
from softadlib.training.engines.base import TrainConfig
from softadlib.training.memory import MemoryEstimate, footprint, runs_that_fit
from softadlib.training.protocol import Protocol
from softadlib.training.trainer import Trainer, halves, train_runs


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


def test_a_chain_takes_all_runs_and_any_other_network_one():
    made, runs = softad()
    assert Trainer(made, runs).plan() == ([runs], "stack")
    lone = Trainer(made, runs)
    lone.chain = False
    assert lone.plan() == ([[r] for r in runs], "stack")


def test_lots_are_even_and_fit_the_memory_that_is_free(monkeypatch):
    made, runs = softad()
    one = Trainer(made, runs).needs()
    for fit, sizes in ((10, [10]), (9, [5, 5]), (4, [4, 3, 3]), (1, [1] * 10)):
        room = math.ceil((fit + 0.5) * (one.total - one.data) / trainer.MARGIN)
        monkeypatch.setattr(trainer, "free_memory", lambda device, room=room: room)
        lots, _ = Trainer(made, runs).plan()
        assert [len(lot) for lot in lots] == sizes
        assert [run for lot in lots for run in lot] == runs


def test_a_single_run_that_does_not_fit_is_refused_before_it_starts(monkeypatch):
    made, runs = softad()
    monkeypatch.setattr(trainer, "free_memory", lambda device: 100)
    with pytest.raises(UserError, match=r"needs .* for one run, but cpu has 0.0 GiB free"):
        Trainer(made, runs).plan()


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
    rows = train_runs(made, runs, {4}, save=saved.append)
    assert tried == [10, 5, 2, 3, 5, 2, 3]
    assert rows.equals(whole)
    assert merge(saved).equals(whole)


def test_a_single_run_out_of_memory_is_one_line():
    with pytest.raises(UserError, match="ran out of memory with a single run"):
        halves([object()])


def test_the_fastest_layout_is_timed_once_and_remembered(monkeypatch, home):
    made, runs = softad()
    times = {("stack", 4): 0.4, ("stack", 16): 9.0, ("lanes", 4): 0.3, ("lanes", 8): math.inf}
    timed = []

    def seconds(self, layout, size):
        timed.append((layout, size))
        return times[layout, size]

    monkeypatch.setattr(Trainer, "seconds", seconds)
    assert Trainer(made, runs).fastest() == ("lanes", 4)
    assert ("stack", 16) not in timed, "there are ten runs"
    count = len(timed)
    assert Trainer(made, runs).fastest() == ("lanes", 4)
    assert len(timed) == count
    (home / "outputs" / ".speed.json").write_text("{broken")
    assert Trainer(made, runs).fastest() == ("lanes", 4)
    assert len(timed) == 2 * count


def test_a_layout_that_does_not_fit_takes_forever_and_any_other_some_time(monkeypatch):
    made, runs = softad()
    assert 0 < Trainer(made, runs).seconds("lanes", 2) < 10

    def full(*args, **kwargs):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Trainer, "engine", full)
    assert Trainer(made, runs).seconds("stack", 2) == math.inf


def test_layouts_and_lots_do_not_move_a_number_in_float64():
    made, runs = softad()
    expected = train_runs(made, runs, {0, 4})
    for layout, size in (("stack", 10), ("stack", 3), ("lanes", 2)):
        lots = [runs[i : i + size] for i in range(0, len(runs), size)]
        one = Trainer(made, runs)
        one_by_one = [one.rows(lot, layout, {0, 4}, lambda n: None) for lot in lots]
        rows = merge(one_by_one)
        np.testing.assert_allclose(
            rows.filter(regex="loss|acc|norm"), expected.filter(regex="loss|acc|norm"), rtol=1e-11
        )


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
from softadlib.footprint import footprint
from softadlib.hardware import free_memory
from softadlib.methods import METHODS
from softadlib.models import build
from softadlib.splits import synthetic_splits
from softadlib.stack import Stack
from softadlib.trainer import Recipe
torch.set_num_threads(1)
data = synthetic_splits("gaussian", [1], 0.0, (100, 100, 2000)).to("cpu", torch.float32)
recipe, method = Recipe("adam", 1e-3, 50, 1), METHODS["{method}"]
def train(runs, model):
    nets = (build(model, (2,), 2, 1) for _ in range(runs))
    made = Stack(method, nets, data, [0] * runs, [0.1] * runs, {{"bn_update": "both"}})
    made.train(recipe, [1], ())
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


def test_available_memory_counts_what_the_kernel_would_give(monkeypatch):
    text = (
        "MemTotal: 24000000 kB\nMemFree: 200 kB\nMemAvailable: 18000000 kB\nCached: 17000000 kB\n"
    )
    cpu = torch.device("cpu")
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: text)
    assert free_memory(cpu) == 18_000_000 * 1024, "a full page cache is no shortage"
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: "MemTotal: 1 kB\n")
    assert free_memory(cpu) is None
