"""Held-out losses of the training samples, from which AdaFlood sets a flood level for each.

A sample's loss is measured under a model that was not trained on it: one model per fold, trained by
ERM on the other folds as the protocol trains any. Models are those after the last epoch, in
evaluation mode, without augmentation. Bae et al. (2024).
"""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as nnF

from softadlib._validation import UserError
from softadlib.methods import get_method
from softadlib.trainer.checkpoint import State
from softadlib.trainer.device import memory_in_one_line, numerics, pick_device
from softadlib.trainer.engines.base import SAMPLES_AT_ONCE
from softadlib.trainer.loop import train
from softadlib.trainer.splits import Splits, check_batches
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.protocol import Protocol, Run
from softadlib.workbook.studies.store import StudyStore, held_out_name
from softadlib.workbook.studies.train_runs import SampleValues, checkpoint_of, make_engine


def needs_held_out(method: str) -> bool:
    """Tell whether a method is given the held-out losses of its training samples."""
    return bool(get_method(method).samples)


def stored_samples(
    protocol: Protocol, label_noise: float, trials: Iterable[int], store: StudyStore
) -> SampleValues:
    """Return the stored losses as (T, n), NaN in the other trials."""
    stored = store.held_out()
    losses = {trial: stored[held_out_name(label_noise, trial)] for trial in trials}
    aux = np.full((protocol.trials, len(next(iter(losses.values())))), np.nan)
    for trial, values in losses.items():
        aux[trial] = values
    return {"aux": torch.from_numpy(aux)}


def held_out_losses(
    protocol: Protocol,
    label_noise: float,
    trial: int,
    store: StudyStore | None = None,
    checkpoints: Path | None = None,
) -> np.ndarray:
    """Return the loss in nats of every training sample of a trial under a model not trained on it, (n,).

    NaN where that model diverged. Losses of a finished fold are stored in `store` at once, and read
    there. Raises UserError for more folds than samples, and for a last batch of one sample.
    """
    splits = load_splits(protocol, label_noise)
    n = splits.train.shape[1]
    count = protocol.settings_of("adaflood")["aux_folds"]
    if count > n:
        raise UserError(f"{count} folds of {n} training samples; AdaFlood needs one for each fold")
    # The orders of epochs are made of [seed, epoch], so that none of them is this one.
    order = np.random.default_rng([protocol.seeds[trial], 0, 1]).permutation(n)
    losses = np.full(n, np.nan)
    device = pick_device(protocol.device)
    with numerics(device, protocol.precision), memory_in_one_line(device):
        splits = splits.to(device, getattr(torch, protocol.dtype))
        for i, fold in enumerate(np.array_split(order, count)):
            part = f"{i + 1}-of-{count}"
            values = store.read_fold(label_noise, trial, part) if store else None
            if values is None:
                run = Run("erm", label_noise, trial, math.nan)
                values = _fold_losses(protocol, run, splits, order, fold, checkpoints)
                if store:
                    store.save_fold(label_noise, trial, part, values)
            losses[fold] = values
    return losses


def _fold_losses(
    protocol: Protocol,
    run: Run,
    splits: Splits,
    order: np.ndarray,
    fold: np.ndarray,
    checkpoints: Path | None,
) -> np.ndarray:
    """Train on the samples `order` of a trial without those in `fold`; return the losses of these."""
    rest = order[~np.isin(order, fold)]
    try:
        check_batches(len(rest), protocol.batch_size)
    except UserError as error:
        raise UserError(f"with these aux_folds, {error} or aux_folds") from None

    held = splits.train[:, fold]
    data = dataclasses.replace(splits, train=splits.train[:, rest], val=held, test=held)
    facts: State = {"trained on": rest.tolist()}
    checkpoint = checkpoint_of(protocol, [run], splits.x.device, checkpoints, facts, "adaflood")
    engine = make_engine(protocol, [run], data)
    train(engine, protocol.recipe, protocol.order_seeds, (), checkpoint=checkpoint)
    checkpoint.delete()
    network = engine.module(0).to(splits.x.device)
    index = held[run.trial]
    with torch.no_grad():
        inputs = [data.inputs(data.x[i], run.trial) for i in index.split(SAMPLES_AT_ONCE)]
        logits = torch.cat([network(x) for x in inputs])
        losses = nnF.cross_entropy(logits, data.y[index], reduction="none")
    return np.asarray(losses.double().cpu())
