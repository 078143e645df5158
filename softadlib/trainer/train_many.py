"""Many small networks on your own data, trained at once: `train_many`."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softadlib._validation import UserError, choose, real, whole
from softadlib.functional.reduction import as_tensor
from softadlib.methods import METHODS, Method, check_momentum, get_method
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
    """Train one small network per run and return its measures as a table.

    A GPU trains the runs of equal method and learning rate side by side, each with its own weights,
    order of samples and hyperparameter; a CPU trains them one after another, perceptrons by hand-written
    gradients. Either way every run is what a loop over it alone would give, up to rounding.

    Args:
        make_model: returns a new network with random weights. It is called once per seed, after
            `torch.manual_seed(seed)`, and must have no randomness in its forward pass.
        data: {"train": (inputs, targets), "val": …, "test": …}, each tensors, arrays or a pandas frame
            and series; "test" may be left out.
        runs: one dict per run: `method`, a name of `softadlib.methods.METHODS` (default "erm"); its
            hyperparameter by its symbol, such as `theta` or `radius`; `seed` (default 0); `lr`
            (default: the argument). Other keys are kept as columns.
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

    Raises UserError for an unknown method, a hyperparameter that is missing, foreign or out of bounds,
    and for data that do not fit together.

    >>> x, y = torch.randn(60, 4, generator=torch.manual_seed(0)), torch.arange(60) % 3
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
    choose("optimizer", optimizer, ("adam", "adamw", "sgd"))
    whole("epochs", epochs, 1)
    whole("batch_size", batch_size, 1)
    checked = _check_runs(runs, lr)
    check_momentum(optimizer, momentum, {run.method.name for run in checked})
    seeds = sorted({run.seed for run in checked})
    splits = _splits(data, len(seeds))
    measured_epochs = {epochs}
    if measure_every is not None:
        measured_epochs |= set(range(0, epochs, whole("measure_every", measure_every, 1)))
    chosen_device = pick_device(device)
    initial = _networks(make_model, seeds, splits)
    if has_batch_norm(initial[seeds[0]]):
        check_batches(splits.train.shape[1], batch_size)

    import pandas as pd

    frames = []
    trained: dict[int, nn.Module] = {}
    with numerics(chosen_device, "fp32"), memory_in_one_line(chosen_device):
        splits = splits.to(chosen_device, splits.x.dtype)
        for alike in _alike(checked):
            method = alike[0].method
            recipe = Recipe(optimizer, alike[0].lr, batch_size, epochs, momentum, weight_decay)
            together = RunGroup(
                method=method,
                networks=[initial[run.seed] for run in alike],
                splits=splits,
                trial=[seeds.index(run.seed) for run in alike],
                knob=[run.knob for run in alike],
                settings=method.defaults,
            )
            for group in split_into_groups(together):
                engine = choose_engine(together.take(group))
                measured = train(engine, recipe, seeds, measured_epochs)
                keys = pd.DataFrame([alike[i].columns for i in group])
                frames += [measures_table(keys, row) for row in measured.rows]
                if networks:
                    for place, i in enumerate(group):
                        trained[alike[i].columns["run"]] = engine.module(place)
    table = pd.concat(frames, ignore_index=True)
    if "test" not in data:
        table = table.drop(columns=["loss_test", "acc_test"])
    table = table.sort_values(["run", "epoch"], ignore_index=True)
    return (table, [trained[i] for i in range(len(checked))]) if networks else table


@dataclass(frozen=True)
class _Run:
    """One of the `runs`, checked."""

    method: Method
    knob: float
    seed: int
    lr: float
    columns: Mapping[str, Any]
    """What stands in its rows before the epoch."""


def _check_runs(runs: Iterable[Mapping[str, Any]], lr: float) -> list[_Run]:
    """Return all runs with their defaults."""
    import pandas as pd

    if isinstance(runs, pd.DataFrame):
        raise UserError('runs must be dicts, one per run; give frame.to_dict("records")')
    checked = [_check_run(i, run, lr) for i, run in enumerate(runs)]
    if not checked:
        raise UserError("runs must be dicts, one per run, at least one")
    return checked


def _check_run(i: int, run: Mapping[str, Any], lr: float) -> _Run:
    """Return the i-th run with its defaults."""
    if not isinstance(run, Mapping):
        raise UserError(
            f"runs must be dicts, such as {{'method': 'softad', 'theta': 0.01}}; run {i} is {run!r}"
        )
    # As frame.to_dict("records") writes what a run does not have.
    run = {name: value for name, value in run.items() if not _is_nan(value)}
    method = get_method(run.get("method", "erm"))
    if method.samples:
        raise UserError(
            f"run {i}: {method.name} needs held-out losses; use a profile of the workbook"
        )
    if method.knob and method.knob not in run:
        raise UserError(f"run {i}: {method.name} needs {method.knob}, got {dict(run)!r}")
    arguments = inspect.signature(train_many).parameters
    of_losses = inspect.signature(nn.CrossEntropyLoss).parameters  # the loss has its defaults
    taken: set[str | None] = {"run", "knob", "epoch", *MEASURES, *arguments, *of_losses}
    for other in METHODS.values():
        taken |= {other.knob, *other.settings}
    for name in run:
        if name in taken - {method.knob, "lr"}:
            raise UserError(
                f"run {i}: {name!r} cannot be a column of your own, and {method.name} takes only "
                f"{method.knob or 'no hyperparameter'}, seed and lr"
            )
    knob = math.nan
    if method.knob:
        knob = real(f"run {i}: {method.knob}", run[method.knob], **method.bounds)
    seed = whole(f"run {i}: seed", run.get("seed", 0), 0)
    rate = real(f"run {i}: lr", run.get("lr", lr), above=0)
    columns = {**run, "run": i, "method": method.name, "seed": seed, "lr": rate}
    if method.knob:
        columns[method.knob] = knob
    return _Run(method, knob, seed, rate, columns)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _alike(runs: Sequence[_Run]) -> list[list[_Run]]:
    """Return the runs of each method and learning rate."""
    alike: dict[tuple[str, float], list[_Run]] = {}
    for run in runs:
        alike.setdefault((run.method.name, run.lr), []).append(run)
    return list(alike.values())


