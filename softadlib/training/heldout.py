"""Held-out losses of the training samples, from which AdaFlood sets a flood level for each.

A sample's loss is measured under a model that was not trained on it: one model per fold, trained by
ERM as the protocol trains any, or one model whose last layer alone is tuned again without the chunk
that the sample is in. Models are those after the last epoch, in evaluation mode, no augmentation.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as nnF
from torch import Tensor, nn

from softadlib._validation import UserError
from softadlib.data.splits import Splits
from softadlib.methods import get_method
from softadlib.models import build
from softadlib.results.folder import ResultFolder
from softadlib.training.checkpoint import NullCheckpoint
from softadlib.training.checks import check_batches
from softadlib.training.device import deterministic_math, pick_device
from softadlib.training.engines.base import RunBatch
from softadlib.training.engines.factory import make_engine
from softadlib.training.inputs import load_splits
from softadlib.training.progress import ProgressCallback, no_progress
from softadlib.training.protocol import Protocol, Run
from softadlib.training.run_writer import RunWriter
from softadlib.training.trainer import Trainer, each_lot_halving_on_oom

if TYPE_CHECKING:
    from softadlib.training.executors.local import Executor

CHUNKS, TUNING_EPOCHS = 10, 25
"""Of the last layer, as the authors' code has them."""
AT_A_TIME = 1000
"""Samples per forward pass in evaluation."""


def samples(
    protocol: Protocol, runs: Sequence[Run], place: ResultFolder | None = None
) -> dict[str, Tensor] | None:
    """What `runs` of one method and label noise want to know of every training sample, (T, n).

    None for a method that wants nothing. Trials without a run are NaN. `place` keeps what is found
    and is asked first; without one nothing is written.
    """
    if not get_method(runs[0].method).samples:
        return None
    noise, trials = runs[0].label_noise, sorted({r.trial for r in runs})
    kept = {t: place.read_held_out(noise, t) if place else None for t in trials}
    known = {t: losses for t, losses in kept.items() if losses is not None}
    missing = [t for t in trials if t not in known]
    if missing:
        known |= zip(
            missing,
            _find(
                protocol, noise, missing, place, place.checkpoints if place else None, no_progress
            )[2],
        )
    aux = np.full((protocol.trials, len(known[trials[0]])), np.nan)
    aux[trials] = [known[t] for t in trials]
    return {"aux": torch.from_numpy(aux)}


def models(protocol: Protocol, method: str) -> int:
    """How many networks are trained by ERM for each trial before the method's own runs."""
    if not get_method(method).samples:
        return 0
    settings = protocol.settings_of(method)
    return int(settings["aux_folds"]) if settings["aux"] == "folds" else 1


def prepare(
    protocol: Protocol,
    runs: Sequence[Run],
    place: ResultFolder,
    executor: "Executor",
    tick: ProgressCallback = no_progress,
) -> int:
    """Find and keep what the method of `runs` wants to know of the samples of their trials.

    Returns how many networks that took; `tick` is told of their epochs.
    """
    each = models(protocol, runs[0].method) if runs else 0
    if not each:
        return 0
    missing = {(r.label_noise, r.trial) for r in runs}
    missing = {m for m in missing if place.read_held_out(*m) is None}
    here, keep = executor.workers == 1 and executor.writes, place if executor.writes else None
    more = (keep, executor.checkpoints(place), tick if here else no_progress)
    tasks = [(protocol, *some, *more) for some in together(missing, executor.where)]
    for noise, trials, losses in executor.map(_find, tasks):
        for trial, found in zip(trials, losses) if keep is None else ():
            place.save_held_out(noise, trial, found)
        if not here:
            tick(each * len(trials) * protocol.epochs)
    return each * len(missing)


def together(
    trials: Iterable[tuple[float, int]], device: torch.device
) -> list[tuple[float, list[int]]]:
    """(label noise, trials) of each task: on a CPU a trial each, elsewhere they are trained side by side."""
    alike: dict[tuple, list[int]] = {}
    for noise, trial in sorted(trials):
        alike.setdefault((noise, trial if device.type == "cpu" else 0), []).append(trial)
    return [(noise, some) for (noise, _), some in alike.items()]


