"""Data of all trials on one device: a pool of samples and, per trial, the indices of each part."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from softadlib._validation import UserError
from softadlib.data.images import Images
from softadlib.data.label_noise import flip_any_classes
from softadlib.data.synthetic import SYNTHETIC
from softadlib.data.tables import Table

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


def synthetic_splits(
    name: str,
    seeds: Sequence[int | np.random.SeedSequence],
    label_noise: float,
    sizes: Sequence[int],
) -> Splits:
    """Draw one trial per seed: train, val, test of `sizes`, in that order, from `default_rng(seed)`."""
    trials = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        trial = {part: SYNTHETIC[name](n, label_noise, rng) for part, n in zip(PARTS, sizes)}
        trials.append(trial)
    largest = max(int(y.max()) for trial in trials for _, y in trial.values())
    return from_arrays(trials, classes=max(2, largest + 1))


def image_splits(images: Images, seeds: Sequence[int], sizes: Sequence[int]) -> Splits:
    """Make trials that share one pool: a shuffled 80/20 split of the training part each, and the test part.

    The shuffle is `default_rng(seed).shuffle(arange(n))`, as in the authors' code. `sizes` cut
    train, val and test to their first samples; 0 keeps a part whole.
    """
    n, m = len(images.y_train), len(images.y_test)
    index: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
    for seed in seeds:
        order = np.arange(n)
        np.random.default_rng(seed).shuffle(order)
        cut = int(0.8 * n)
        for part, rows, size in zip(PARTS, (order[:cut], order[cut:], n + np.arange(m)), sizes):
            if size > len(rows):
                raise UserError(
                    f"n_{part} is {size}, but that part has {len(rows)} samples; give 0 for all"
                )
            index[part].append(rows[: size or None])
    y = np.concatenate([images.y_train, images.y_test]).astype(np.int64)
    train, val, test = (torch.from_numpy(np.stack(index[part])) for part in PARTS)
    x = torch.from_numpy(images.pool)
    return Splits(x, torch.from_numpy(y), train, val, test, images.classes)


def table_splits(
    table: Table, seeds: Sequence[int], sizes: Sequence[int], label_noise: float = 0.0
) -> Splits:
    """Draw one trial per seed: disjoint training, validation and test rows, from `default_rng(seed)`.

    Rows are shuffled, until every class is among the training rows. `sizes` are those of train, val
    and test; 0 takes 60, 20 and 20 % of the rows. Label noise q gives int(n·q) of the training rows
    another class, uniformly among the others; validation and test labels stay.

    Nothing of the validation and test rows reaches the training part: numbers are standardised by
    mean and deviation of the trial's training rows, and an input that is the same in all of these, a
    word that none of them holds for example, is 0 in every part. Words are 0/1 inputs, one for every
    word of the whole table. This leaks nothing: it only sets the width of the first layer, and words
    that training has not seen are zeros.

    Each trial brings its own float32 copy of its rows. Raises UserError for parts that are larger
    than the table and for fewer training rows than classes.
    """
    n, k = len(table.y), len(table.classes)
    shares = (n * 3 // 5, n // 5, n - n * 3 // 5 - n // 5)
    n_train, n_val, n_test = (size or share for size, share in zip(sizes, shares))
    if n_train + n_val + n_test > n:
        asked = f"{n_train} + {n_val} + {n_test}"
        raise UserError(f"n_train + n_val + n_test is {asked}, but the table has {n} rows")
    if n_train < k:
        raise UserError(f"n_train is {n_train}, but the table has {k} classes; give at least that")
    trials = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        order = _shuffle(table.y, n_train, k, rng)
        rows = dict(zip(PARTS, np.split(order, np.cumsum((n_train, n_val, n_test)))))
        mean, deviation = table.x[rows["train"]].mean(0), table.x[rows["train"]].std(0)
        constant = np.ptp(table.x[rows["train"]], axis=0) == 0
        mean[table.is_word], deviation[table.is_word] = 0, 1
        factor = np.where(constant, 0, 1 / np.where(constant, 1, deviation))
        x = {part: ((table.x[i] - mean) * factor).astype(np.float32) for part, i in rows.items()}
        y = {part: table.y[i] for part, i in rows.items()}
        y["train"] = flip_any_classes(y["train"], label_noise, k, rng)
        trials.append({part: (x[part], y[part]) for part in PARTS})
    return from_arrays(trials, k)


def _shuffle(y: np.ndarray, n_train: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return a shuffle of the rows with every class among the first `n_train`."""
    for _ in range(1000):
        order = rng.permutation(len(y))
        if len(np.unique(y[order[:n_train]])) == classes:
            return order
    raise UserError(
        f"n_train is {n_train}: 1,000 draws left one of the {classes} classes out each time; "
        "give more, or leave rare classes out of the table"
    )


def check_batches(n_train: int, batch_size: int) -> None:
    """Raise UserError where the last batch would be a single sample, on which batch norm cannot train."""
    if n_train % batch_size == 1:
        raise UserError(
            f"batch_size {batch_size} leaves a last batch of one of {n_train} samples, "
            "on which batch norm cannot train; choose another batch_size"
        )
