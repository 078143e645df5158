"""Train a few runs of one method on one device and return their rows."""

import contextlib
import gc
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from softadlib._validation import UserError
from softadlib.data.splits import Splits
from softadlib.methods import get_method
from softadlib.models import build
from softadlib.results.files import merge, merge_losses
from softadlib.results.schema import CALIBRATION, LOSS_COLUMNS, MEASURES
from softadlib.training.checkpoint import Checkpoint, State
from softadlib.training.device import deterministic_math, device_name, pick_device
from softadlib.training.engines.mlp_cpu import MLPEngine
from softadlib.training.engines.runs import Row, RunBatch
from softadlib.training.engines.vmap import VmapEngine, is_convolutional
from softadlib.training.inputs import load_splits
from softadlib.training.protocol import Protocol, Run

Samples = dict[str, Tensor]
"""What a method needs of every training sample, by name, (T, n)."""
Tables = tuple[pd.DataFrame, pd.DataFrame]
"""Rows of runs, and losses of their single samples, which may be empty."""


def train_runs(
    protocol: Protocol,
    runs: Sequence[Run],
    eval_epochs: Collection[int],
    loss_epochs: Collection[int] = (),
    samples: Samples | None = None,
    checkpoints: Path | None = None,
) -> Tables:
    """Train runs of one method and label noise.

    A GPU trains them side by side, in halves where its memory is too small; a CPU, and convolutional
    networks anywhere, one after another, so that no run's numbers depend on another's.

    Args:
        protocol: of all runs.
        runs: of one method and label noise.
        eval_epochs: epochs to measure at; 0 is before any step.
        loss_epochs: of these, epochs at which the losses of single samples are summarised.
        samples: what the method needs of every training sample.
        checkpoints: folder for the states of runs under way; None saves none.
    """
    device = pick_device(protocol.device)
    if protocol.best_epoch:
        loss_epochs = {protocol.epochs, *loss_epochs}
    with deterministic_math(device, protocol.precision):
        splits = load_splits(protocol, runs[0].label_noise)
        splits = splits.to(device, getattr(torch, protocol.dtype))
        alone = trained_alone(protocol, runs[0], device.type)
        waiting = [[run] for run in runs] if alone else [list(runs)]
        tables: list[Tables] = []
        while waiting:
            group, measured = waiting.pop(0), None
            facts: State = {"eval": sorted(eval_epochs), "losses": sorted(loss_epochs)}
            checkpoint = checkpoint_of(protocol, group, device, checkpoints, facts)
            # Afterwards the error and its traceback no longer hold the engine's memory.
            with contextlib.suppress(torch.OutOfMemoryError):
                measured = make_engine(protocol, group, splits, samples).train(
                    protocol.recipe,
                    protocol.seeds,
                    eval_epochs,
                    loss_epochs=loss_epochs,
                    best_epoch=protocol.best_epoch,
                    checkpoint=checkpoint,
                )
            if measured is None:
                waiting = [*_halves(group), *waiting]
            else:
                pair = _rows(group, measured, protocol), _losses(group, measured, protocol)
                tables.append(pair)
                checkpoint.delete()
    rows, losses = zip(*tables)
    return merge(rows), merge_losses(losses)


def trained_alone(protocol: Protocol, run: Run, device: str) -> bool:
    """Tell whether a run is trained by itself: on a CPU, and of a convolutional network anywhere.

    `device` is a type of devices, such as "cuda"; this machine need not have one.
    """
    if device == "cpu":
        return True
    return is_convolutional(network_of(protocol, load_splits(protocol, run.label_noise, 1), run))


def network_of(protocol: Protocol, splits: Splits, run: Run) -> nn.Module:
    """Build a network with the initial weights of the run's trial."""
    seed = protocol.seeds[run.trial]
    network = build(protocol.model, splits.shape, splits.classes, seed)
    return network.to(getattr(torch, protocol.dtype))