def _find(
    protocol: Protocol,
    noise: float,
    trials: Sequence[int],
    place: ResultFolder | None,
    checkpoints: Path | None,
    tick: ProgressCallback,
) -> tuple[float, Sequence[int], np.ndarray]:
    desk = RunWriter(protocol, directory=checkpoints)
    losses = held_out(protocol, noise, trials, desk, tick)
    if place:
        for trial, found in zip(trials, losses):
            place.save_held_out(noise, trial, found)
        desk.drop_notes()
    return noise, trials, losses


def held_out(
    protocol: Protocol,
    label_noise: float,
    trials: Sequence[int],
    desk: RunWriter | None = None,
    tick: ProgressCallback = no_progress,
) -> np.ndarray:
    """Loss of every training sample of `trials` under a model not trained on it, in nats: (T, n).

    NaN where that model diverged. `desk` keeps trainings under way, and notes of losses until
    all are together; `tick` is told of the epochs of networks done. Raises UserError for more folds than
    samples, and where a fold leaves a last batch of one. Bae et al. (2024).
    """
    splits = load_splits(protocol, label_noise)
    settings = protocol.settings_of("adaflood")
    whole_models = settings["aux"] == "folds"
    n, count = splits.train.shape[1], settings["aux_folds"] if whole_models else CHUNKS
    if count > n:
        raise UserError(f"{count} folds of {n} training samples; AdaFlood needs one for each fold")
    dealt = np.array([_order(seed, n) for seed in protocol.seeds])
    folds = [torch.from_numpy(held) for held in np.array_split(dealt, count, axis=1)]
    find = by_folds if whole_models else by_last_layer
    out, desk = np.full((protocol.trials, n), np.nan), desk or RunWriter(protocol)
    with deterministic_math(pick_device(protocol.device), protocol.precision):
        each = find(protocol, label_noise, trials, splits, folds, desk, tick)
        for trial, held, losses in each:
            out[trial, held[trial].numpy()] = losses
    return out[trials]


def _order(seed: int, n: int) -> np.ndarray:
    """Samples as they are dealt into folds; no epoch's order, which is of (seed, epoch)."""
    return np.random.default_rng([seed, 0, 1]).permutation(n)


def without(folds: Sequence[Tensor], which: int) -> Tensor:
    """Positions (T, n − f) of all folds but one."""
    return torch.cat([fold for i, fold in enumerate(folds) if i != which], 1)


Found = Iterator[tuple[int, Tensor, np.ndarray]]
"""(trial, fold (T, f), losses (f,)) for each trial and fold."""


def by_folds(
    protocol: Protocol,
    label_noise: float,
    trials: Sequence[int],
    splits: Splits,
    folds: Sequence[Tensor],
    desk: RunWriter,
    tick: ProgressCallback,
) -> Found:
    """A model per fold from the trial's initial weights, trained on the others; trials side by side."""
    device = pick_device(protocol.device)
    n = splits.train.shape[1]
    for size in {held.shape[1] for held in folds}:
        try:
            check_batches(n - size, protocol.batch_size)
        except UserError as error:
            raise UserError(f"with aux_folds {len(folds)}, {error} or aux_folds") from None
    for i, held in enumerate(folds):
        part = f"fold {i + 1} of {len(folds)}"
        notes = {
            run.trial: desk.note(run, device, losses=part) for run in ordinary(label_noise, trials)
        }
        for trial, note in notes.items():
            if note.state:
                tick(protocol.epochs)
                yield trial, held, note.state["losses"].numpy()
        left = [trial for trial, note in notes.items() if not note.state]
        if not left:
            continue
        own = splits.train.gather(1, held)
        # scaled like what its model was trained on: a fold's own range would be another input
        rest = splits.train.gather(1, without(folds, i))
        some = dataclasses.replace(splits, train=rest, val=own, test=own)
        ends = trained(protocol, label_noise, left, some, desk, part, tick)
        for trial, network, data in ends:
            losses = _losses(network, data, trial, data.val[trial])
            notes[trial].save({"losses": torch.from_numpy(losses)})
            yield trial, held, losses


