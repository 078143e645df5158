"""How one network is stepped: the optimizer, the learning rate and the order of samples."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

OPTIMIZERS: dict[str, type[torch.optim.Adam]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
"""The optimizers beside SGD."""


@dataclass(frozen=True)
class Recipe:
    """Optimizer and schedule of a training: everything but data, method and weights."""

    optimizer: str
    lr: float
    batch_size: int
    epochs: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_schedule: str = "constant"

    def make_optimizer(self, params: Sequence[Tensor]) -> torch.optim.Optimizer:
        """Make the optimizer. It works elementwise, so that stacked runs stay independent."""
        options: dict[str, Any] = {"weight_decay": self.weight_decay, "fused": True}
        if self.optimizer == "sgd":
            return torch.optim.SGD(params, self.lr, self.momentum, **options)
        on_cuda = params[0].device.type == "cuda"
        return OPTIMIZERS[self.optimizer](params, self.lr, capturable=on_cuda, **options)

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, 1 to `epochs`: constant, or half a cosine from `lr` to 0."""
        if self.lr_schedule == "constant":
            return self.lr
        return self.lr * (1 + math.cos(math.pi * (epoch - 1) / self.epochs)) / 2


def batches(
    seeds: Sequence[int | np.ndarray],
    epoch: int,
    n: int,
    size: int,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Yield positions (T, ≤ size) in the training part, in a fresh order per trial and epoch.

    The order is a function of (seed, epoch) alone. So it is the same for every method, and a run
    that resumes needs no generator state. It goes to the device once per epoch. In place of a seed may
    stand the orders of all epochs, (epochs, n).
    """
    order = np.stack(
        [
            seed[epoch - 1]
            if isinstance(seed, np.ndarray)
            else np.random.default_rng([seed, epoch]).permutation(n)
            for seed in seeds
        ]
    )
    yield from torch.split(torch.from_numpy(order).to(device), size, dim=1)
