"""What a network costs: multiplications, bytes in training, samples that fit."""

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

PRODUCTS = (nn.Linear, nn.modules.conv._ConvNd)
STATES = {"adam": 2, "sgd": 1}
"""Copies of the parameters that an optimizer keeps; SGD's is its momentum."""


def _outputs(network: nn.Module, shape: tuple[int, ...]) -> list[tuple[nn.Module, int]]:
    """Every layer without parts of its own and the floats it puts out for one sample of `shape`."""
    found: list[tuple[nn.Module, int]] = []
    network = copy.deepcopy(network).eval()
    like = next(network.parameters())
    for module in network.modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(lambda m, args, out: found.append((m, out[0].numel())))
    with torch.no_grad():
        network(torch.zeros(2, *shape, device=like.device, dtype=like.dtype))
    return found


def activations(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Floats that the layers of `network` put out for one sample of `shape`."""
    return sum(size for _, size in _outputs(network, shape))


def forward_flops(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Floating-point operations of one sample's forward pass, matrix products and convolutions alone.

    An output of theirs is a sum over one row of the weights, a multiplication and an addition each.
    """
    return sum(
        2 * size * module.weight[0].numel()
        for module, size in _outputs(network, shape)
        if isinstance(module, PRODUCTS)
    )


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that training R runs side by side needs at its peak, and where they go."""

    parameters: int
    """Weights and buffers."""
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
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


def footprint(
    network: nn.Module, recipe: TrainConfig, method: Method, runs: int, splits: Splits
) -> MemoryEstimate:
    """What `runs` networks like `network` need together on `splits`."""
    element = next(network.parameters()).element_size()
    weights = sum(p.numel() for p in network.parameters()) * element
    buffers = sum(b.numel() * b.element_size() for b in network.buffers())
    batch = min(recipe.batch_size, splits.train.shape[1])
    inputs = torch.Size(splits.shape).numel() * element
    tensors = (splits.x, splits.y, splits.train, splits.val, splits.test)
    states = STATES[recipe.optimizer] if recipe.optimizer == "adam" or recipe.momentum else 0
    return MemoryEstimate(
        parameters=runs * (weights + buffers),
        optimizer=runs * weights * states,
        gradients=runs * weights * method.gradients,
        activations=runs * batch * (activations(network, splits.shape) * element + inputs),
        data=sum(t.numel() * t.element_size() for t in tensors),
    )


def runs_that_fit(free: int, one: MemoryEstimate, most: int) -> int:
    """How many runs like `one` fit into `free` bytes, at most `most`; 0 where not even one does."""
    room = free - one.data
    return max(0, min(most, room // max(1, one.total - one.data)))


@dataclass(frozen=True)
class Work:
    """Floating-point operations of a study's two chores."""

    unit: int
    """One run, one epoch, one gradient per step: a forward pass and a backward one of twice the work."""
    measure: int
    """One run measured on train, val and test."""


def work(protocol: Protocol) -> Work:
    """What one run of a protocol costs."""
    splits = load_splits(protocol, protocol.label_noise[0], trials=1)
    forward = forward_flops(build(protocol.model, splits.shape, splits.classes, 0), splits.shape)
    sizes = [getattr(splits, part).shape[1] for part in PARTS]
    return Work(unit=3 * forward * sizes[0], measure=forward * sum(sizes))