def _networks(
    make_model: Callable[[], nn.Module], seeds: Sequence[int], splits: Splits
) -> dict[int, nn.Module]:
    """Return a network for each seed, in the type of the inputs, with an output for each class."""
    if isinstance(make_model, nn.Module):
        raise UserError(
            f"make_model must return a new network at each call, got a {type(make_model).__name__}; "
            "give lambda: nn.Sequential(…), so that each seed has its own weights"
        )
    networks: dict[int, nn.Module] = {}
    for seed in seeds:
        network = initialized(make_model, seed, "the network of make_model")
        if any(network is other for other in networks.values()):
            raise UserError(
                "make_model returned the same network twice; make it inside, as lambda: nn.Sequential(…) "
                "does, so that each seed has its own weights"
            )
        networks[seed] = network.to(splits.x.dtype)
    with torch.no_grad():
        logits = copy.deepcopy(networks[seeds[0]]).eval()(splits.x[:2])
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the network must return logits (n, classes), got {shape} for 2 samples")
    if logits.shape[1] < splits.classes:
        raise UserError(
            f"targets go up to {splits.classes - 1}, and the network has {logits.shape[1]} outputs"
        )
    return networks


def _splits(data: Mapping[str, Pair], trials: int) -> Splits:
    """Return the data as splits whose trials share every sample."""
    _check_data(data)
    inputs = []
    targets = []
    for part in PARTS:
        x, y = data.get(part, data["val"])
        inputs.append(_inputs(part, x))
        targets.append(_targets(part, y))
        if len(inputs[-1]) != len(targets[-1]):
            raise UserError(f"{part} has {len(inputs[-1])} inputs and {len(targets[-1])} targets")
    shapes = {tuple(x.shape[1:]) for x in inputs}
    if len(shapes) > 1:
        raise UserError(f"inputs of all parts must have one shape, got {sorted(shapes)}")
    x = torch.cat(inputs)
    y = torch.cat(targets)
    positions = torch.arange(len(y)).split([len(part) for part in targets])
    train, val, test = (index.expand(trials, -1) for index in positions)
    return Splits(x, y, train, val, test, int(y.max()) + 1)


def _check_data(data: Any) -> None:
    """Raise UserError for anything but pairs by part, with the same columns where they are frames."""
    import pandas as pd

    wanted = "{'train': (inputs, targets), 'val': …}"
    if not isinstance(data, Mapping):
        raise UserError(f"data must be {wanted}, got a {type(data).__name__}")
    for part, pair in data.items():
        choose("part of data", part, PARTS)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise UserError(f"data must be {wanted}, and its {part!r} is a {type(pair).__name__}")
        x, y = pair
        have_indices = all(isinstance(values, (pd.DataFrame, pd.Series)) for values in pair)
        if have_indices and len(x) == len(y) and not x.index.equals(y.index):
            raise UserError(
                f"inputs and targets of {part} have different indices; if their rows match by position, "
                "give targets.to_numpy(), else targets.loc[inputs.index].to_numpy()"
            )
    for part in ("train", "val"):
        if part not in data:
            raise UserError(f"data lacks {part!r}; give {wanted}")
    columns = [list(x.columns) for x, _ in data.values() if isinstance(x, pd.DataFrame)]
    for other in columns[1:]:
        if other != columns[0]:
            raise UserError(
                f"inputs of all parts must have the same columns in the same order, got {columns[0]} "
                f"and {other}"
            )


def _inputs(part: str, values: Any) -> Tensor:
    """Return finite inputs (n, …) in float32 or float64."""
    inputs = _tensor(f"inputs of {part}", values)
    if inputs.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"inputs must be float32 or float64, got {inputs.dtype}; convert them first"
        )
    if not len(inputs):
        raise UserError(f"{part} is empty; give it at least one sample")
    bad = (~torch.isfinite(inputs.reshape(len(inputs), -1))).any(1).nonzero().flatten()
    if len(bad):
        raise UserError(
            f"inputs of {part} hold NaN or infinity in {len(bad)} of {len(inputs)} samples, first in "
            f"sample {bad[0].item()}; remove or repair them"
        )
    return inputs


def _targets(part: str, values: Any) -> Tensor:
    """Return numbers of classes, (n,)."""
    targets = _tensor(f"targets of {part}", values)
    if targets.is_floating_point() or targets.ndim != 1 or (targets.long() < 0).any():
        raise UserError(
            f"targets of {part} must be whole numbers from 0 on, one per input, "
            f"got {targets.dtype} {tuple(targets.shape)}"
        )
    return targets.long()


def _tensor(name: str, values: Any) -> Tensor:
    """Return a tensor, an array, or the rows of a pandas frame or series, as a tensor."""
    import pandas as pd

    try:
        if isinstance(values, (pd.DataFrame, pd.Series)):
            values = values.to_numpy(copy=True)
            if values.dtype == object:  # columns of several types, such as numbers and booleans
                values = values.astype(np.float64)
        return as_tensor(values)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{name} must be numbers, in a tensor, an array or a frame ({error}); encode words as "
            "numbers first"
        ) from None
