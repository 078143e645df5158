"""Many small networks of one's own trained at once: `train_many`."""

import contextlib
import copy
import hashlib
import inspect
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from softadlib._validation import UserError, choose, real, whole
from softadlib._workspace import write
from softadlib.data.splits import Splits, check_batches
from softadlib.methods import METHODS, check_momentum, get_method
from softadlib.models import initialized
from softadlib.results.schema import MEASURES
from softadlib.training.device import deterministic_math, pick_device
from softadlib.training.engines.mlp_cpu import MLPEngine
from softadlib.training.engines.runs import Row, RunBatch, TrainConfig
from softadlib.training.engines.vmap import VmapEngine, is_convolutional

Pair = tuple[Tensor, Tensor]
"""Inputs (n, …) and integer targets (n,)."""


def train_many(
    make_model: Callable[[], nn.Module],
    data: Mapping[str, Pair],
    runs: Sequence[Mapping[str, Any]],
    *,
    epochs: int,
    batch_size: int,
    optimizer: str = "adam",
    lr: float = 1e-3,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    measure_every: int | None = None,
    device: str = "auto",
    folder: str | Path | None = None,
) -> pd.DataFrame:
    """Train one small network per run and return its measures as a table.

    A GPU trains the runs of equal method and learning rate side by side, each with its own weights,
    order of samples and hyperparameter; a CPU trains them one after another, perceptrons by hand-written
    gradients. Either way every run is what a loop over it alone would give, up to rounding.

    Args:
        make_model: returns a new network with random weights. It is called once a seed, after
            `torch.manual_seed(seed)`, and must have no randomness in its forward pass.
        data: {"train": (inputs, targets), "val": …, "test": …}, tensors or arrays; "test" may be left out.
        runs: one dict a run: `method`, a name of `softadlib.methods.METHODS` (default "erm"); its
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
        folder: where finished runs are stored; the same call reads them there instead of training.

    Returns one row per run and measured epoch: `run` (its position in `runs`), the keys of its dict,
    `epoch`, `loss_train`, `loss_val` and `loss_test` (cross-entropy, nats), `acc_train` …, `model_norm`.

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
    if isinstance(make_model, nn.Module):
        raise UserError(
            f"make_model must return a new network at each call, got a {type(make_model).__name__}; "
            "give lambda: nn.Sequential(…), so that each seed has weights of its own"
        )
    runs = list(runs)
    if not runs or not all(isinstance(run, Mapping) for run in runs):
        raise UserError(f"runs must be dicts, one a run, at least one, got {runs!r:.60}")
    parsed = [_parse(i, run, lr) for i, run in enumerate(runs)]
    check_momentum(optimizer, momentum, {run["method"] for run in parsed})
    data = {part: (torch.as_tensor(x), torch.as_tensor(y)) for part, (x, y) in data.items()}
    seeds = sorted({run["seed"] for run in parsed})
    splits = _splits(data, len(seeds))
    check_batches(splits.train.shape[1], batch_size)
    every = epochs if measure_every is None else whole("measure_every", measure_every, 1)
    measured_epochs = {*range(0 if measure_every else epochs, epochs, every), epochs}
    target = pick_device(device)
    networks = {seed: initialized(make_model, seed, "network").to(splits.x.dtype) for seed in seeds}
    outputs = {seed: _first_outputs(network, splits.x) for seed, network in networks.items()}
    if (classes := outputs[seeds[0]].shape[-1]) < splits.classes:
        raise UserError(
            f"targets go up to {splits.classes - 1}, and the network has {classes} outputs"
        )
    folder = Path(folder) if folder is not None else None
    common = (epochs, batch_size, optimizer, momentum, weight_decay, sorted(measured_epochs))
    identities = _digests(data, networks, outputs, common) if folder else {}
    frames: list[pd.DataFrame] = []
    todo: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for run in parsed:
        rows = _stored(_file(folder, identities, run))
        if rows is None:
            todo.setdefault((run["method"], run["lr"]), []).append(run)
        else:
            frames.append(rows.assign(run=run["run"]))
    splits = splits.to(target, splits.x.dtype)
    with deterministic_math(target, "fp32"):
        for (method, rate), group in todo.items():
            config = TrainConfig(optimizer, rate, batch_size, epochs, momentum, weight_decay)
            alone = target.type == "cpu" or is_convolutional(networks[seeds[0]])
            for part in [[run] for run in group] if alone else [group]:
                batch = RunBatch(
                    get_method(method),
                    [networks[run["seed"]] for run in part],
                    splits,
                    [seeds.index(run["seed"]) for run in part],
                    [run["knob"] for run in part],
                    get_method(method).defaults,
                )
                by_hand = len(part) == 1 and MLPEngine.supports(batch.networks[0], target)
                engine = MLPEngine(batch) if by_hand else VmapEngine(batch)
                for run, rows in zip(
                    part, _tables(engine.train(config, seeds, measured_epochs), part)
                ):
                    frames.append(rows)
                    if (path := _file(folder, identities, run)) is not None:
                        content = io.BytesIO()
                        rows.to_parquet(content)
                        write(path, content.getvalue())
    table = pd.concat(frames, ignore_index=True).drop(columns=["knob"])
    if "test" not in data:
        table = table.drop(columns=["loss_test", "acc_test"])
    return table.sort_values(["run", "epoch"], ignore_index=True)


def _parse(i: int, run: Mapping[str, Any], lr: float) -> dict[str, Any]:
    """Return a run with its defaults, checked."""
    method = get_method(run.get("method", "erm"))
    if method.samples:
        raise UserError(
            f"run {i}: {method.name} needs held-out losses; use a profile of the workbook"
        )
    if method.knob and method.knob not in run:
        raise UserError(f"run {i}: {method.name} needs {method.knob}, got {dict(run)!r}")
    symbols = {m.knob for m in METHODS.values() if m.knob} - {method.knob, *method.settings}
    for name in symbols & set(run):
        raise UserError(
            f"run {i}: {name} is no hyperparameter of {method.name}; it takes {method.knob or 'none: name a method'}"
        )
    shared = {*inspect.signature(train_many).parameters}.union(
        *(m.settings for m in METHODS.values())
    )
    for name in (shared - symbols - {method.knob, "lr"}) & set(run):
        raise UserError(
            f"run {i}: {name} is the same for all runs, an argument of train_many or the method's "
            "default; take it out of the run"
        )
    for name in {"run", "knob", "epoch", *MEASURES} & set(run):
        raise UserError(f"run {i}: {name!r} is a column of the result; call yours otherwise")
    knob = math.nan
    if method.knob:
        knob = real(f"run {i}: {method.knob}", run[method.knob], **method.bounds)
    return {
        **run,
        "run": i,
        "method": method.name,
        "seed": whole(f"run {i}: seed", run.get("seed", 0), 0),
        "lr": real(f"run {i}: lr", run.get("lr", lr), above=0),
        "knob": knob,
        **({method.knob: knob} if method.knob else {}),
    }


def _splits(data: Mapping[str, Pair], trials: int) -> Splits:
    """Return the data as splits whose trials share every sample."""
    for part in ("train", "val"):
        if part not in data:
            raise UserError(f"data lacks {part!r}; give {{'train': (inputs, targets), 'val': …}}")
    for part, (inputs, targets) in data.items():
        choose("part of data", part, ("train", "val", "test"))
        if len(inputs) != len(targets):
            raise UserError(f"{part} has {len(inputs)} inputs and {len(targets)} targets")
    parts = [data["train"], data["val"], data.get("test", data["val"])]
    shapes = {tuple(inputs.shape[1:]) for inputs, _ in parts}
    if len(shapes) > 1:
        raise UserError(f"inputs of all parts must have one shape, got {sorted(shapes)}")
    x, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    if x.dtype not in (torch.float32, torch.float64):
        raise UserError(f"inputs must be float32 or float64, got {x.dtype}; convert them first")
    if y.is_floating_point() or y.ndim != 1 or y.min() < 0:
        raise UserError(
            f"targets must be whole numbers from 0 on, one per input, got {y.dtype} {tuple(y.shape)}"
        )
    positions = torch.arange(len(y)).split([len(part[1]) for part in parts])
    train, val, test = (index.expand(trials, -1) for index in positions)
    return Splits(x, y.long(), train, val, test, int(y.max()) + 1)


def _first_outputs(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return what a network makes of the first inputs before training."""
    with torch.no_grad():
        outputs: Tensor = copy.deepcopy(network).eval()(inputs[:8])
    return outputs


