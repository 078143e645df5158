"""Many small networks on your own data, trained at once: `train_many`."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from warnings import warn

import numpy as np
import torch
from torch import nn

from softadlib._validation import UserError, choose, real, whole
from softadlib.functional.reduction import as_tensor
from softadlib.methods import METHODS, check_momentum, get_method
from softadlib.models import has_batch_norm, initialized
from softadlib.trainer.device import memory_in_one_line, numerics, pick_device
from softadlib.trainer.engines import RunGroup, choose_engine, split_into_groups
from softadlib.trainer.evaluation import MEASURES, measures_table
from softadlib.trainer.loop import train
from softadlib.trainer.recipe import Recipe
from softadlib.trainer.splits import PARTS, Splits, check_batches

Pair = tuple[Any, Any]
"""Inputs (n, …) and integer targets (n,): tensors, arrays, or a pandas frame and series."""


def train_many(
    make_model: Callable[[], nn.Module],
    data: Mapping[str, Pair],
    runs: Iterable[Mapping[str, Any]],
    *,
    epochs: int,
    batch_size: int,
    optimizer: str = "adam",
    lr: float = 1e-3,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    measure_every: int | None = None,
    device: str = "auto",
    networks: bool = False,
) -> Any:
    """Train one small network per run and return its measures as a table. Needs pandas.

    A GPU trains the runs of equal method and learning rate side by side, each with its own weights,
    order of samples and hyperparameter; a CPU trains them one after another, perceptrons by hand-written
    gradients. Either way every run is what a loop over it alone would give, up to rounding.

    Args:
        make_model: returns a new network with random weights. It is called once per seed, after
            `torch.manual_seed(seed)`. If it seeds torch itself, all seeds start from the same weights
            and differ in the order of samples alone.
        data: {"train": (inputs, targets), "val": …, "test": …}, each tensors, arrays or a pandas frame
            and series; "test" may be left out. Inputs become float32, unless they are float64.
        runs: one dict per run: `method`, a name of `softadlib.methods.METHODS` (default "erm"); its
            hyperparameter by its symbol, such as `theta` or `radius`; `seed` (default 0); `lr`
            (default: the argument). Other keys are kept as columns. A pandas frame gives a run per
            row; a value of NaN counts as left out.
        epochs: of every run.
        batch_size: samples per step.
        optimizer: "adam", "adamw" or "sgd".
        lr: learning rate of the runs that name none.
        momentum: of SGD.
        weight_decay: of the optimizer.
        measure_every: epochs between two measurements; None measures after the last epoch alone.
        device: "auto", "cpu" or "cuda".
        networks: also return the trained networks, on the CPU and in evaluation mode, one per run.

    Returns a data frame; with `networks` a pair of it and a list of modules. It has one row per run and
    measured epoch: `run` (its position in `runs`), the keys of its dict, `epoch`,
    `loss_train`, `loss_val` and `loss_test` (cross-entropy, nats), `acc_train` …, `model_norm`.

    Raises:
        UserError: for what would be wrong without a word: an unknown method or part of the data; a
            hyperparameter that is missing, foreign or out of bounds; inputs and targets, or columns,
            that do not match; a network with dropout or with a parameter that is not to be trained.

    >>> x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    >>> rows = train_many(
    ...     lambda: nn.Linear(4, 3),
    ...     {"train": (x[:40], y[:40]), "val": (x[40:], y[40:])},
    ...     [{"method": "softad", "theta": theta} for theta in (0.01, 0.1, 0.5)],
    ...     epochs=2,
    ...     batch_size=20,
    ... )
    >>> rows[["run", "theta", "epoch"]].to_numpy().tolist()
    [[0.0, 0.01, 2.0], [1.0, 0.1, 2.0], [2.0, 0.5, 2.0]]
    """
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("train_many returns a pandas table: pip install pandas") from None

    choose("optimizer", optimizer, ("adam", "adamw", "sgd"))
    if isinstance(make_model, nn.Module):
        raise UserError("make_model must be a function that returns a new network; got a network")
    if isinstance(runs, Mapping):
        raise UserError("runs must be a list with a dict for each run; got one dict")
    if "train" not in data or "val" not in data:
        raise UserError(f'data must have the parts "train" and "val"; got {list(data)}')
    epochs = whole("epochs", epochs, 0)
    batch_size = whole("batch_size", batch_size, 1)
    records = runs.to_dict("records") if isinstance(runs, pd.DataFrame) else runs
    table = pd.DataFrame([_checked(i, run, lr) for i, run in enumerate(records)])
    if table.empty:
        raise UserError("runs is empty, or a generator that was used up")
    check_momentum(optimizer, momentum, set(table["method"]))
    seeds = sorted(set(table["seed"]))
    splits = _splits(data, len(seeds))
    initial = _networks(make_model, seeds, splits)
    if has_batch_norm(initial[seeds[0]]):
        check_batches(splits.train.shape[1], batch_size)
    measured_epochs = {epochs}
    if measure_every is not None:
        measured_epochs |= {*range(0, epochs, measure_every)}
    chosen_device = pick_device(device)

    rows = []
    trained: dict[int, nn.Module] = {}
    with numerics(chosen_device, "fp32"), memory_in_one_line(chosen_device):
        splits = splits.to(chosen_device, splits.x.dtype)
        for (name, rate), alike in table.groupby(["method", "lr"], sort=False):
            method = get_method(name)
            recipe = Recipe(optimizer, rate, batch_size, epochs, momentum, weight_decay)
            together = RunGroup(
                method=method,
                networks=[initial[seed] for seed in alike["seed"]],
                splits=splits,
                trial=[seeds.index(seed) for seed in alike["seed"]],
                hyperparameter=list(alike[method.hyperparameter])
                if method.hyperparameter
                else [math.nan] * len(alike),
                settings=method.defaults,
            )
            for group in split_into_groups(together):
                engine = choose_engine(together.take(group))
                measured = train(engine, recipe, seeds, measured_epochs)
                keys = alike.iloc[group].reset_index(drop=True)
                rows += [measures_table(keys, row) for row in measured.rows]
                if networks:
                    trained |= {run: engine.module(i) for i, run in enumerate(keys["run"])}
    measures = pd.concat(rows, ignore_index=True).sort_values(["run", "epoch"], ignore_index=True)
    if "test" not in data:
        measures = measures.drop(columns=["loss_test", "acc_test"])
    return (measures, [trained[run] for run in table["run"]]) if networks else measures


def _checked(i: int, run: Mapping[str, Any], lr: float) -> dict[str, Any]:
    """Return the i-th run with its defaults; raise UserError for a key that would have no effect."""
    run = {name: value for name, value in run.items() if not _is_nan(value)}
    method = get_method(run.get("method", "erm"))
    taken = {"method", "seed", "lr", method.hyperparameter}
    for name in run.keys() - taken:
        if name in _not_for_columns():
            raise UserError(
                f"run {i}: {name!r} cannot be a column of your own, and {method.name} takes only "
                f"{method.hyperparameter or 'no hyperparameter'}, seed and lr"
            )
    run |= {
        "run": i,
        "method": method.name,
        "seed": int(run.get("seed", 0)),
        "lr": run.get("lr", lr),
    }
    if method.hyperparameter:
        run[method.hyperparameter] = real(
            f"run {i}: {method.hyperparameter}", run.get(method.hyperparameter), **method.bounds
        )
    return run


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _not_for_columns() -> set[str | None]:
    """Return what other methods take, arguments of `train_many` and of the loss, and the table's columns."""
    names: set[str | None] = {"run", "knob", "epoch", *MEASURES}
    names |= {*inspect.signature(train_many).parameters}
    names |= {*inspect.signature(nn.CrossEntropyLoss).parameters}
    for method in METHODS.values():
        names |= {method.hyperparameter, *method.settings}
    return names


