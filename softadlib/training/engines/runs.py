"""What an engine is given: the runs, their optimizer, and the order of samples."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softadlib.data.splits import Splits
from softadlib.methods import Method

Row = dict[str, np.ndarray]
"""{measure: (R,)}; `epoch` (R,) among them where it belongs to a table."""


@dataclass(frozen=True)
class TrainConfig:
    """Optimizer and schedule of a training: everything but data, method and weights."""

    optimizer: str
    lr: float
    batch_size: int
    epochs: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_schedule: str = "constant"

    def build(self, params: Sequence[Tensor]) -> torch.optim.Optimizer:
        """Make the optimizer. It works elementwise, so stacked runs stay independent."""
        device = params[0].device.type
        fused = device in ("cpu", "cuda") or None
        options: dict[str, Any] = {"weight_decay": self.weight_decay, "fused": fused}
        if self.optimizer == "sgd":
            return torch.optim.SGD(params, self.lr, self.momentum, **options)
        makers = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        make: type[torch.optim.Adam] = makers[self.optimizer]
        return make(params, self.lr, capturable=device == "cuda", **options)

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, 1 to `epochs`: constant, or half a cosine from `lr` to 0."""
        if self.lr_schedule == "constant":
            return self.lr
        return self.lr * (1 + math.cos(math.pi * (epoch - 1) / self.epochs)) / 2


@dataclass(frozen=True)
class RunBatch:
    """R runs of one method that one engine trains: what differs between them, and what they share."""

    method: Method
    networks: Sequence[nn.Module]
    """(R,) modules of one architecture. Engines copy their values; runs may share a module."""
    splits: Splits
    """Data of all trials, on the device that trains."""
    trial: Sequence[int]
    """(R,): whose data each run sees."""
    knob: Sequence[float]
    """(R,): the method's swept value, NaN for a method without one."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the objective or the gradient rule. A tensor (R,) holds one value per run."""
    samples: Mapping[str, Tensor] = field(default_factory=dict)
    """What the objective needs of every training sample, by name, (T, n)."""
    bf16: bool = False
    """Forward passes in bfloat16 where autocast allows; everything else keeps its precision."""

    def __len__(self) -> int:
        return len(self.trial)

    @property
    def device(self) -> torch.device:
        """Where the runs are trained."""
        return self.splits.x.device


def batches(
    seeds: Sequence[int], epoch: int, n: int, size: int, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Yield positions (T, ≤ size) in the training part, a fresh order per trial and epoch.

    The order is a function of (seed, epoch) alone. So it is the same for every method, and a run
    that resumes needs no generator state. It goes to the device once an epoch.
    """
    order = np.stack([np.random.default_rng([seed, epoch]).permutation(n) for seed in seeds])
    yield from torch.split(torch.from_numpy(order).to(device), size, dim=1)