def _digests(
    data: Mapping[str, Pair],
    networks: Mapping[int, nn.Module],
    outputs: Mapping[int, Tensor],
    common: object,
) -> dict[int, str]:
    """Hash, for each seed, what its runs share: data, recipe, and what the network is and does."""
    shared, digests = hashlib.sha256(repr(common).encode()), {}
    _update(shared, (tensor for part in sorted(data) for tensor in data[part]))
    for seed, network in networks.items():
        content = shared.copy()
        content.update(str(network).encode())
        _update(content, [*network.state_dict().values(), outputs[seed]])
        digests[seed] = content.hexdigest()
    return digests


def _update(content: "hashlib._Hash", tensors: Iterable[Tensor]) -> None:
    """Add the values of tensors to a hash."""
    for tensor in tensors:
        content.update(np.ascontiguousarray(tensor.cpu().numpy()).data)


def _file(
    folder: Path | None, identities: Mapping[int, str], run: Mapping[str, Any]
) -> Path | None:
    if folder is None:
        return None
    facts = {k: v for k, v in run.items() if k != "run"}
    text = json.dumps([identities[run["seed"]], facts], sort_keys=True, default=str)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.parquet"


def _stored(path: Path | None) -> pd.DataFrame | None:
    """Return the rows of a run; None where there are none, or a damaged file."""
    if path is not None:
        with contextlib.suppress(OSError, ValueError):
            return pd.read_parquet(path)
    return None


def _tables(measured: Sequence[Row], runs: Sequence[Mapping[str, Any]]) -> list[pd.DataFrame]:
    """Return the rows of every run."""
    return [
        pd.DataFrame(
            [
                {**run, "epoch": row["epoch"][i], **{name: row[name][i] for name in MEASURES}}
                for row in measured
            ]
        )
        for i, run in enumerate(runs)
    ]
