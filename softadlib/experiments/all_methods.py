"""Protocols of many methods at once, trained in memory; and what a step of each method costs."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from softadlib.methods import METHODS
from softadlib.results.table import merge
from softadlib.training import heldout, profiles
from softadlib.training.device import deterministic_math, pick_device
from softadlib.training.inputs import load_splits
from softadlib.training.protocol import Protocol
from softadlib.training.trainer import Trainer, train_runs


def protocols(
    profile: str, datasets: Sequence[str], grids: Mapping[str, Sequence[float]], **changes: Any
) -> list[Protocol]:
    """Return a profile's protocol of each dataset, for other methods and with other `changes`."""
    changes = {"grids": dict(grids), **changes}
    return [profiles.load(profile, name, changes) for name in datasets]


def train_all(protocol: Protocol) -> pd.DataFrame:
    """Train every run of every method of a protocol; return the last epoch. Nothing is written."""
    frames = []
    for name in protocol.methods:
        for noise in protocol.label_noise:
            runs = [r for r in protocol.runs(name) if r.label_noise == noise]
            samples = heldout.sample_inputs(protocol, runs)
            frames.append(train_runs(protocol, runs, {protocol.epochs}, samples=samples))
    return merge(frames)


def epoch_costs(protocol: Protocol, epochs: int = 3, rounds: int = 3) -> pd.Series:
    """Time an epoch of one run per method, ÷ ERM's: the shortest of `rounds` taken in turns.

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