def by_last_layer(
    protocol: Protocol,
    label_noise: float,
    trials: Sequence[int],
    splits: Splits,
    chunks: Sequence[Tensor],
    desk: RunWriter,
    tick: ProgressCallback,
) -> Found:
    """One model on everything; per chunk its last layer anew, tuned for 25 epochs on the others.

    The features, batch norm by its running statistics, have seen the samples held out.
    """
    recipe = dataclasses.replace(protocol.recipe, epochs=TUNING_EPOCHS)
    for trial, network, data in trained(protocol, label_noise, trials, splits, desk, tick=tick):
        seed, index = protocol.seeds[trial], data.train[trial]
        x = torch.cat(list(_outputs(without_head(network), data, trial, index)))
        for i, held in enumerate(chunks):
            if not x.isfinite().all():
                yield trial, held, np.full(held.shape[1], np.nan)
                continue
            rest, own = (p[[trial]].to(x.device) for p in (without(chunks, i), held))
            some = Splits(x, data.y[index], rest, own, own, data.classes, data.dtype)
            layer = build("linear", some.shape, some.classes, seed).to(x.device, x.dtype)
            engine = make_engine(RunBatch(get_method("erm"), [layer], some, [0], [math.nan]))
            engine.train(recipe, [seed], ())
            yield trial, held, _losses(_filled(layer, engine.state(0)), some, 0, own[0])


def ordinary(label_noise: float, trials: Sequence[int]) -> list[Run]:
    """A run of ERM for each trial."""
    return [Run("erm", label_noise, trial, math.nan) for trial in trials]


def trained(
    protocol: Protocol,
    label_noise: float,
    trials: Sequence[int],
    splits: Splits,
    desk: RunWriter,
    part: str = "all",
    tick: ProgressCallback = no_progress,
) -> Iterator[tuple[int, nn.Module, Splits]]:
    """(trial, network, data) of each trial, by ERM and the protocol's recipe.

    The state of a training under way goes to `desk`, which drops it when whoever asked is through
    with its lot; `part` names the samples trained on. `tick` is told of the epochs of runs done.
    """
    sweep = Trainer(protocol, ordinary(label_noise, trials), splits)

    def train(lot: list[Run]) -> tuple[list[tuple[int, nn.Module, Splits]], NullCheckpoint]:
        engine = sweep.engine(lot)
        checkpoint = desk.checkpoint_for(lot, type(engine).__name__, sweep.device, trained_on=part)
        engine.train(protocol.recipe, protocol.seeds, (), progress=tick, checkpoint=checkpoint)
        networks = (sweep.network(run).to(sweep.device) for run in lot)
        made = (_filled(network, engine.state(i)) for i, network in enumerate(networks))
        return [(run.trial, network, sweep.splits) for run, network in zip(lot, made)], checkpoint

    for made, checkpoint in each_lot_halving_on_oom(sweep, train):
        yield from made
        checkpoint.clear()


def _filled(network: nn.Module, state: tuple[dict[str, Tensor], dict[str, Tensor]]) -> nn.Module:
    """`network` with these parameters and buffers, in evaluation mode."""
    network.load_state_dict(state[0] | state[1])
    return network.eval()


def without_head(network: nn.Module) -> nn.Module:
    """`network` without its last layer, in place; UserError unless that layer is linear."""
    name, last = [(k, m) for k, m in network.named_modules() if not list(m.children())][-1]
    if type(last) is not nn.Linear:
        raise UserError(f"aux last-layer needs a network that ends in a linear layer, not {last}")
    if not name:
        return nn.Identity()
    network.set_submodule(name, nn.Identity())
    return network


@torch.no_grad()
def _outputs(network: nn.Module, data: Splits, trial: int, index: Tensor) -> Iterator[Tensor]:
    for some in index.split(AT_A_TIME):
        yield network(data.inputs(data.x[some], "train", trial)).flatten(1)


def _losses(network: nn.Module, data: Splits, trial: int, index: Tensor) -> np.ndarray:
    """Cross-entropy on the samples at `index`, (n,)."""
    logits = torch.cat(list(_outputs(network, data, trial, index)))
    losses = nnF.cross_entropy(logits, data.y[index], reduction="none")
    return losses.double().cpu().numpy()
