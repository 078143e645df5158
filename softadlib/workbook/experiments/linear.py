"""A linear classifier on the problems of the plane: trajectories, and final loss over θ and σ."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from softadlib._files import home
from softadlib._validation import choose
from softadlib.methods import get_method
from softadlib.models import build
from softadlib.trainer.engines import RunGroup, choose_engine
from softadlib.trainer.engines.autograd import AutogradEngine
from softadlib.trainer.loop import train
from softadlib.trainer.recipe import Recipe
from softadlib.trainer.splits import Splits
from softadlib.workbook.data.make_splits import synthetic_splits

Sizes = tuple[int, int, int]
SIZES: Sizes = (100, 100, 20000)
"""Training, validation and test points of the paper's problems on the plane."""
STORED = ("gaussian", "sinusoid")
"""Sets whose runs over θ and σ are stored."""


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

    One row per method and epoch 0, `every`, 2·`every` …; the columns are those of `results.read`.
    `theta` and `sigma` in nats; `sizes` of train, val and test, drawn in this order from `default_rng(seed)`.
    Holland & Nakatani (2024), App. C.2.
    """
    splits = synthetic_splits(dataset, [seed], 0.0, sizes).to("cpu", torch.float64)
    recipe = Recipe("sgd", lr, batch_size=sizes[0], epochs=epochs)
    rows = []
    for method in methods:
        knob = theta if get_method(method).hyperparameter else math.nan
        network = build("linear", (2,), 2, seed).double()
        group = RunGroup(get_method(method), [network], splits, [0], [knob], {"sigma": sigma})
        measured = train(choose_engine(group), recipe, [seed], range(0, epochs + 1, every))
        for row in measured.rows:
            facts = {"dataset": dataset, "method": method, "trial": 0, "knob": knob}
            rows.append(facts | {name: values[0] for name, values in row.items()})
    return pd.DataFrame(rows)


def linear_sensitivity(
    method: str,
    thetas: Sequence[float],
    sigmas: Sequence[float] = (1.0,),
    scales: Sequence[str] = ("code",),
    *,
    seed: int,
    dataset: str = "gaussian",
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

    Args:
        method: of the registry.
        thetas: thresholds, in nats.
        sigmas: SoftAD's scales, in nats.
        scales: conventions for σ, "code" or "text".
        seed: of all cells.
        dataset: a problem on the plane: gaussian, sinusoid or spiral.
        repeats: runs of a cell.
        sizes: points of the training, validation and test part.
        epochs: of every run.
        lr: of SGD.
        batch_size: by default the whole training set.
        stack: runs trained side by side; it bounds memory, not results.
    """
    cells = list(np.ndindex(len(thetas), len(sigmas), repeats))
    recipe = Recipe("sgd", lr, batch_size=batch_size or sizes[0], epochs=epochs)
    frames = []
    for start in range(0, len(cells), stack):
        chunk = cells[start : start + stack]
        splits, networks, seeds = _fresh(dataset, chunk, seed, sizes)
        theta = np.array([thetas[i] for i, _, _ in chunk])
        sigma = np.array([sigmas[j] for _, j, _ in chunk])
        for scale in scales:
            settings = {"sigma": torch.as_tensor(sigma), "scale": scale}
            trials = range(len(chunk))
            group = RunGroup(get_method(method), networks, splits, trials, theta.tolist(), settings)
            (last,) = train(AutogradEngine(group), recipe, seeds, [epochs]).rows
            facts = {"method": method, "scale": scale, "theta": theta, "sigma": sigma}
            facts |= {"repeat": [k for _, _, k in chunk]}
            frames.append(pd.DataFrame(facts | {m: last[m] for m in ("loss_test", "acc_test")}))
    return pd.concat(frames, ignore_index=True)


def stored_sensitivity(dataset: str) -> pd.DataFrame:
    """Return the stored runs of `linear_sensitivity` on a set: 30 θ × 21 σ × 5 repeats, both scales.

    Flooding has no σ. The seed is 22993514079364, the file `outputs/fig12/<dataset>.parquet`.

    Args:
        dataset: one of `STORED`.
    """
    choose("dataset", dataset, STORED)
    return pd.read_parquet(home() / "outputs" / "fig12" / f"{dataset}.parquet")


def _fresh(
    dataset: str, cells: Sequence[tuple[int, ...]], seed: int, sizes: Sizes
) -> tuple[Splits, list[torch.nn.Module], list[int]]:
    """Make data, linear networks and shuffling seeds of the cells, each from its own seed sequence."""
    sequences = [np.random.SeedSequence(seed, spawn_key=cell) for cell in cells]
    splits = synthetic_splits(dataset, sequences, 0.0, sizes)
    seeds = [int(sequence.generate_state(1)[0]) for sequence in sequences]
    networks = [build("linear", (2,), 2, s).to(torch.float64) for s in seeds]
    return splits.to("cpu", torch.float64), networks, seeds
