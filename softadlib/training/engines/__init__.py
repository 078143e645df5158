"""Engines: how R runs of one method are stepped on one device. The choice among them stands here."""

import torch
from torch import nn

from softadlib.training.engines.base import Engine, Row, RunBatch
from softadlib.training.engines.perceptron import PerceptronEngine
from softadlib.training.engines.vmap import VmapEngine, is_convolutional

__all__ = ["SIDE_BY_SIDE", "Engine", "Row", "RunBatch", "choose_engine", "groups", "trains_alone"]

SIDE_BY_SIDE = 64
"""Most runs that a GPU trains at once: more are hardly faster, and an accident costs them all."""


def trains_alone(network: nn.Module, device: torch.device | str) -> bool:
    """Tell whether a run is trained by itself: on a CPU, and of a convolutional network anywhere.

    So no number of such a run depends on the runs beside it.
    """
    return torch.device(device).type == "cpu" or is_convolutional(network)


def groups(batch: RunBatch) -> list[list[int]]:
    """Return the positions in `batch` of the runs that are trained together, group after group."""
    everything = list(range(len(batch)))
    size = 1 if trains_alone(batch.networks[0], batch.device) else SIDE_BY_SIDE
    return [everything[start : start + size] for start in range(0, len(batch), size)]


def choose_engine(batch: RunBatch) -> Engine:
    """Make the engine that trains `batch`: one perceptron on a CPU has an engine of its own."""
    if len(batch) == 1 and PerceptronEngine.supports(batch.networks[0], batch.device, batch.bf16):
        return PerceptronEngine(batch)
    return VmapEngine(batch)
