"""Data of all trials on one device: a pool of samples and, per trial, the indices of each part."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from softadlib._validation import UserError, counted

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Splits:
    """A pool `x` (N, …), `y` (N,) and index tensors `train`, `val`, `test`, one row a trial (T, n).

    Trials that share samples share their bytes, and uint8 inputs stay uint8: `inputs` makes floats
    of a batch, scaled so that the training part goes from 0 to 1. Raises UserError for NaN or infinite
    inputs, labels outside 0 … classes−1, and parts that are empty.
    """

    x: Tensor
    y: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    classes: int
    dtype: torch.dtype = torch.float32
    """Type of what `inputs` returns."""

    def __post_init__(self) -> None:
        if self.x.is_floating_point() and not torch.isfinite(self.x).all():
            bad = (~torch.isfinite(self.x.reshape(len(self.x), -1))).any(1).nonzero().flatten()
            raise UserError(
                f"the data hold NaN or infinity in {len(bad)} of {len(self.x)} samples, "
                f"first at sample {bad[0].item()}; remove or repair them"
            )
        if len(self.x) != len(self.y):
            raise UserError(
                f"{counted(len(self.x), 'sample')} but {counted(len(self.y), 'label')}; every sample needs one"
            )
        if len(self.y) and not 0 <= self.y.min() <= self.y.max() < self.classes:
            raise UserError(
                f"labels run from {self.y.min().item()} to {self.y.max().item()}; "
                f"they must lie in 0 to {self.classes - 1}"
            )
        for part in PARTS:
            if getattr(self, part).shape[1] == 0:
                raise UserError(f"the {part} part is empty; give it at least one sample")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])

    @functools.cached_property
    def range(self) -> tuple[Tensor, Tensor]:
        """Minimum and range of the training part's uint8 inputs, (T,) each, which `inputs` maps to [0, 1].

        The paper's code takes them of each part. On its sets they are the same in every part.
        """
        rows = [torch.stack(torch.aminmax(self.x[index])) for index in self.train]
        low, high = torch.stack(rows).to(self.dtype).unbind(1)
        return low, (high - low).clamp(min=1)

    def inputs(self, x: Tensor, trial: Tensor | int) -> Tensor:
        """Scale raw inputs `x` for the network, (n, …), or (R, n, …) with `trial` (R,)."""
        if x.is_floating_point():
            return x
        low, spread = (v[trial] for v in self.range)
        if isinstance(trial, Tensor) and trial.ndim:
            low, spread = (v.view(-1, *[1] * (x.ndim - 1)) for v in (low, spread))
        return (x.to(self.dtype) - low) / spread

    def part(self, name: str, trial: int = 0) -> tuple[Tensor, Tensor]:
        """Return raw (x, y) of one part of one trial."""
        index = getattr(self, name)[trial]
        return self.x[index], self.y[index]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Splits":
        """Return the same data on `device`; floating inputs, and what `inputs` returns, as `dtype`."""
        x = self.x.to(device, dtype if self.x.is_floating_point() else None)
        rest = (self.y, self.train, self.val, self.test)
        y, train, val, test = (t.to(device) for t in rest)
        return Splits(x, y, train, val, test, self.classes, dtype)


def from_arrays(trials: Sequence[dict[str, tuple[np.ndarray, np.ndarray]]], classes: int) -> Splits:
    """Make splits of trials that each bring their own arrays: [{"train": (x, y), "val": …, "test": …}]."""
    index: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
    x, y, start = [], [], 0
    for trial in trials:
        for part in PARTS:
            x.append(trial[part][0])
            y.append(trial[part][1])
            index[part].append(np.arange(start, start + len(y[-1])))
            start += len(y[-1])
    train, val, test = (torch.from_numpy(np.stack(index[part])) for part in PARTS)
    inputs, labels = (torch.from_numpy(np.concatenate(v)) for v in (x, y))
    return Splits(inputs, labels, train, val, test, classes)


def check_batches(n_train: int, batch_size: int) -> None:
    """Raise UserError where the last batch would be a single sample, on which batch norm cannot train."""
    if n_train % batch_size == 1:
        raise UserError(
            f"batch_size {batch_size} leaves a last batch of one of {n_train} samples, "
            "on which batch norm cannot train; choose another batch_size"
        )
