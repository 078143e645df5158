"""`softad check-device`: what a device must show before its numbers are believed.

Every method is trained on the device and compared with runs trained one by one on the CPU, in float64.
Then: lower precisions are near float32, runs on streams are what each is alone, a lot trained again ends
in the same bits, so does a resumed training, and the memory of a dropped engine is given back.
"""

import dataclasses
import gc
import math
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from softadlib._validation import UserError
from softadlib.data.splits import synthetic_splits
from softadlib.methods import METHODS
from softadlib.models import mlp
from softadlib.training.checkpoint import NullCheckpoint, State, deserialize, serialize
from softadlib.training.device import deterministic_math, device_name, remember_checked
from softadlib.training.engines.base import Engine, RunBatch, TrainConfig
from softadlib.training.engines.mlp_cpu import MLPEngine
from softadlib.training.engines.streams import StreamEngine
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.memory import footprint

SEEDS = (17716, 17717)
KNOBS = {
    "theta": 0.1, "radius": 0.1, "alpha": 0.3, "strength": 0.05, "beta": 0.3, "t": 0.5, "gamma": 0.3
}  # fmt: skip
ADAM = TrainConfig("adam", 1e-2, 30, 3)  # of 100 samples: three batches of 30 and one of 10
SGD = TrainConfig("sgd", 0.05, 30, 3, momentum=0.9)
RELATIVE_ERROR = 1e-7


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    passed: bool
    value: str
    wanted: str


def check_device(
    device: torch.device, budget: float, say: Callable[[Check], object] = lambda check: None
) -> dict[str, Any]:
    """Run all checks and return the report; remember a device that passed them.

    Args:
        budget: seconds after which no further section is begun; one that is left out did not pass.
        say: gets every check as it ends.

    Raises UserError for MPS.
    """
    if device.type == "mps":
        raise UserError("MPS has no float64, in which devices are compared; choose from cpu, cuda")
    started, checks = time.monotonic(), []
    for section in (methods, precision, streams, replay, resume, memory):
        try:
            if time.monotonic() - started > budget:
                found = [Check(section.__name__, False, f"not begun after {budget:g} s", "begun")]
            else:
                with deterministic_math(device, "fp32"):
                    found = list(section(device))
        except Exception as error:  # a device that raises is a finding, not an accident
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            found = [Check(section.__name__, False, line, "no error")]
        for check in found:
            checks.append(check)
            say(check)
    passed = all(check.passed for check in checks)
    if passed and device.type != "cpu":
        remember_checked(device)
    return {
        "device": device_name(device),
        "torch": torch.__version__,
        "passed": passed,
        "seconds": round(time.monotonic() - started, 1),
        "checks": [dataclasses.asdict(check) for check in checks],
    }


def _batch(
    method: str,
    device: torch.device,
    runs: int,
    dtype: torch.dtype = torch.float32,
    width: int = 64,
) -> RunBatch:
    """Return runs of a small perceptron on the Gaussian set, on `device`."""
    splits = synthetic_splits("gaussian", SEEDS, 0.1, (100, 100, 500)).to(device, dtype)
    symbol = METHODS[method].knob
    knob = KNOBS.get(symbol, 0.1) if symbol else math.nan
    draw = np.random.default_rng(5).exponential(0.5, tuple(splits.train.shape))
    networks = []
    for run in range(runs):
        torch.manual_seed(SEEDS[run % 2])
        networks.append(mlp((2,), 2, width=width, depth=2).to(dtype))
    return RunBatch(
        METHODS[method],
        networks,
        splits,
        [run % 2 for run in range(runs)],
        [knob * (1 + 0.1 * run) for run in range(runs)],
        {k: METHODS[method].defaults[k] for k in METHODS[method].settings_for("objective", "rule")},
        {name: torch.from_numpy(draw) for name in METHODS[method].samples},
    )


def _same_state(a: Engine, run_a: int, b: Engine, run_b: int) -> bool:
    """Tell whether two runs have the same parameters and buffers, to the bit."""
    pairs = zip(a.state(run_a), b.state(run_b))
    return all(torch.equal(x[name], y[name]) for x, y in pairs for name in x)


def methods(device: torch.device) -> Iterator[Check]:
    """Compare every method and both optimizers with the CPU in float64; find refused captures."""
    refused = []
    for name in METHODS:
        worst = 0.0
        for config in (ADAM, SGD):
            cpu, there = (_batch(name, d, 4, torch.float64) for d in (torch.device("cpu"), device))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                got = VmapEngine(there).train(config, SEEDS, {3})[3]
            refused += [f"{name}: {w.message}" for w in caught if "CUDA graph" in str(w.message)]
            for run in range(4):
                single = MLPEngine(cpu.single(run)).train(config, SEEDS, {3})[3]
                for measure, values in single.items():
                    error = float(abs(got[measure][run] - values[0]) / (abs(values[0]) + 1e-12))
                    worst = max(worst, error) if error == error else math.inf
        passed = worst < RELATIVE_ERROR
        yield Check(f"{name} against the CPU", passed, f"{worst:.1e}", f"< {RELATIVE_ERROR:g}")
    if device.type == "cuda":
        yield Check(
            "steps that were not captured", not refused, "; ".join(refused) or "none", "none"
        )


