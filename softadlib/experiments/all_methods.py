"""Every registered method on the same small sets: what comes out and what a step costs."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from softadlib import _workspace
from softadlib.analysis.plotting.curves import PALETTE
from softadlib.methods import METHODS, PAPER
from softadlib.results import selection
from softadlib.results.table import merge
from softadlib.training import heldout, profiles
from softadlib.training.device import deterministic_math, pick_device
from softadlib.training.inputs import load_splits
from softadlib.training.protocol import Protocol
from softadlib.training.trainer import Trainer, train_runs

COMPARED = tuple(name for name in PAPER if name != "iflood")
"""The methods of the paper's first table."""
MEASURED = {
    "gap": "gap (nats)",
    "loss_test": "test loss (nats)",
    "acc_test": "test accuracy",
    "model_norm": "model norm",
}
"""What is compared, and how its axis is labelled."""


def protocols(
    profile: str, datasets: Sequence[str], grids: Mapping[str, Sequence[float]], **changes: Any
) -> list[Protocol]:
    """A profile's protocol of each dataset, for other methods and with other `changes`."""
    changes = {"grids": dict(grids), **changes}
    return [profiles.load(profile, name, _workspace.params_dir(), changes) for name in datasets]


def train_all(protocol: Protocol) -> pd.DataFrame:
    """Train every run of every method of a protocol; return the last epoch. Nothing is written."""
    frames = []
    for name in protocol.methods:
        for noise in protocol.label_noise:
            runs = [r for r in protocol.runs(name) if r.label_noise == noise]
            samples = heldout.sample_inputs(protocol, runs)
            frames.append(train_runs(protocol, runs, {protocol.epochs}, samples=samples))
    return merge(frames)


def chosen(rows: pd.DataFrame, ties: str = "largest") -> pd.DataFrame:
    """Select a run of every trial; add its `gap`: test minus train cross-entropy, in nats."""
    runs = selection.select(rows, ties)
    return runs.assign(gap=runs["loss_test"] - runs["loss_train"])


def compared(protocol: Protocol, runs: pd.DataFrame) -> pd.DataFrame:
    """Means over the trials of `chosen` runs, one line a method, and its gradients per step."""
    means = runs[runs["dataset"] == protocol.dataset].groupby("method")[["knob", *MEASURED]].mean()
    means = means.reindex(list(protocol.methods))
    return means.assign(gradients=[protocol.method(m).gradients for m in protocol.methods])


def epoch_costs(protocol: Protocol, epochs: int = 3, rounds: int = 3) -> pd.Series:
    """Seconds of one run's epoch ÷ ERM's, per method: the shortest of `rounds` taken in turns.

    AdaFlood's auxiliary models are not counted: they are trained once for all values of γ.
    """
    seconds = {name: np.inf for name in protocol.methods}
    config = dataclasses.replace(protocol.recipe, epochs=epochs)
    splits = load_splits(protocol, protocol.label_noise[0])
    with deterministic_math(pick_device(protocol.device), protocol.precision):
        trainers = {}
        for name in seconds:
            samples = {k: torch.full(splits.train.shape, 0.1) for k in METHODS[name].samples}
            trainers[name] = Trainer(protocol, protocol.runs(name)[:1], splits, samples)
        for _ in range(rounds):
            for name, trainer in trainers.items():
                engine = trainer.engine(trainer.runs)
                started = time.perf_counter()
                engine.train(config, protocol.seeds, ())
                seconds[name] = min(seconds[name], time.perf_counter() - started)
    return pd.Series(seconds) / seconds["erm"]


def verdicts(tables: Mapping[str, pd.DataFrame], points: float = 0.01) -> pd.DataFrame:
    """Check the paper's claims on SoftAD, and on its rivals' cost, in each dataset's `compared`."""
    claims = {}
    for dataset, table in tables.items():
        four, softad, erm = table.reindex(list(COMPARED)), table.loc["softad"], table.loc["erm"]
        claims[dataset] = {
            "SoftAD's gap is the smallest of the paper's four": four["gap"].idxmin() == "softad",
            "SoftAD's gap is the smallest of all methods": table["gap"].idxmin() == "softad",
            "ERM's gap is the largest of the paper's four": four["gap"].idxmax() == "erm",
            f"SoftAD's accuracy is within {100 * points:g} point of ERM's": softad["acc_test"]
            >= erm["acc_test"] - points,
            "SoftAD's test loss is below ERM's": softad["loss_test"] < erm["loss_test"],
            "SoftAD's model norm is below ERM's": softad["model_norm"] < erm["model_norm"],
            "SoftAD takes as many gradients as ERM": softad["gradients"] == erm["gradients"],
            "SAM takes twice as many": table.loc["sam", "gradients"] == 2 * erm["gradients"],
        }
    return pd.DataFrame(claims).map(lambda yes: "yes" if yes else "no")


def method_panels(
    runs: pd.DataFrame, datasets: Sequence[str], measures: Mapping[str, str]
) -> Figure:
    """A row a dataset, a column a measure (name → axis label), a line a method; ERM's mean dashed.

    `runs`: one run per dataset, method and trial, with a column for every measure.
    """
    methods = [name for name in METHODS if (runs["method"] == name).any()]
    size = (2.7 * len(measures) + 0.8, (0.24 * len(methods) + 0.7) * len(datasets))
    grid: dict[str, Any] = {"squeeze": False, "sharey": True, "figsize": size}
    fig: Figure
    fig, axes = plt.subplots(len(datasets), len(measures), **grid)
    for row, dataset in zip(axes, datasets):
        for ax, (measure, label) in zip(row, measures.items()):
            values = runs[runs["dataset"] == dataset].groupby("method")[measure]
            for line, name in enumerate(methods):
                if name not in values.groups:
                    continue
                trials, colour = values.get_group(name), PALETTE[name]
                ax.scatter(
                    trials, [line] * len(trials), s=16, color=colour, alpha=0.55, linewidths=0
                )
                ax.vlines(trials.mean(), line - 0.36, line + 0.36, color=colour, linewidth=2.4)
            if "erm" in values.groups:
                level = values.get_group("erm").mean()
                ax.axvline(level, color=PALETTE["erm"], linestyle="--", linewidth=0.9, zorder=0)
            ax.set_xlabel(label)
            ax.locator_params(axis="x", nbins=4)
        row[0].set_ylabel(dataset)
        row[0].set_yticks(range(len(methods)), [METHODS[name].label for name in methods])
        row[0].set_ylim(len(methods) - 0.4, -0.6)
    return fig
