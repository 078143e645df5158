"""Held-out losses of the training samples, from which AdaFlood sets a flood level for each.

A sample's loss is measured under a model that was not trained on it: one model per fold, trained by
ERM as the protocol trains any, or one model whose last layer alone is tuned again without the chunk
that holds the sample. Models are those after the last epoch, in evaluation mode, no augmentation.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from softadlib.training.executors.local import Executor, TaskContext, group_trials, run_tasks
from softadlib.training.executors.run_writer import RunWriter
from softadlib.training.inputs import load_splits
from softadlib.training.progress import ProgressCallback, no_progress
from softadlib.training.protocol import Protocol, Run
from softadlib.training.trainer import Trainer, each_lot_halving_on_oom

CHUNKS, TUNING_EPOCHS = 10, 25
"""Of the last layer, as the authors' code has them."""
AT_A_TIME = 1000
"""Samples per forward pass in evaluation."""


@dataclass(frozen=True)
class HeldOutTask:
    """Compute the held-out losses of some trials of one label noise."""

    protocol: Protocol
    label_noise: float
    trials: Sequence[int]

    @property
    def units(self) -> int:
        """Epochs of all networks."""
        each = n_models(self.protocol, "adaflood")
        return each * len(self.trials) * self.protocol.epochs

    def run(self, context: TaskContext) -> np.ndarray:
        """Return the losses (T, n), in nats."""
        losses = held_out(self.protocol, self.label_noise, self.trials, context)
        if context.folder:
            self.store(context.folder, losses)
        return losses

    def store(self, folder: ResultFolder, losses: np.ndarray) -> None:
        """Write one file a trial."""
        for trial, values in zip(self.trials, losses):
            folder.save_held_out(self.label_noise, trial, values)


def sample_inputs(
    protocol: Protocol, runs: Sequence[Run], folder: ResultFolder | None = None
) -> dict[str, Tensor] | None:
    """Return what `runs` of one method and label noise need of every training sample, (T, n).

    None for a method that needs nothing. Trials without a run are NaN. Losses that `folder` lacks
    are computed and stored there.
    """
    if not get_method(runs[0].method).samples:
        return None
    noise, trials = runs[0].label_noise, sorted({r.trial for r in runs})
    stored = {trial: folder.read_held_out(noise, trial) if folder else None for trial in trials}
    losses = {trial: row for trial, row in stored.items() if row is not None}
    missing = [trial for trial in trials if trial not in losses]
    if missing:
        checkpoints = folder.checkpoints if folder else None
        task = HeldOutTask(protocol, noise, missing)
        losses |= zip(missing, task.run(TaskContext(folder, checkpoints)))
    values = np.stack([losses[trial] for trial in trials])
    aux = np.full((protocol.trials, values.shape[1]), np.nan)
    aux[trials] = values
    return {"aux": torch.from_numpy(aux)}


def n_models(protocol: Protocol, method: str) -> int:
    """Return how many networks are trained by ERM for each trial before the method's own runs."""
    if not get_method(method).samples:
        return 0
    settings = protocol.settings_of(method)
    return int(settings["aux_folds"]) if settings["aux"] == "folds" else 1


def prepare(
    protocol: Protocol,
    runs: Sequence[Run],
    folder: ResultFolder,
    executor: Executor,
    progress: ProgressCallback = no_progress,
) -> int:
    """Compute and store the held-out losses that `runs` lack; return how many networks that took."""
    each = n_models(protocol, runs[0].method) if runs else 0
    if not each:
        return 0
    trials = {(run.label_noise, run.trial) for run in runs}
    missing = {trial for trial in trials if folder.read_held_out(*trial) is None}
    tasks = [HeldOutTask(protocol, *group) for group in group_trials(missing, executor.device)]
    for _ in run_tasks(executor, tasks, folder, progress):
        pass
    return each * len(missing)


def held_out(
    protocol: Protocol,
    label_noise: float,
    trials: Sequence[int],
    context: TaskContext | None = None,
) -> np.ndarray:
    """Return the loss of every training sample under a model not trained on it, in nats: (T, n).

    NaN where that model diverged. Bae et al. (2024). The losses of a finished fold are stored in the
    context's folder at once, and read there. Raises UserError for too many folds, and for a last
    batch of one sample.
    """
    splits = load_splits(protocol, label_noise)
    settings = protocol.settings_of("adaflood")
    in_folds = settings["aux"] == "folds"
    n, count = splits.train.shape[1], settings["aux_folds"] if in_folds else CHUNKS
    if count > n:
        raise UserError(f"{count} folds of {n} training samples; AdaFlood needs one for each fold")
    dealt = np.array([_order(seed, n) for seed in protocol.seeds])
    folds = [torch.from_numpy(held) for held in np.array_split(dealt, count, axis=1)]
    out, context = np.full((protocol.trials, n), np.nan), context or TaskContext()
    losses_of = by_folds if in_folds else by_last_layer
    with deterministic_math(pick_device(protocol.device), protocol.precision):
        results = losses_of(protocol, label_noise, trials, splits, folds, context)
        for trial, held, losses in results:
            out[trial, held[trial].numpy()] = losses
    return out[list(trials)]


def _order(seed: int, n: int) -> np.ndarray:
    """Return the order in which samples are dealt into folds; epochs have others, of (seed, epoch)."""
    return np.random.default_rng([seed, 0, 1]).permutation(n)


def without(folds: Sequence[Tensor], which: int) -> Tensor:
    """Return the positions (T, n − f) of all folds but one."""
    return torch.cat([fold for i, fold in enumerate(folds) if i != which], 1)


FoldLosses = Iterator[tuple[int, Tensor, np.ndarray]]
"""(trial, fold (T, f), losses (f,)) for each trial and fold."""


