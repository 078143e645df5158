"""Networks by name: (sample shape, classes) → `nn.Module`."""

import math
from collections.abc import Callable

import torch
from torch import nn

from .errors import choose


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """x ↦ Wx + b: (n, …) → (n, classes)."""
    layer = nn.Linear(math.prod(shape), classes)
    return layer if len(shape) == 1 else nn.Sequential(nn.Flatten(), layer)


def mlp(shape: tuple[int, ...], classes: int, *, width: int, depth: int) -> nn.Module:
    """`depth` × [Linear(width, no bias), BatchNorm, ReLU], then Linear: (n, …) → (n, classes)."""
    layers: list[nn.Module] = [] if len(shape) == 1 else [nn.Flatten()]
    size = math.prod(shape)
    for _ in range(depth):
        layers += [nn.Linear(size, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, classes))


def mlp4x500(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's network for the synthetic sets: four hidden layers of 500."""
    return mlp(shape, classes, width=500, depth=4)


def mlp1x1000(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's network for FashionMNIST: one hidden layer of 1,000."""
    return mlp(shape, classes, width=1000, depth=1)


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "linear": linear,
    "mlp4x500": mlp4x500,
    "mlp1x1000": mlp1x1000,
}


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A network with the weights that `torch.manual_seed(seed)` gives on the CPU.

    The global generator is left as it was. Raises UserError for an unknown name.
    """
    choose("model", name, MODELS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](shape, classes)
