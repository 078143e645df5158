"""Engines: how R runs of one method are stepped on one device. The choice among them stands here."""

import torch
from torch import nn

from softadlib.trainer.engines.base import Engine, Row, RunBatch
from softadlib.trainer.engines.side_by_side import VmapEngine, is_convolutional
from softadlib.trainer.engines.single_perceptron import PerceptronEngine

__all__ = ["Engine", "Row", "RunBatch", "choose_engine", "groups", "runs_at_once"]

SIDE_BY_SIDE = 64
"""Most runs that a GPU trains at once: more are hardly faster, and a crash loses all of them."""
CONVOLUTIONAL_SIDE_BY_SIDE = 1
"""Most convolutional networks that a GPU trains at once.

Four take about half the time that they take one after another (outputs/bench), and four times the
memory. 1 until `pytest -m gpu` has passed on a GPU with this engine.
"""


def runs_at_once(network: nn.Module, device: torch.device | str) -> int:
    """Return how many runs are trained together; a CPU trains one after another."""
    if torch.device(device).type == "cpu":
        return 1
    return CONVOLUTIONAL_SIDE_BY_SIDE if is_convolutional(network) else SIDE_BY_SIDE


def groups(batch: RunBatch) -> list[list[int]]:
    """Return the positions in `batch` of the runs that are trained together, group after group."""
    everything = list(range(len(batch)))
    size = runs_at_once(batch.networks[0], batch.device)
    return [everything[start : start + size] for start in range(0, len(batch), size)]


def choose_engine(batch: RunBatch) -> Engine:
    """Make the engine that trains `batch`: one perceptron on a CPU has an engine of its own."""
    if len(batch) == 1 and PerceptronEngine.supports(batch.networks[0], batch.device, batch.bf16):
        return PerceptronEngine(batch)
    return VmapEngine(batch)
