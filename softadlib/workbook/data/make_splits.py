"""Splits of synthetic sets, images and tables: what each trial trains, validates and tests on."""

from collections.abc import Sequence

import numpy as np
import torch

from softadlib._validation import UserError
from softadlib.trainer.splits import PARTS, Splits, from_arrays
from softadlib.workbook.data.encode import encode
from softadlib.workbook.data.images import Images
from softadlib.workbook.data.label_noise import flip_any_classes
from softadlib.workbook.data.synthetic import SYNTHETIC
from softadlib.workbook.data.tables import Table


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

    Nothing of the validation and test rows reaches the training part, see `encode`. Each trial brings
    its own float32 copy of its rows. Raises UserError for parts that are larger than the table and for
    fewer training rows than classes.
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
        x = encode(table, rows["train"])
        y = {part: table.y[i] for part, i in rows.items()}
        y["train"] = flip_any_classes(y["train"], label_noise, k, rng)
        trials.append({part: (x[rows[part]], y[part]) for part in PARTS})
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