def _networks(
    make_model: Callable[[], nn.Module], seeds: Sequence[int], splits: Splits
) -> dict[int, nn.Module]:
    """Return a network for each seed, in the type of the inputs."""
    few = splits.x[:2].cpu()

    def make() -> nn.Module:
        return make_model().to(few.device, few.dtype)

    networks = {seed: initialized(make, seed, few, "the network of make_model") for seed in seeds}
    starts = [nn.utils.parameters_to_vector(net.parameters()) for net in networks.values()]
    if any(torch.equal(start, starts[0]) for start in starts[1:]):
        warn(
            "make_model gives several seeds the same weights: make a new network at each call, and let it "
            "draw them without seeding torch; these runs differ in the order of samples alone",
            stacklevel=3,
        )
    with torch.no_grad():
        outputs = networks[seeds[0]].eval()(few).shape[-1]
    if outputs < splits.classes:  # on a GPU torch would end with a device-side assert
        raise UserError(
            f"targets go up to {splits.classes - 1}, and the network has {outputs} outputs"
        )
    return networks


def _splits(data: Mapping[str, Pair], trials: int) -> Splits:
    """Return the data as splits whose trials share every sample."""
    pairs = {part: data.get(part, data["val"]) for part in PARTS}
    for part in data:
        choose("part of data", part, PARTS)
    _check_frames(pairs)
    inputs = [as_tensor(_numbers(x)) for x, _ in pairs.values()]
    targets = [as_tensor(_numbers(y)) for _, y in pairs.values()]
    for part, x, y in zip(PARTS, inputs, targets):
        if y.is_floating_point() or y.ndim != 1 or len(y) != len(x):
            raise UserError(
                f"targets of {part} must be whole numbers, one for each of {len(x)} inputs, "
                f"got {y.dtype} {tuple(y.shape)}"
            )
    x = torch.cat(inputs)
    y = torch.cat(targets).long()
    positions = torch.arange(len(y)).split([len(part) for part in targets])
    train, val, test = (index.expand(trials, -1) for index in positions)
    x = x if x.dtype == torch.float64 else x.float()
    return Splits(x, y, train, val, test, int(y.max()) + 1)


def _check_frames(pairs: Mapping[str, Pair]) -> None:
    """Raise UserError where rows or columns of frames would be matched by position, against their names."""
    columns = [list(x.columns) for x, _ in pairs.values() if hasattr(x, "columns")]
    if any(other != columns[0] for other in columns):
        raise UserError(
            f"inputs of all parts must have the same columns in the same order, got {columns}"
        )
    for part, (x, y) in pairs.items():
        have_indices = hasattr(x, "columns") and hasattr(y, "to_numpy")
        if have_indices and len(x) == len(y) and not x.index.equals(y.index):
            raise UserError(
                f"inputs and targets of {part} have different indices; if their rows match by position, "
                "give targets.to_numpy(), else targets.loc[inputs.index].to_numpy()"
            )


def _numbers(values: Any) -> Any:
    """Return a frame or a series as an array, anything else as it is."""
    if not hasattr(values, "to_numpy"):
        return values
    array = values.to_numpy(copy=True)  # torch takes none that is read-only
    # Columns of several types, such as numbers and booleans, come as objects.
    return array.astype(np.float64) if array.dtype == object else array
