"""The loop: epochs of steps, and what is measured and saved between them."""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from softadlib.trainer.checkpoint import Checkpoint, State
from softadlib.trainer.engines import Engine
from softadlib.trainer.evaluation import Row
from softadlib.trainer.evaluator import Evaluator
from softadlib.trainer.recipe import Recipe, batches


@dataclass
class Measured:
    """What was measured of R runs."""

    rows: list[Row]
    """One table for each measured epoch, in order."""
    best: Row | None = None
    """Every run as it was at the epoch of its lowest validation loss, if asked for.

    That epoch is 0 for a run whose validation loss was never finite.
    """


def train(
    engine: Engine,
    recipe: Recipe,
    seeds: Sequence[int | np.ndarray],
    eval_epochs: Collection[int],
    *,
    loss_epochs: Collection[int] = (),
    best_epoch: bool = False,
    closed_form: bool = False,
    checkpoint: Checkpoint | None = None,
) -> Measured:
    """Train all runs of an engine and measure them at `eval_epochs`; epoch 0 is before any step.

    Args:
        engine: of the runs, as they are before training.
        recipe: optimizer and schedule.
        seeds: (T,), one shuffling seed per trial, or its orders of samples, (epochs, n).
        eval_epochs: epochs to measure at.
        loss_epochs: of these, epochs at which the losses of single samples are summarised too,
            and calibration after the last epoch.
        best_epoch: also measure every run, with calibration, as it was at the epoch of its lowest
            validation loss. That loss is measured every epoch.
        closed_form: with `best_epoch`, also measure the class probabilities of a method that has them in
            closed form, in columns `linked_…`.
        checkpoint: may hold an earlier state, and is given new ones.
    """
    checkpoint = checkpoint or Checkpoint(None, {})
    recorder = Recorder(engine, recipe.epochs, eval_epochs, loss_epochs, best_epoch, closed_form)
    engine.start(recipe)
    first = 0
    if earlier := checkpoint.load():
        first = earlier["epoch"] + 1
        engine.load_state_dict(earlier["engine"])
        recorder.load_state_dict(earlier["recorder"])

    n = engine.splits.train.shape[1]
    order_seeds = [seeds[trial] for trial in engine.shuffled]
    for epoch in range(first, recipe.epochs + 1):
        if epoch > 0:
            engine.set_lr(recipe.lr_at(epoch))
            for positions in batches(order_seeds, epoch, n, recipe.batch_size, engine.device):
                engine.step(positions)
        recorder.after(epoch)
        if epoch < recipe.epochs and checkpoint.due(epoch):
            states = {"engine": engine.state_dict(), "recorder": recorder.state_dict()}
            checkpoint.save({"epoch": epoch, **states})
    return recorder.measured


class Recorder:
    """What is measured of the runs of an engine; asked after every epoch."""

    def __init__(
        self,
        engine: Engine,
        last_epoch: int,
        eval_epochs: Collection[int],
        loss_epochs: Collection[int],
        best_epoch: bool,
        closed_form: bool,
    ):
        self.evaluator = Evaluator(engine)
        self.runs = len(engine)
        self.last_epoch = last_epoch
        self.eval_epochs = eval_epochs
        self.loss_epochs = loss_epochs
        self.measured = Measured([])
        has_closed_form = engine.method.log_probabilities is not None
        self.best = BestEpoch(self.evaluator) if best_epoch else None
        self.closed_form = best_epoch and closed_form and has_closed_form

    def after(self, epoch: int) -> None:
        """Measure what is due after this epoch; after the last one, also the kept weights of the best."""
        is_last = epoch == self.last_epoch
        if epoch > 0 and self.best:
            self.best.update(epoch)
        if epoch in self.eval_epochs:
            row = {"epoch": np.full(self.runs, epoch), **self.evaluator.measure()}
            if epoch in self.loss_epochs:
                closed_form = is_last and self.closed_form
                row |= self.evaluator.measure_losses(calibrated=is_last, closed_form=closed_form)
            self.measured.rows.append(row)
        if is_last and self.best:
            self.measured.best = self.best.measure(self.closed_form)

    def state_dict(self) -> State:
        """Return what a checkpoint holds."""
        return {
            "rows": [tree_map(torch.from_numpy, row) for row in self.measured.rows],
            "best": self.best.state_dict() if self.best else None,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a checkpoint."""
        self.measured.rows = [tree_map(Tensor.numpy, row) for row in state["rows"]]
        if self.best:
            self.best.load_state_dict(state["best"])


class BestEpoch:
    """The weights of every run at the epoch of its lowest validation loss."""

    def __init__(self, evaluator: Evaluator):
        self.evaluator = evaluator
        self.engine = evaluator.engine
        self.weights = tree_map(Tensor.clone, self.engine.weights())
        self.loss = np.full(len(self.engine), np.inf)
        self.epoch = np.zeros(len(self.engine), dtype=np.int64)

    def update(self, epoch: int) -> None:
        """Keep the weights of the runs whose validation loss is lower than ever."""
        loss = self.evaluator.validation_losses()
        better = np.flatnonzero(loss < self.loss)
        if len(better) == 0:
            return
        self.loss[better] = loss[better]
        self.epoch[better] = epoch
        index = torch.from_numpy(better).to(self.engine.device)
        for name, now in self.engine.weights().items():
            self.weights[name][index] = now[index]

    def measure(self, closed_form: bool) -> Row:
        """Measure the kept weights; epoch 0 marks a run without any."""
        with self.weights_in_engine():
            row = {"epoch": self.epoch, **self.evaluator.measure()}
            return row | self.evaluator.measure_losses(calibrated=True, closed_form=closed_form)

    @contextlib.contextmanager
    def weights_in_engine(self) -> Iterator[None]:
        """Give the engine the kept weights for a while."""
        current = self.engine.weights()
        last = tree_map(Tensor.clone, current)
        for name, value in current.items():
            value.copy_(self.weights[name])
        try:
            yield
        finally:
            for name, value in current.items():
                value.copy_(last[name])

    def state_dict(self) -> State:
        """Return what a checkpoint holds."""
        return {
            "weights": self.weights,
            "loss": torch.from_numpy(self.loss),
            "epoch": torch.from_numpy(self.epoch),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a checkpoint."""
        for name, value in state["weights"].items():
            self.weights[name] = value.to(self.engine.device)
        self.loss = state["loss"].numpy()
        self.epoch = state["epoch"].numpy()
