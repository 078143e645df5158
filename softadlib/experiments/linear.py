"""A linear classifier on the problems of the plane: trajectories, and final loss over θ and σ."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from softadlib.data.splits import Splits, synthetic_splits
from softadlib.methods import get_method
from softadlib.models import build
from softadlib.training.engines.runs import RunBatch, TrainConfig
from softadlib.training.engines.vmap import VmapEngine

Sizes = tuple[int, int, int]
SIZES: Sizes = (100, 100, 20000)
"""Training, validation and test points of the paper's problems on the plane."""


def linear_rows(
    dataset: str,
    methods: Sequence[str],
    *,
    theta: float,
    sigma: float = 1.0,
    seed: int,
    sizes: Sizes = SIZES,
    epochs: int = 200,
    every: int = 1,
    lr: float = 0.1,
) -> pd.DataFrame:
    """Train a linear classifier by full-batch SGD, every method from the same weights on the same data.

    One row per method and epoch 0, `every`, 2·`every` …, with the columns of `results.read`. `theta` and
    `sigma` are in nats; `sizes` are those of train, val and test, drawn in this order from
    `default_rng(seed)`.
    Holland & Nakatani (2024), App. C.2.
    """
    splits = synthetic_splits(dataset, [seed], 0.0, sizes).to("cpu", torch.float64)
    config, rows = TrainConfig("sgd", lr, batch_size=sizes[0], epochs=epochs), []
    for method in methods:
        knob = theta if get_method(method).knob else math.nan
        network = build("linear", (2,), 2, seed).double()
        batch = RunBatch(get_method(method), [network], splits, [0], [knob], {"sigma": sigma})
        measures = VmapEngine(batch).train(config, [seed], range(0, epochs + 1, every))
        for measured in measures:
            facts = {"dataset": dataset, "method": method, "trial": 0, "knob": knob}
            rows.append(facts | {name: values[0] for name, values in measured.items()})
    return pd.DataFrame(rows)


def linear_sensitivity(
    method: str,
    thetas: Sequence[float],
    sigmas: Sequence[float] = (1.0,),
    scales: Sequence[str] = ("code",),
    *,
    seed: int,
    repeats: int = 1,
    sizes: Sizes = SIZES,
    epochs: int = 200,
    lr: float = 0.1,
    batch_size: int | None = None,
    stack: int = 250,
) -> pd.DataFrame:
    """Train the linear classifier on fresh data at every (θ, σ): one row per run, final epoch.

    Columns method, scale, theta, sigma, repeat, loss_test, acc_test. Cell (i, j) and repeat k draw
    data and weights from `SeedSequence(seed, spawn_key=(i, j, k))`, the same for every scale, so
    scales are compared in pairs. A method without σ takes the default single column and ignores it.
    By default a batch is the whole training set. `stack` runs are trained side by side; it bounds
    memory, not results.
    """
    cells = list(np.ndindex(len(thetas), len(sigmas), repeats))
    config, frames = TrainConfig("sgd", lr, batch_size=batch_size or sizes[0], epochs=epochs), []
    for start in range(0, len(cells), stack):
        chunk = cells[start : start + stack]
        splits, networks, seeds = _fresh(chunk, seed, sizes)
        theta = np.array([thetas[i] for i, _, _ in chunk])
        sigma = np.array([sigmas[j] for _, j, _ in chunk])
        for scale in scales:
            settings = {"sigma": torch.as_tensor(sigma), "scale": scale}
            trials = range(len(chunk))
            batch = RunBatch(get_method(method), networks, splits, trials, theta.tolist(), settings)
            measured = VmapEngine(batch).train(config, seeds, [epochs])[-1]
            facts = {"method": method, "scale": scale, "theta": theta, "sigma": sigma}
            facts |= {"repeat": [k for _, _, k in chunk]}
            frames.append(pd.DataFrame(facts | {m: measured[m] for m in ("loss_test", "acc_test")}))
    return pd.concat(frames, ignore_index=True)


def _fresh(
    cells: Sequence[tuple[int, ...]], seed: int, sizes: Sizes
) -> tuple[Splits, list[torch.nn.Module], list[int]]:
    """Make data, linear networks and shuffling seeds of the cells, each from its own seed sequence."""
    sequences = [np.random.SeedSequence(seed, spawn_key=cell) for cell in cells]
    splits = synthetic_splits("gaussian", sequences, 0.0, sizes)
    seeds = [int(sequence.generate_state(1)[0]) for sequence in sequences]
    networks = [build("linear", (2,), 2, s).to(torch.float64) for s in seeds]
    return splits.to("cpu", torch.float64), networks, seeds
