"""Choose the engine: by the kind of network and the device, once and for all."""

import torch
from torch import nn

from softadlib.training.engines.base import Engine, RunBatch
from softadlib.training.engines.mlp_cpu import MLPEngine
from softadlib.training.engines.streams import StreamEngine
from softadlib.training.engines.vmap import VmapEngine

ENGINES: list[type[Engine]] = [MLPEngine, StreamEngine, VmapEngine]
"""Asked in this order: perceptrons on a CPU, convolutional networks on a GPU, everything else."""


def engine_class(network: nn.Module, device: torch.device, bf16: bool = False) -> type[Engine]:
    """Return the first of `ENGINES` that supports networks like `network` on `device`."""
    return next(engine for engine in ENGINES if engine.supports(network, device, bf16))


def make_engine(batch: RunBatch) -> Engine:
    """Make the engine that trains `batch`."""
    return engine_class(batch.networks[0], batch.device, batch.bf16)(batch)