def make_engine(
    protocol: Protocol, runs: Sequence[Run], splits: Splits, samples: Samples | None = None
) -> VmapEngine:
    """Make the engine that trains `runs`: perceptrons on a CPU have one of their own."""
    method = get_method(runs[0].method)
    # Runs of a trial have the same initial weights: building one network per run is slow.
    networks = {run.trial: network_of(protocol, splits, run) for run in runs}
    bf16 = protocol.precision == "bf16"
    batch = RunBatch(
        method,
        [networks[run.trial] for run in runs],
        splits,
        [run.trial for run in runs],
        [run.knob for run in runs],
        protocol.settings_of(method.name),
        samples or {},
        bf16=bf16,
    )
    alone = len(runs) == 1 and MLPEngine.supports(batch.networks[0], batch.device, bf16)
    return MLPEngine(batch) if alone else VmapEngine(batch)


def checkpoint_of(
    protocol: Protocol,
    runs: Sequence[Run],
    device: torch.device,
    folder: Path | None,
    facts: State,
    study: str | None = None,
) -> Checkpoint:
    """Return the checkpoint of runs that are trained together; `facts` decide their bits too.

    `study`: the method for whose study they are trained, where it is another than theirs.
    """
    keys = [list(run.key) for run in runs]
    machine = {"device": device_name(device), "torch": str(torch.__version__)}
    fingerprint = protocol.fingerprint(runs[0].method)
    decisive = {"fingerprint": fingerprint, "runs": keys, **machine, **facts}
    name = "-".join(str(value) for key in (keys[0], keys[-1]) for value in key)
    prefix = protocol.fingerprint(study) if study else fingerprint
    path = folder / f"{prefix}-{name}.pt" if folder else None
    return Checkpoint(path, decisive, protocol.checkpoint_every)


def _halves(runs: list[Run]) -> list[list[Run]]:
    """Free the memory of the engine that failed, and halve its runs; UserError for a single one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if len(runs) == 1:
        raise UserError(
            "the device ran out of memory with a single run; choose a smaller batch_size"
        )
    return [runs[: len(runs) // 2], runs[len(runs) // 2 :]]


def _keys(runs: Sequence[Run], protocol: Protocol) -> dict[str, object]:
    return {
        "dataset": protocol.dataset,
        "method": runs[0].method,
        "label_noise": [run.label_noise for run in runs],
        "trial": [run.trial for run in runs],
        "knob": [run.knob for run in runs],
    }


def _rows(runs: Sequence[Run], measured: Sequence[Row], protocol: Protocol) -> pd.DataFrame:
    """Return one row per run and epoch measured. The row of the last epoch counts where two agree."""
    frames = [
        pd.DataFrame(_keys(runs, protocol) | {name: row[name] for name in ("epoch", *MEASURES)})
        for row in measured
    ]
    if protocol.best_epoch:  # a run whose validation loss was never finite has no best epoch
        frames[0] = frames[0][frames[0]["epoch"] > 0]
    return merge(frames)


def _losses(runs: Sequence[Run], measured: Sequence[Row], protocol: Protocol) -> pd.DataFrame:
    """Return one row per run, epoch and part at which losses of single samples were measured.

    A study with `best_epoch` has such rows of every run, and so no quantiles.
    """
    frames = []
    for row in measured:
        if "quantiles" in row:
            n_parts = row["loss"].shape[1]
            keys = pd.DataFrame(_keys(runs, protocol) | {"epoch": row["epoch"]})
            frame = keys.loc[keys.index.repeat(n_parts)].reset_index(drop=True)
            frame["part"] = ["train", "val", "test"] * len(runs)
            for name in ("samples", "loss", *CALIBRATION):
                frame[name] = row[name].reshape(-1) if name in row else np.nan
            quantiles = row["quantiles"].reshape(-1, row["quantiles"].shape[-1])
            frame["quantiles"] = [None] * len(frame) if protocol.best_epoch else list(quantiles)
            frames.append(frame[frame["epoch"] > 0] if protocol.best_epoch else frame)
    return merge_losses([frame[LOSS_COLUMNS] for frame in frames])
