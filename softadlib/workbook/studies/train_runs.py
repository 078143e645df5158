"""Train runs of a study on one device and return their rows."""

import copy
import functools
from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from softadlib.methods import get_method
from softadlib.models import MODELS, build
from softadlib.trainer.checkpoint import Checkpoint, State
from softadlib.trainer.device import device_name, memory_in_one_line, numerics, pick_device
from softadlib.trainer.engines import (
    Engine,
    RunGroup,
    choose_engine,
    runs_at_once,
    split_into_groups,
)
from softadlib.trainer.evaluation import Row, measures_table
from softadlib.trainer.loop import Measured, train
from softadlib.trainer.splits import Splits
from softadlib.workbook.studies.authors_order import order_seeds
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.parquet import merge
from softadlib.workbook.studies.protocol import Protocol, Run
from softadlib.workbook.studies.schema import SINGLE_LOSSES, columns_of


def train_runs(
    protocol: Protocol,
    runs: Sequence[Run],
    eval_epochs: Collection[int],
    loss_epochs: Collection[int] = (),
    checkpoints: Path | None = None,
) -> pd.DataFrame:
    """Train runs of one method and label noise; return their rows.

    A GPU trains perceptrons side by side; a CPU, and convolutional networks anywhere, one after another.

    Args:
        protocol: of all runs.
        runs: of one method and label noise.
        eval_epochs: epochs to measure at; 0 is before any step.
        loss_epochs: of these, epochs at which the losses of single samples are summarised.
        checkpoints: folder for the states of runs under way; None saves none.
    """
    device = pick_device(protocol.device)
    if protocol.best_epoch:
        loss_epochs = {protocol.epochs, *loss_epochs}
    measured_at: State = {"eval": sorted(eval_epochs), "losses": sorted(loss_epochs)}
    rows = []
    with numerics(device, protocol.precision), memory_in_one_line(device):
        splits = load_splits(protocol, runs[0].label_noise)
        splits = splits.to(device, getattr(torch, protocol.dtype))
        group = group_of(protocol, runs, splits)
        for positions in split_into_groups(group, protocol.convolutional_at_once):
            together = [runs[i] for i in positions]
            checkpoint = checkpoint_of(protocol, together, device, checkpoints, measured_at)
            measured = train(
                choose_engine(group.take(positions)),
                protocol.recipe,
                order_seeds(protocol, splits),
                eval_epochs,
                loss_epochs=loss_epochs,
                best_epoch=protocol.best_epoch,
                closed_form=protocol.closed_form,
                checkpoint=checkpoint,
            )
            rows.append(table_of(together, measured, protocol))
            checkpoint.delete()
    return merge(rows)


def trained_at_once(protocol: Protocol, run: Run, device: str) -> int:
    """Return how many runs like `run` are trained together.

    `device` is a type of devices, such as "cuda"; this machine need not have one.
    """
    if device == "cpu":  # whatever the network: it need not be built
        return 1
    splits = load_splits(protocol, run.label_noise, 1)
    return runs_at_once(network_of(protocol, splits, run), device, protocol.convolutional_at_once)


def network_of(protocol: Protocol, splits: Splits, run: Run) -> nn.Module:
    """Return a network with the initial weights of the run's trial."""
    make = MODELS[protocol.model]
    seed = protocol.seeds[run.trial]
    network = _built(protocol.model, make, splits.shape, splits.classes, seed)
    return copy.deepcopy(network).to(getattr(torch, protocol.dtype))


@functools.lru_cache(maxsize=1)
def _built(model: str, make: object, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build it once for the check before a study and for its first run. `make`: names can be given anew."""
    return build(model, shape, classes, seed)


def group_of(protocol: Protocol, runs: Sequence[Run], splits: Splits) -> RunGroup:
    """Return what engines are given of `runs`, with their initial weights."""
    method = get_method(runs[0].method)
    networks: dict[int, nn.Module] = {}
    for run in runs:
        if run.trial not in networks:  # all runs of a trial have the same initial weights
            networks[run.trial] = network_of(protocol, splits, run)
    return RunGroup(
        method=method,
        networks=[networks[run.trial] for run in runs],
        splits=splits,
        trial=[run.trial for run in runs],
        hyperparameter=[run.knob for run in runs],
        settings=protocol.settings_of(method.name),
        bf16=protocol.precision == "bf16",
    )


def make_engine(protocol: Protocol, runs: Sequence[Run], splits: Splits) -> Engine:
    """Make one engine that trains `runs`."""
    return choose_engine(group_of(protocol, runs, splits))


def checkpoint_of(
    protocol: Protocol,
    runs: Sequence[Run],
    device: torch.device,
    folder: Path | None,
    facts: State,
) -> Checkpoint:
    """Return the checkpoint of runs that are trained together; `facts` decide their bits too."""
    fingerprint = protocol.fingerprint(runs[0].method)
    decisive = {
        "fingerprint": fingerprint,
        "runs": [list(run.key) for run in runs],
        "device": device_name(device),
        "torch": str(torch.__version__),
        **facts,
    }
    ends = [str(value) for run in (runs[0], runs[-1]) for value in run.key]
    path = folder / f"{'-'.join([fingerprint, *ends])}.pt" if folder else None
    return Checkpoint(path, decisive, protocol.checkpoint_every)


def keys_of(runs: Sequence[Run], protocol: Protocol) -> pd.DataFrame:
    """Return the columns that say which run a row is of, one row per run."""
    return pd.DataFrame(runs).assign(dataset=protocol.dataset)


def table_of(runs: Sequence[Run], measured: Measured, protocol: Protocol) -> pd.DataFrame:
    """Return one row per run and measured epoch, with the losses of single samples where they were taken.

    If the best epoch of a run is the last one, the row of the last one is kept. A study with `best_epoch`
    has losses of every run, and so no quantiles.
    """
    keys = keys_of(runs, protocol)
    frames = [_table_of_row(keys, row, quantiles=measured.best is None) for row in measured.rows]
    if measured.best is not None:
        best = _table_of_row(keys, measured.best, quantiles=False)
        had_one = best["epoch"] > 0  # the validation loss of the others was never finite
        frames.insert(0, best[had_one])
    return merge(frames)


def _table_of_row(keys: pd.DataFrame, row: Row, quantiles: bool) -> pd.DataFrame:
    """Return one row per run of what was measured at one epoch."""
    columns = {}
    for measure in SINGLE_LOSSES:
        if measure not in row or (measure == "quantiles" and not quantiles):
            continue
        for i, column in enumerate(columns_of(measure)):
            of_split = row[measure][:, i]  # one per run
            columns[column] = list(of_split) if measure == "quantiles" else of_split
    return measures_table(keys, row).assign(**columns)
