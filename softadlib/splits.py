"""Data of all trials on one device: a pool of samples and, per trial, which ones are whose."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .errors import UserError
from .synthetic import SYNTHETIC

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Splits:
    """A pool `x` (N, …), `y` (N,) and index tensors `train`, `val`, `test`, one row a trial (T, n).

    Trials that share samples share their bytes. Raises UserError for NaN or infinite inputs, labels
    outside 0 … classes−1, and parts that are empty.
    """

    x: Tensor
    y: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    classes: int

    def __post_init__(self):
        if self.x.is_floating_point() and not torch.isfinite(self.x).all():
            bad = (~torch.isfinite(self.x.flatten(1))).any(1).nonzero().flatten()
            raise UserError(
                f"the data hold NaN or infinity in {len(bad)} of {len(self.x)} samples, "
                f"first at sample {bad[0].item()}; remove or repair them"
            )
        if len(self.x) != len(self.y):
            raise UserError(
                f"{len(self.x)} samples but {len(self.y)} labels; every sample needs one"
            )
        if len(self.y) and not 0 <= self.y.min() <= self.y.max() < self.classes:
            raise UserError(
                f"labels run from {self.y.min().item()} to {self.y.max().item()}; "
                f"they must lie in 0 to {self.classes - 1}"
            )
        for part in PARTS:
            if getattr(self, part).shape[1] == 0:
                raise UserError(f"the {part} part is empty; give it at least one sample")

    def part(self, name: str, trial: int = 0) -> tuple[Tensor, Tensor]:
        """(x, y) of one part of one trial."""
        index = getattr(self, name)[trial]
        return self.x[index], self.y[index]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Splits":
        """The same data on `device`, floating inputs as `dtype`."""
        x = self.x.to(device, dtype if self.x.is_floating_point() else None)
        rest = (t.to(device) for t in (self.y, self.train, self.val, self.test))
        return Splits(x, *rest, classes=self.classes)


def from_arrays(trials: Sequence[dict[str, tuple[np.ndarray, np.ndarray]]], classes: int) -> Splits:
    """Splits of trials that each bring their own arrays: [{"train": (x, y), "val": …, "test": …}]."""
    x, y, index, start = [], [], {part: [] for part in PARTS}, 0
    for trial in trials:
        for part in PARTS:
            x.append(trial[part][0])
            y.append(trial[part][1])
            index[part].append(np.arange(start, start + len(y[-1])))
            start += len(y[-1])
    parts = {part: torch.from_numpy(np.stack(rows)) for part, rows in index.items()}
    return Splits(
        torch.from_numpy(np.concatenate(x)),
        torch.from_numpy(np.concatenate(y)),
        classes=classes,
        **parts,
    )


def synthetic_splits(
    name: str, seeds: Sequence[int], label_noise: float, sizes: Sequence[int]
) -> Splits:
    """One trial per seed: train, val, test of `sizes`, in that order, from `default_rng(seed)`."""
    make, trials = SYNTHETIC[name], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        trials.append({part: make(n, label_noise, rng) for part, n in zip(PARTS, sizes)})
    return from_arrays(trials, classes=2)


def load_splits(protocol, label_noise: float, trials: int | None = None) -> Splits:
    """The data of a protocol at one label noise, on the CPU, for its first `trials` trials."""
    seeds = protocol.seeds[:trials]
    return synthetic_splits(
        protocol.dataset, seeds, label_noise, (protocol.n_train, protocol.n_val, protocol.n_test)
    )
