"""Rows of runs trained together: which engine trains them, early stopping, devices, memory that runs out."""

import pytest
import torch
from helpers.plain_loop import plain_loop
from helpers.protocols import tiny
from torch import nn

from softadlib._validation import UserError
from softadlib.models import MODELS
from softadlib.trainer.device import memory_in_one_line, numerics, pick_device
from softadlib.trainer.engines.autograd import AutogradEngine, is_convolutional
from softadlib.trainer.engines.single_perceptron import PerceptronEngine
from softadlib.trainer.evaluation import MEASURES
from softadlib.trainer.splits import PARTS
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.train_runs import make_engine, network_of, train_runs

CPU_ONLY = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tells what a CPU does without CUDA"
)


def protocol(**changes):
    grids = {"softad": [0.05, 0.1, 0.2, 0.3, 0.4], "sam": [0.1]}
    return tiny(**{"grids": grids, **changes})


def silu(shape, classes):
    return nn.Sequential(nn.Linear(*shape, 8), nn.SiLU(), nn.Linear(8, classes))


def test_perceptrons_on_a_cpu_have_an_engine_of_their_own(monkeypatch):
    monkeypatch.setitem(MODELS, "silu", silu)
    for changes, single in (({}, PerceptronEngine), ({"model": "silu"}, AutogradEngine)):
        made = protocol(**changes)
        runs, splits = made.runs("softad"), load_splits(made, 0.0).to("cpu", torch.float64)
        assert type(make_engine(made, runs[:1], splits)) is single
        assert type(make_engine(made, runs, splits)) is AutogradEngine
    assert is_convolutional(nn.Sequential(nn.Conv1d(1, 1, 1), nn.Linear(2, 2)))
    assert not is_convolutional(silu((2,), 2))


def test_the_best_epoch_is_a_plain_loops_early_stopping():
    """Rows of every run at its lowest validation loss and at the end, and calibration of both."""
    made = protocol(epochs=40, lr=2.0, n_train=10, best_epoch=True, lr_schedule="cosine",
                    model="linear", batch_size=5)  # fmt: skip
    runs, splits = made.runs("softad"), load_splits(made, 0.0).to("cpu", torch.float64)
    rows = train_runs(made, runs, {made.epochs})
    early = 0
    for run in runs:
        data = {part: splits.part(part, run.trial) for part in PARTS}
        net = network_of(made, splits, run)
        history = plain_loop("softad", net, data, made.seeds[run.trial], made.recipe, run.knob)
        best = min(range(1, made.epochs + 1), key=lambda e: history[e]["loss_val"])
        early += best < made.epochs
        of_run = rows[(rows["trial"] == run.trial) & (rows["knob"] == run.knob)].set_index("epoch")
        assert sorted(of_run.index) == sorted({best, made.epochs})
        for epoch in of_run.index:
            for name in MEASURES:
                assert of_run.loc[epoch, name] == pytest.approx(history[epoch][name], rel=1e-9)
        assert of_run[[f"ece_{part}" for part in PARTS]].notna().all(axis=None)
    assert not any("quantiles" in column for column in rows), "of every run, they would be many"
    assert early > 0, "some runs have their best epoch before the end"


def test_bf16_trains_near_fp32_and_tf32_needs_cuda():
    made = protocol(dtype="float32", epochs=30, model="mlp1x1000")
    runs = made.runs("sam")[:2]
    ends = [train_runs(p, runs, {30}) for p in (made, made.replace(precision="bf16"))]
    difference = (ends[0]["loss_test"] - ends[1]["loss_test"]).abs()
    assert (difference > 0).all(), "another precision"
    assert (difference < 0.05).all()
    with pytest.raises(UserError, match="precision tf32 needs a CUDA GPU"):
        train_runs(made.replace(precision="tf32"), runs, {4})


def test_threads_and_tf32_are_as_asked_and_put_back():
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [switch.fp32_precision for switch in switches]
    for precision, word in (("tf32", "tf32"), ("fp32", "ieee")):
        with numerics(torch.device("cuda"), precision):
            assert [switch.fp32_precision for switch in switches] == [word, word]
        assert [switch.fp32_precision for switch in switches] == before
    torch.set_num_threads(2)
    try:
        with numerics(torch.device("cpu"), "fp32"):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@CPU_ONLY
def test_devices_by_name():
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match="'cuda' is not available here; choose cpu"):
        pick_device("cuda")
    with pytest.raises(UserError, match=r"device 'mps' unknown.*auto, cpu, cuda"):
        pick_device("mps")


# Out of memory

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]
"""What torch, cuBLAS, cuDNN, the CPU's allocator and numpy raise."""


@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_memory_that_runs_out_is_one_line_with_the_way_out(error):
    device = torch.device("cpu")
    with (
        pytest.raises(UserError, match="smaller batch_size or model") as raised,
        memory_in_one_line(device),
    ):
        raise error
    assert "\n" not in str(raised.value)
    with pytest.raises(RuntimeError, match="shapes"), memory_in_one_line(device):
        raise RuntimeError("shapes do not match")
