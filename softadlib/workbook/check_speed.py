"""How long a device takes for a step and a measurement of the three workloads."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from softadlib.data.splits import Splits, synthetic_splits
from softadlib.methods import METHODS
from softadlib.models import build
from softadlib.training.engines.base import RunBatch, TrainConfig, batches
from softadlib.training.engines.factory import make_engine

SEED = (17716,)


def _noise(shape: Sequence[int], sizes: Sequence[int]) -> Splits:
    """Return uint8 images without meaning, one trial."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (sum(sizes), *shape), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, sum(sizes)))
    train, val, test = torch.split(torch.arange(sum(sizes))[None], list(sizes), dim=1)
    return Splits(x, y, train, val, test, classes=10)


def timings(device: torch.device) -> Iterator[tuple[str, str]]:
    """Yield (workload, times) of the synthetic sets, FashionMNIST and, on a GPU, CIFAR-10."""
    on_gpu = device.type == "cuda"
    synthetic = synthetic_splits("gaussian", SEED, 0.0, (100, 100, 20000 if on_gpu else 500))
    sizes = (4000, 1000, 1000) if on_gpu else (400, 50, 50)
    adam, sgd = TrainConfig("adam", 1e-3, 50, 1), TrainConfig("sgd", 0.1, 200, 1, momentum=0.9)
    workloads = [
        ("mlp4x500", synthetic, adam, 600),
        ("mlp1x1000", _noise((1, 28, 28), sizes), sgd, 50),
    ]
    if on_gpu:
        workloads.append(("resnet34", _noise((3, 32, 32), (1600, 400, 400)), sgd, 8))
    for model, splits, config, runs in workloads:
        data, runs = splits.to(device, torch.float32), runs if on_gpu else 1
        network = build(model, data.shape, data.classes, 1)
        settings = METHODS["softad"].defaults
        engine = make_engine(
            RunBatch(METHODS["softad"], [network] * runs, data, [0] * runs, [0.1] * runs, settings)
        )
        run_epoch, n = engine.begin(config), data.train.shape[1]
        run_epoch(batches(SEED, 1, n, config.batch_size, device))  # captures

        def epoch(run_epoch: Any = run_epoch, n: int = n, size: int = config.batch_size) -> None:
            run_epoch(batches(SEED, 2, n, size, device))

        step = _seconds(device, epoch) / -(-n // config.batch_size) / runs
        measure = _seconds(device, functools.partial(engine.measure, range(len(engine)))) / runs
        value = f"{step * 1e6:.0f} us a step and run, {measure * 1e3:.2f} ms a measurement and run"
        yield f"{model}, {runs} runs", value


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Return the median time of three calls, all work of the device included."""
    times = []
    for _ in range(3):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return float(np.median(times))
