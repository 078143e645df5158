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
    train, val and test to their first samples; 0 keeps a part whole. Images without a test part are
    split as the rows of a table are.
    """
    n, m = len(images.y_train), len(images.y_test)
    index: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
    for seed in seeds:
        if m == 0:
            rows = draw_rows(images.y_train, images.classes, sizes, np.random.default_rng(seed))
        else:
            order = np.arange(n)
            np.random.default_rng(seed).shuffle(order)
            cut = int(0.8 * n)
            rows = {"train": order[:cut], "val": order[cut:], "test": n + np.arange(m)}
        for part, size in zip(PARTS, sizes):
            if size > len(rows[part]):
                raise UserError(
                    f"n_{part} is {size}, but that part has {len(rows[part])} samples; give 0 for all"
                )
            index[part].append(rows[part][: size or None])
    y = np.concatenate([images.y_train, images.y_test]).astype(np.int64)
    train, val, test = (torch.from_numpy(np.stack(index[part])) for part in PARTS)
    x = torch.from_numpy(images.pool)
    return Splits(x, torch.from_numpy(y), train, val, test, images.classes)


def table_splits(
    table: Table, seeds: Sequence[int], sizes: Sequence[int], label_noise: float = 0.0
) -> Splits:
    """Draw one trial per seed: disjoint training, validation and test rows, from `default_rng(seed)`.

    Rows are drawn by `draw_rows`. Label noise q gives int(n·q) of the training rows another class,
    uniformly among the others; validation and test labels stay.

    Nothing of the validation and test rows reaches the training part, see `encode`. Each trial brings
    its own float32 copy of its rows.
    """
    classes = len(table.classes)
    trials = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rows = draw_rows(table.y, classes, sizes, rng)
        x = encode(table, rows["train"])
        y = {part: table.y[rows[part]] for part in PARTS}
        y["train"] = flip_any_classes(y["train"], label_noise, classes, rng)
        trials.append({part: (x[rows[part]], y[part]) for part in PARTS})
    return from_arrays(trials, classes)


def draw_rows(
    y: np.ndarray, classes: int, sizes: Sequence[int], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Shuffle rows until every class is among the training rows, and return those of each part.

    `sizes` are those of train, val and test; 0 takes 60, 20 and 20 % of the rows. Raises UserError for
    parts that are larger than the data and for fewer training rows than classes.
    """
    n = len(y)
    shares = (n * 3 // 5, n // 5, n - n * 3 // 5 - n // 5)
    n_train, n_val, n_test = (size or share for size, share in zip(sizes, shares))
    if n_train + n_val + n_test > n:
        asked = f"{n_train} + {n_val} + {n_test}"
        raise UserError(f"n_train + n_val + n_test is {asked}, but there are {n} rows")
    if n_train < classes:
        raise UserError(
            f"n_train is {n_train}, but there are {classes} classes; give at least that"
        )
    for _ in range(1000):
        order = rng.permutation(n)
        train, val, test, _ = np.split(order, np.cumsum((n_train, n_val, n_test)))
        if len(np.unique(y[train])) == classes:
            return {"train": train, "val": val, "test": test}
    raise UserError(
        f"n_train is {n_train}: 1,000 draws left one of the {classes} classes out each time; "
        "give more, or leave rare classes out"
    )
