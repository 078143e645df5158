"""What a network costs: bytes in training, floating-point operations, samples that fit."""

import copy
from dataclasses import dataclass

import torch
from torch import nn

from softadlib.data.splits import PARTS, Splits
from softadlib.methods import Method
from softadlib.models import build
from softadlib.training.engines.base import TrainConfig
from softadlib.training.inputs import load_splits
from softadlib.training.protocol import Protocol

OPTIMIZER_STATES = {"adam": 2, "sgd": 1}
"""Copies of the parameters that an optimizer keeps; SGD's is its momentum."""


def _copy(network: nn.Module) -> nn.Module:
    """Return a copy on the CPU without values, in evaluation mode: it knows shapes.

    It is never moved to device "meta", whose kernels import sympy, which takes longer than the pass.
    """
    return copy.deepcopy(network).to_empty(device="cpu").eval()


def activations(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Count the floats that the layers of `network` put out for one sample of `shape`."""
    sizes: list[int] = []
    network = _copy(network)
    for module in network.modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(lambda m, args, out: sizes.append(out[0].numel()))
    with torch.no_grad():
        network(torch.zeros(2, *shape, dtype=next(network.parameters()).dtype))
    return sum(sizes)


def forward_flops(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Count the operations of one sample's forward pass, in matrix products and convolutions.

    A multiplication and an addition count two. Every output of a layer costs as many of both as one
    of its outputs has weights.
    """
    counts: list[int] = []
    network = _copy(network)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            per_output = 2 * module.weight[0].numel()
            module.register_forward_hook(
                lambda m, args, out, each=per_output: counts.append(each * out.numel())
            )
    with torch.no_grad():
        network(torch.zeros(1, *shape, dtype=next(network.parameters()).dtype))
    return sum(counts)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that training R runs side by side needs at its peak, and where they go."""

    parameters: int
    """Weights and buffers; on CUDA a copy as well, while a step is captured."""
    optimizer: int
    gradients: int
    """And, of methods with several gradients per step, the weights they are taken at."""
    activations: int
    """Of one batch: kept for the backward pass, and what the widest layer needs beside it."""
    data: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())

    def __str__(self) -> str:
        parts = (f"{name} {_readable(size)}" for name, size in vars(self).items())
        return f"{_readable(self.total)} ({', '.join(parts)})"


def _readable(size: int) -> str:
    """Write bytes in MiB or GiB."""
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


def footprint(
    network: nn.Module,
    config: TrainConfig,
    method: Method,
    runs: int,
    splits: Splits,
    *,
    captured: bool = False,
) -> MemoryEstimate:
    """Estimate what `runs` networks like `network` need together on `splits`.

    `captured`: their step is a CUDA graph. Weights and buffers are then copied during the capture, the
    graph keeps gradients of its own, and intermediates of the backward pass stay alive.
    """
    element = next(network.parameters()).element_size()
    weights = sum(p.numel() for p in network.parameters()) * element
    buffers = sum(b.numel() * b.element_size() for b in network.buffers())
    batch = min(config.batch_size, splits.train.shape[1])
    inputs = torch.Size(splits.shape).numel() * element
    tensors = (splits.x, splits.y, splits.train, splits.val, splits.test)
    keeps_state = config.optimizer == "adam" or config.momentum
    states = OPTIMIZER_STATES[config.optimizer] if keeps_state else 0
    more = 1 if captured else 0
    outputs = activations(network, splits.shape) * element
    return MemoryEstimate(
        parameters=runs * (weights + buffers) * (1 + more),
        optimizer=runs * weights * states,
        gradients=runs * weights * (method.gradients + more),
        activations=runs * batch * (outputs * (1 + more) + inputs),
        data=sum(t.numel() * t.element_size() for t in tensors),
    )


def runs_that_fit(free: int, single: MemoryEstimate, most: int) -> int:
    """Return how many runs like `single` fit into `free` bytes, at most `most`; 0 if not even one."""
    room = free - single.data
    return max(0, min(most, room // max(1, single.total - single.data)))


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of the two parts of a study."""

    unit: int
    """One run, one epoch, one gradient per step: a forward pass and a backward one of twice the work."""
    measure: int
    """One run measured on train, val and test."""


def protocol_flops(protocol: Protocol) -> Flops:
    """Count what one run of a protocol costs."""
    splits = load_splits(protocol, protocol.label_noise[0], trials=1)
    forward = forward_flops(build(protocol.model, splits.shape, splits.classes, 0), splits.shape)
    sizes = [getattr(splits, part).shape[1] for part in PARTS]
    return Flops(unit=3 * forward * sizes[0], measure=forward * sum(sizes))