def streams(device: torch.device) -> Iterator[Check]:
    """Compare runs on concurrent streams with each of them alone: no memory may be shared."""
    on_gpu = device.type == "cuda"
    config = dataclasses.replace(ADAM, epochs=60 if on_gpu else 3)
    for name in ("softad", "sam"):
        batch = _batch(name, device, 8 if on_gpu else 2, width=500 if on_gpu else 64)
        together, differ = StreamEngine(batch), []
        together.train(config, SEEDS, ())
        for run in range(len(batch)):
            alone = VmapEngine(batch.single(run))
            alone.train(config, SEEDS, ())
            if not _same_state(together, run, alone, 0):
                differ.append(run)
        yield Check(f"{name}: runs on streams that differ from themselves alone", not differ,
                    str(differ or "none"), "none")  # fmt: skip


def replay(device: torch.device) -> Iterator[Check]:
    """Train a lot twice, the second time measuring a few runs along the way."""
    runs, config = (600 if device.type == "cuda" else 4), dataclasses.replace(ADAM, epochs=20)
    for name in ("softad", "sam"):
        batch, chosen = _batch(name, device, runs), [1, runs - 1]
        first, second = VmapEngine(batch), VmapEngine(batch)
        end = first.train(config, SEEDS, {20})[20]
        again = second.train(config, SEEDS, range(0, 21, 5), keep=chosen)[20]
        same = all(_same_state(first, run, second, run) for run in chosen)
        yield Check(
            f"{name}: a lot of {runs} trained again ends in the same bits", same, str(same), "True"
        )
        off = max(float(np.abs(end[k][chosen] - again[k]).max()) for k in end)
        yield Check(
            f"{name}: largest difference of its measures", off < 1e-6, f"{off:.1e}", "< 1e-06"
        )


class _InMemory(NullCheckpoint):
    """Keep the state of one epoch, as the bytes of a file."""

    content = b""

    def due(self, epoch: int) -> bool:
        return epoch == 2

    def save(self, state: State) -> None:
        self.content = serialize(state)


def resume(device: torch.device) -> Iterator[Check]:
    """Resume from a checkpoint in the middle, and compare with the training it was taken from."""
    for name in ("softad", "sam"):
        batch, checkpoint = _batch(name, device, 4), _InMemory()
        whole, resumed = VmapEngine(batch), VmapEngine(batch)
        whole.train(ADAM, SEEDS, (), checkpoint=checkpoint)
        checkpoint.state = deserialize(checkpoint.content)
        resumed.train(ADAM, SEEDS, (), checkpoint=checkpoint)
        same = all(_same_state(whole, run, resumed, run) for run in range(4))
        yield Check(f"{name}: a resumed training ends in the same bits", same, str(same), "True")


def memory(device: torch.device) -> Iterator[Check]:
    """Compare what an engine takes with the estimate, and drop it without the garbage collector."""
    on_gpu, config = device.type == "cuda", TrainConfig("adam", 1e-3, 50, 2)
    for name in ("erm", "sam"):
        batch = _batch(name, device, 200 if on_gpu else 4, width=500 if on_gpu else 64)
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if on_gpu else 0
        engine = VmapEngine(batch)
        engine.train(config, SEEDS, ())
        if on_gpu:
            needs = footprint(
                batch.networks[0], config, batch.method, len(batch), batch.splits, captured=True
            )
            ratio = (torch.cuda.max_memory_reserved() - before) / (needs.total - needs.data)
            yield Check(
                f"{name}: peak memory over the estimate", ratio < 1.25, f"{ratio:.2f}", "< 1.25"
            )
        weights = weakref.ref(next(iter(engine.params.values())))
        gc.disable()
        try:
            del engine
            freed = weights() is None
        finally:
            gc.enable()
        left = (torch.cuda.memory_allocated() - before) / 2**20 if on_gpu else 0.0
        yield Check(f"{name}: memory left by a dropped engine", freed and left < 200,
                    f"{left:.0f} MiB" if freed else "all of it", "< 200 MiB")  # fmt: skip


def precision(device: torch.device) -> Iterator[Check]:
    """Train in bf16, and on CUDA in tf32, alone and stacked: the losses must be near float32's."""
    sgd = TrainConfig("sgd", 0.05, 50, 3, momentum=0.9)
    for name in ("tf32", "bf16") if device.type == "cuda" else ("bf16",):
        for runs in (1, 4):
            batch = _batch("softad", device, runs, width=500)
            plain = VmapEngine(batch).train(sgd, SEEDS, {3})[3]["loss_train"]
            batch = dataclasses.replace(batch, bf16=name == "bf16")
            with deterministic_math(device, name):
                loss = VmapEngine(batch).train(sgd, SEEDS, {3})[3]["loss_train"]
            off = float(np.abs(loss / plain - 1).max())
            yield Check(f"{name}, {runs} runs: relative difference from fp32", off < 0.1,
                        f"{off:.1e}", "< 0.1")  # fmt: skip


def line(check: Check) -> str:
    """Write one line of the table."""
    return (
        f"{'pass' if check.passed else 'FAIL'}  {check.name}: {check.value}  (want {check.wanted})"
    )
