"""Train runs of one method on one device: load, divide into lots that fit, train, measure."""

import gc
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pandas as pd
import torch
from torch import Tensor, nn

from softadlib._validation import UserError
from softadlib.data.splits import Splits
from softadlib.methods import Method
from softadlib.models import build
from softadlib.results import sample_losses
from softadlib.results.schema import MEASURES, RunKey
from softadlib.results.table import merge
from softadlib.training.device import deterministic_math, free_memory, pick_device
from softadlib.training.engines.base import Engine, Measured, RunBatch
from softadlib.training.engines.factory import engine_class, make_engine
from softadlib.training.executors.run_writer import RunWriter, Save
from softadlib.training.inputs import load_splits
from softadlib.training.memory import MemoryEstimate, footprint, runs_that_fit
from softadlib.training.progress import ProgressCallback, no_progress
from softadlib.training.protocol import Protocol, Run

MARGIN = 0.8
"""Share of the free memory that lots may take; the rest is for fragments and for evaluation."""
Result = TypeVar("Result")


class Trainer:
    """The runs of one method and label noise on one device, with their data and networks.

    Args:
        protocol: of all runs.
        runs: of one method and label noise.
        splits: the data; loaded if None.
        samples: what the method needs of every training sample, by name, (T, n).
        method: replaces the registered method of the runs.
    """

    def __init__(
        self,
        protocol: Protocol,
        runs: Sequence[Run],
        splits: Splits | None = None,
        samples: dict[str, Tensor] | None = None,
        method: Method | None = None,
    ):
        self.protocol, self.runs, self.samples = protocol, list(runs), samples or {}
        self.method = method or protocol.method(runs[0].method)
        self.device, self.dtype = pick_device(protocol.device), getattr(torch, protocol.dtype)
        splits = splits or load_splits(protocol, runs[0].label_noise)
        self.splits = splits.to(self.device, self.dtype)
        for name, values in self.samples.items():
            if values.shape != self.splits.train.shape:
                had, have = tuple(values.shape), tuple(self.splits.train.shape)
                raise UserError(
                    f"{name} is of {had} training samples, the data have {have}: they changed since; "
                    "softad train --fresh starts from nothing"
                )
        self.example = self.network(self.runs[0])

    def network(self, run: Run) -> nn.Module:
        """Build a network with the initial weights of the run's trial."""
        shape, seed = self.splits.shape, self.protocol.seeds[run.trial]
        return build(self.protocol.model, shape, self.splits.classes, seed).to(self.dtype)

    def engine(self, runs: Sequence[Run]) -> Engine:
        """Make the engine that trains `runs`."""
        method, protocol = self.method, self.protocol
        settings = protocol.settings_of(method.name)
        # Runs of a trial have the same initial weights: building one network per run is slow.
        first = {run.trial: run for run in runs}
        networks = {trial: self.network(run) for trial, run in first.items()}
        return make_engine(
            RunBatch(
                method,
                [networks[run.trial] for run in runs],
                self.splits,
                [run.trial for run in runs],
                [run.knob for run in runs],
                {name: settings[name] for name in method.settings_for("objective", "rule")},
                self.samples,
                bf16=protocol.precision == "bf16",
            )
        )

    def needs(self, runs: int = 1) -> MemoryEstimate:
        """Estimate the memory that `runs` of these need side by side."""
        config, captured = self.protocol.recipe, self.device.type == "cuda"
        return footprint(self.example, config, self.method, runs, self.splits, captured=captured)

    def lots(self) -> list[list[Run]]:
        """Divide the runs into lots of nearly equal size that fit into the free memory.

        On a CPU every run is trained alone, so that its numbers depend on no other. Raises
        UserError where not even one run fits.
        """
        engine = engine_class(self.example, self.device, self.protocol.precision == "bf16")
        most = min(self.protocol.stack or len(self.runs), engine.most_runs or len(self.runs))
        if self.device.type == "cpu":
            most = 1
        free = free_memory(self.device)
        if free is not None:
            single = self.needs()
            room = int(MARGIN * free) + single.data  # the data are on the device already
            most = runs_that_fit(room, single, most)
            if not most:
                raise UserError(
                    f"{self.protocol.model} on {self.protocol.dataset} needs {single} for one run, but "
                    f"{self.device.type} has {free / 2**30:.1f} GiB free; choose a smaller "
                    "batch_size, or another device"
                )
        count = -(-len(self.runs) // most)
        size, larger = divmod(len(self.runs), count)
        ends = [size * i + min(i, larger) for i in range(count + 1)]
        return [self.runs[start:end] for start, end in itertools.pairwise(ends)]

    def rows(
        self,
        lot: Sequence[Run],
        eval_epochs: Collection[int],
        progress: ProgressCallback = no_progress,
        writer: RunWriter | None = None,
        only: Collection[RunKey] | None = None,
        loss_epochs: Collection[int] = (),
    ) -> pd.DataFrame:
        """Train one lot; return a row per run and epoch of `eval_epochs`.

        `loss_epochs`: as of `Engine.train`; those losses go to the writer alone.
        `only`: keys of the runs to measure. The others are trained all the same, because the kernels, and
        with them the last bits of a run, depend on the size of the lot. A lot without such a run is
        skipped. `progress` gets epochs of runs times gradients.
        """
        kept = [i for i, run in enumerate(lot) if only is None or run.key in only]
        if not kept:
            progress(len(lot) * self.protocol.epochs * self.method.gradients)
            return self.table([], {})
        engine, writer = self.engine(lot), writer or RunWriter(self.protocol)
        facts = {"losses": str(sorted(loss_epochs))} if loss_epochs else {}
        if len(kept) < len(lot):  # a state holds measures of these runs and no others
            facts["kept"] = str(kept)
        name = type(engine).__name__
        checkpoint = writer.checkpoint_for(lot, name, self.device, eval_epochs, **facts)
        measured = engine.train(
            self.protocol.recipe,
            self.protocol.seeds,
            eval_epochs,
            loss_epochs=loss_epochs,
            keep=kept,
            progress=lambda epochs: progress(epochs * self.method.gradients),
            checkpoint=checkpoint,
        )
        runs = [lot[i] for i in kept]
        rows = self.table(runs, measured)
        writer.add(rows, self.losses_table(runs, measured), checkpoint)
        return rows

    def table(self, runs: Sequence[Run], measured: Measured) -> pd.DataFrame:
        """Return one row per run and epoch measured."""
        frames = [
            pd.DataFrame(
                {
                    "dataset": self.protocol.dataset,
                    "method": self.method.name,
                    "trial": [run.trial for run in runs],
                    "label_noise": [run.label_noise for run in runs],
                    "knob": [run.knob for run in runs],
                    "epoch": epoch,
                    **{name: values[name] for name in MEASURES},
                }
            )
            for epoch, values in measured.items()
        ]
        return merge(frames)

    def losses_table(self, runs: Sequence[Run], measured: Measured) -> pd.DataFrame:
        """Return one row per run, epoch and part where losses of single samples were measured."""
        at = {epoch: row for epoch, row in measured.items() if "quantiles" in row}
        frames = []
        for i, run in enumerate(runs):
            of_run = {
                epoch: {c: row[c][i] for c in sample_losses.COLUMNS if c in row}
                for epoch, row in at.items()
            }
            facts: dict[str, object] = {
                "dataset": self.protocol.dataset,
                "method": self.method.name,
                "label_noise": run.label_noise,
                "trial": run.trial,
                "knob": run.knob,
            }
            frames.append(sample_losses.table(facts, of_run))
        return sample_losses.merge(frames)


def train_runs(
    protocol: Protocol,
    runs: Sequence[Run],
    eval_epochs: Collection[int],
    progress: ProgressCallback = no_progress,
    save: Save = lambda rows, losses: None,
    samples: dict[str, Tensor] | None = None,
    checkpoints: Path | None = None,
    only: Collection[RunKey] | None = None,
    loss_epochs: Collection[int] = (),
) -> pd.DataFrame:
    """Train runs of one method and label noise; return one row per run and epoch asked.

    A lot for which the memory turns out too small is halved. The rows' `attrs["resumed"]` counts the
    epochs of runs that were not trained here because a checkpoint had them.

    Args:
        eval_epochs: epochs to measure at; 0 is before any step.
        progress: gets epochs of runs times gradients.
        save: gets the rows of lots that have ended and the losses of their single samples, once a
            minute and at the end, which may be an exception.
        samples: as of `Trainer`; `heldout.samples` makes them.
        checkpoints: folder of the checkpoints of runs under way; None makes none.
        only: keys of the runs to measure; as of `Trainer.rows`.
        loss_epochs: epochs at which the losses of single samples are summarised.
    """
    writer = RunWriter(protocol, save, checkpoints)
    with deterministic_math(pick_device(protocol.device), protocol.precision):
        trainer = Trainer(protocol, runs, samples=samples)

        def train(lot: list[Run]) -> pd.DataFrame:
            reported = 0

            def report(units: int) -> None:
                nonlocal reported
                reported += units
                progress(units)

            try:
                return trainer.rows(lot, eval_epochs, report, writer, only, loss_epochs)
            except torch.OutOfMemoryError:
                progress(-reported)  # its halves report these units again
                raise

        try:
            frames = list(each_lot_halving_on_oom(trainer, train))
        finally:
            writer.flush()
    rows = merge(frames)
    rows.attrs["resumed"] = writer.resumed
    return rows


def each_lot_halving_on_oom(
    trainer: Trainer, work: Callable[[list[Run]], Result]
) -> Iterator[Result]:
    """Yield work(lot) for each lot of the trainer; a lot that runs out of memory is halved."""
    lots = trainer.lots()
    while lots:
        lot = lots.pop(0)
        try:
            results = [work(lot)]
        except torch.OutOfMemoryError:
            results = []
        # Outside of the except clause: there the traceback still holds the engine's memory.
        if not results:
            lots = [*split_lot(lot), *lots]
        yield from results


def split_lot(lot: list[Run]) -> list[list[Run]]:
    """Free the memory of the engine that failed, and halve its lot; UserError for a single run."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if len(lot) == 1:
        raise UserError(
            "the device ran out of memory with a single run; choose a smaller batch_size"
        )
    return [lot[: len(lot) // 2], lot[len(lot) // 2 :]]
