"""The task of a study: to train a few runs of one method and label noise."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
import torch

from softadlib.results import sample_losses
from softadlib.results.folder import ResultFolder
from softadlib.results.schema import RunKey
from softadlib.training.executors.local import TaskContext
from softadlib.training.protocol import Protocol, Run
from softadlib.training.study_plan import FirstPass
from softadlib.training.trainer import train_runs


class TrainResult(NamedTuple):
    """What a `TrainTask` returns."""

    rows: pd.DataFrame
    losses: pd.DataFrame
    """Losses of single samples, as `results.sample_losses` has them."""


@dataclass(frozen=True)
class TrainTask:
    """Train a chunk of runs of one method and label noise, measured at `epochs`."""

    protocol: Protocol
    runs: Sequence[Run]
    epochs: set[int]
    samples: dict[str, torch.Tensor] | None
    """What the method needs of every training sample."""
    only: set[RunKey] | None = None
    """Keys of the runs to measure; None for all."""
    loss_epochs: Collection[int] = ()
    """Epochs at which the losses of single samples are summarised."""
    stores_rows: bool = True
    """False for runs whose rows are stored: they are trained again for their losses alone."""
    first_pass: FirstPass | None = None
    """What the runs must reproduce if they are replays; then their ends are stored already."""

    @property
    def units(self) -> int:
        """Epochs × gradients of all runs."""
        gradients = self.protocol.method(self.runs[0].method).gradients
        return self.protocol.epochs * gradients * len(self.runs)

    def run(self, context: TaskContext) -> TrainResult:
        """Return rows and losses; store those of each lot as it ends, so that a death loses little."""
        losses = []

        def save(rows: pd.DataFrame, losses_of_rows: pd.DataFrame) -> None:
            if self.first_pass:
                self.first_pass.check(rows)
            losses.append(losses_of_rows)
            if context.folder:
                self.store(context.folder, TrainResult(self.new_rows(rows), losses_of_rows))

        rows = train_runs(
            self.protocol,
            self.runs,
            self.epochs,
            context.progress,
            save,
            self.samples,
            context.checkpoints,
            self.only,
            self.loss_epochs,
        )
        return TrainResult(self.new_rows(rows), sample_losses.merge(losses))

    def new_rows(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that are not stored yet.

        The ends that were selected by stay: measured beside fewer runs, a GPU may round otherwise.
        """
        return rows[rows["epoch"] < self.protocol.epochs] if self.first_pass else rows

    def store(self, folder: ResultFolder, result: TrainResult) -> None:
        """Store the losses of all runs, then their rows: runs with rows are not trained again."""
        if len(result.losses):
            sample_losses.save_part(folder, result.losses)
        if self.stores_rows and len(result.rows):
            folder.save_part(result.rows)