def by_folds(
    protocol: Protocol,
    label_noise: float,
    trials: Sequence[int],
    splits: Splits,
    folds: Sequence[Tensor],
    context: TaskContext,
) -> FoldLosses:
    """Train a model per fold on the other folds, from the trial's initial weights."""
    n, folder = splits.train.shape[1], context.folder
    for size in {held.shape[1] for held in folds}:
        try:
            check_batches(n - size, protocol.batch_size)
        except UserError as error:
            raise UserError(f"with aux_folds {len(folds)}, {error} or aux_folds") from None
    for i, held in enumerate(folds):
        part, missing = f"-fold-{i + 1}-of-{len(folds)}", []
        for trial in trials:
            stored = folder.read_held_out(label_noise, trial, part) if folder else None
            if stored is None:
                missing.append(trial)
                continue
            context.progress(protocol.epochs)
            yield trial, held, stored
        if not missing:
            continue
        evaluated = splits.train.gather(1, held)
        # Scaled like what its model was trained on: a fold's own range would be another input.
        rest = splits.train.gather(1, without(folds, i))
        data = dataclasses.replace(splits, train=rest, val=evaluated, test=evaluated)
        models = train_erm(protocol, label_noise, missing, data, context, part)
        for trial, network, scaled in models:
            losses = _losses(network, scaled, trial, scaled.val[trial])
            if folder:
                folder.save_held_out(label_noise, trial, losses, part)
            yield trial, held, losses


def by_last_layer(
    protocol: Protocol,
    label_noise: float,
    trials: Sequence[int],
    splits: Splits,
    chunks: Sequence[Tensor],
    context: TaskContext,
) -> FoldLosses:
    """Train one model on all samples; per chunk train a new last layer on the other chunks.

    The features below it, batch norm by its running statistics, were trained on all samples.
    """
    recipe = dataclasses.replace(protocol.recipe, epochs=TUNING_EPOCHS)
    for trial, network, data in train_erm(protocol, label_noise, trials, splits, context):
        seed, index = protocol.seeds[trial], data.train[trial]
        x = torch.cat(list(_outputs(without_head(network), data, trial, index)))
        for i, held in enumerate(chunks):
            if not x.isfinite().all():
                yield trial, held, np.full(held.shape[1], np.nan)
                continue
            rest, chunk = (p[[trial]].to(x.device) for p in (without(chunks, i), held))
            features = Splits(x, data.y[index], rest, chunk, chunk, data.classes, data.dtype)
            layer = build("linear", features.shape, data.classes, seed).to(x.device, x.dtype)
            engine = make_engine(RunBatch(get_method("erm"), [layer], features, [0], [math.nan]))
            engine.train(recipe, [seed], ())
            yield trial, held, _losses(_load(layer, engine.state(0)), features, 0, chunk[0])


def ordinary(label_noise: float, trials: Sequence[int]) -> list[Run]:
    """Return a run of ERM for each trial."""
    return [Run("erm", label_noise, trial, math.nan) for trial in trials]


def train_erm(
    protocol: Protocol,
    label_noise: float,
    trials: Sequence[int],
    splits: Splits,
    context: TaskContext,
    part: str = "all",
) -> Iterator[tuple[int, nn.Module, Splits]]:
    """Yield (trial, network, data) of each trial, trained by ERM and the protocol's recipe.

    Checkpoints of runs under way are deleted when the caller has used the networks of their lot.
    `part` names the samples trained on.
    """
    writer = RunWriter(protocol, directory=context.checkpoints)
    trainer = Trainer(protocol, ordinary(label_noise, trials), splits)

    def train(lot: list[Run]) -> tuple[list[tuple[int, nn.Module, Splits]], NullCheckpoint]:
        engine = trainer.engine(lot)
        checkpoint = writer.checkpoint_for(
            lot, type(engine).__name__, trainer.device, trained_on=part
        )
        engine.train(
            protocol.recipe, protocol.seeds, (), progress=context.progress, checkpoint=checkpoint
        )
        networks = (trainer.network(run).to(trainer.device) for run in lot)
        trained = (_load(network, engine.state(i)) for i, network in enumerate(networks))
        return [(run.trial, model, trainer.splits) for run, model in zip(lot, trained)], checkpoint

    for models, checkpoint in each_lot_halving_on_oom(trainer, train):
        yield from models
        checkpoint.clear()


def _load(network: nn.Module, state: tuple[dict[str, Tensor], dict[str, Tensor]]) -> nn.Module:
    """Return `network` with these parameters and buffers, in evaluation mode."""
    network.load_state_dict(state[0] | state[1])
    return network.eval()


def without_head(network: nn.Module) -> nn.Module:
    """Remove the last layer of `network`, in place; UserError unless that layer is linear."""
    name, last = [(k, m) for k, m in network.named_modules() if not list(m.children())][-1]
    if type(last) is not nn.Linear:
        raise UserError(f"aux last-layer needs a network that ends in a linear layer, not {last}")
    if not name:
        return nn.Identity()
    network.set_submodule(name, nn.Identity())
    return network


@torch.no_grad()
def _outputs(network: nn.Module, data: Splits, trial: int, index: Tensor) -> Iterator[Tensor]:
    for chunk in index.split(AT_A_TIME):
        yield network(data.inputs(data.x[chunk], "train", trial)).flatten(1)


def _losses(network: nn.Module, data: Splits, trial: int, index: Tensor) -> np.ndarray:
    """Return the cross-entropy on the samples at `index`, (n,)."""
    logits = torch.cat(list(_outputs(network, data, trial, index)))
    losses = nnF.cross_entropy(logits, data.y[index], reduction="none")
    return losses.double().cpu().numpy()
