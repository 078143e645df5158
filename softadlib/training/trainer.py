"""Runs of one method → their rows: load, decide how many side by side and how, train, measure."""

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pandas as pd
import torch
from torch import Tensor, nn

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.data.splits import Splits
from softadlib.models import build
from softadlib.results.schema import MEASURES
from softadlib.results.table import merge
from softadlib.training.device import free_memory, numerics, pick_device
from softadlib.training.engines.base import Measured, RunBatch
from softadlib.training.engines.factory import LAYOUTS, make_engine
from softadlib.training.engines.mlp_cpu import links
from softadlib.training.engines.streams import StreamEngine
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.inputs import load_splits
from softadlib.training.memory import MemoryEstimate, footprint, runs_that_fit
from softadlib.training.protocol import Protocol, Run
from softadlib.training.run_writer import RunWriter

MARGIN = 0.8
"""Share of the free memory that is spoken for; the rest is for fragments and for evaluation."""
CANDIDATES = (("stack", 4), ("stack", 16), ("lanes", 4), ("lanes", 8))
"""Ways to train convolutional networks side by side on a GPU, from which a timing chooses."""
TIMED_BATCHES = 8
Result = TypeVar("Result")


class Trainer:
    """The runs of one method and label noise on one device, with data and networks at hand.

    `samples`: what the method wants to know of every training sample, by name, (T, n).
    """

    def __init__(
        self,
        protocol: Protocol,
        runs: Sequence[Run],
        splits: Splits | None = None,
        samples: dict[str, Tensor] | None = None,
    ):
        self.protocol, self.runs = protocol, list(runs)
        self.method, self.samples = protocol.method(runs[0].method), samples
        self.device, self.dtype = pick_device(protocol.device), getattr(torch, protocol.dtype)
        splits = splits or load_splits(protocol, runs[0].label_noise)
        self.splits = splits.to(self.device, self.dtype)
        for name, values in (samples or {}).items():
            if values.shape != self.splits.train.shape:
                had, have = tuple(values.shape), tuple(self.splits.train.shape)
                raise UserError(
                    f"{name} is of {had} training samples, the data have {have}: they changed since; "
                    "softad train --fresh starts from nothing"
                )
        self.example = self.network(self.runs[0])
        self.chain = links(self.example) is not None

    def network(self, run: Run) -> nn.Module:
        """With the initial weights of the run's trial."""
        shape, seed = self.splits.shape, self.protocol.seeds[run.trial]
        return build(self.protocol.model, shape, self.splits.classes, seed).to(self.dtype)

    def engine(
        self, runs: Sequence[Run], layout: str = "stack", splits: Splits | None = None
    ) -> VmapEngine | StreamEngine:
        """What trains `runs`."""
        method, protocol = self.method, self.protocol
        settings = protocol.settings_of(method.name)
        networks = {run.trial: self.network(run) for run in runs}  # runs of a trial begin alike
        batch = RunBatch(
            method,
            [networks[run.trial] for run in runs],
            splits or self.splits,
            [run.trial for run in runs],
            [run.knob for run in runs],
            {name: settings[name] for name in method.settings_for("objective", "rule")},
            self.samples or {},
            bf16=protocol.precision == "bf16",
        )
        return make_engine(batch, layout)

    def needs(self, runs: int = 1) -> MemoryEstimate:
        """The memory that `runs` of these need side by side."""
        return footprint(self.example, self.protocol.recipe, self.method, runs, self.splits)

    def plan(self) -> tuple[list[list[Run]], str]:
        """Lots of nearly equal size that fit into the free memory, and their layout.

        On a CPU a network that is no chain is trained alone: it would round differently in company.
        Raises UserError where not even one run fits.
        """
        most, layout = self.protocol.stack or len(self.runs), "stack"
        if self.device.type == "cpu":
            most = len(self.runs) if self.chain else 1
        elif not self.chain and not self.protocol.stack:
            layout, most = self.fastest()
        free = free_memory(self.device)
        if free is not None:
            one = self.needs()
            fit = runs_that_fit(int(MARGIN * free) + one.data, one, most)  # the data are there
            if not fit:
                raise UserError(
                    f"{self.protocol.model} on {self.protocol.dataset} needs {one} for one run, but "
                    f"{self.device.type} has {free / 2**30:.1f} GiB free; choose a smaller "
                    "batch_size, or another device"
                )
            most = fit
        lots = -(-len(self.runs) // most)
        size, more = divmod(len(self.runs), lots)
        ends = [size * i + min(i, more) for i in range(lots + 1)]
        return [self.runs[a:b] for a, b in itertools.pairwise(ends)], layout

    def fastest(self) -> tuple[str, int]:
        """The layout and number of runs whose steps take least time per run; timed once and kept."""
        protocol = self.protocol
        facts = (protocol.model, protocol.batch_size, self.method.gradients, protocol.dtype)
        where = (protocol.precision, str(self.device), torch.__version__)
        key, path = " ".join(map(str, facts + where)), _workspace.home() / "outputs" / ".speed.json"
        try:
            known = json.loads(path.read_text())
        except (OSError, ValueError):
            known = {}
        known = known if isinstance(known, dict) else {}
        if key not in known:
            times = {c: self.seconds(*c) for c in CANDIDATES if c[1] <= max(len(self.runs), 4)}
            known[key] = min(times, key=times.__getitem__)
            _workspace.write(path, json.dumps(known, indent=1))
        layout, size = known[key]
        return (layout, size) if layout in LAYOUTS else ("stack", 1)

    def seconds(self, layout: str, size: int) -> float:
        """Per run and step, of `size` runs in this layout; infinite where they do not fit."""
        stamps: list[float] = []

        def stamp(runs: int) -> None:
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            stamps.append(time.perf_counter())

        some = self.splits.train[:, : TIMED_BATCHES * self.protocol.batch_size]
        short = dataclasses.replace(self.splits, train=some)
        recipe = dataclasses.replace(self.protocol.recipe, epochs=3)  # the first one prepares
        runs = [r for r, _ in zip(itertools.cycle(self.runs), range(size))]
        try:
            self.engine(runs, layout, short).train(recipe, self.protocol.seeds, (), progress=stamp)
        except torch.OutOfMemoryError:
            return float("inf")
        return (stamps[-1] - stamps[0]) / (2 * size * TIMED_BATCHES)

    def rows(
        self,
        runs: Sequence[Run],
        layout: str,
        eval_epochs: set[int],
        tick: Callable[[int], None],
        desk: RunWriter | None = None,
    ) -> pd.DataFrame:
        """Train one lot; on a CPU run by run, so that no state depends on who else is in it."""
        frames, desk = [], desk or RunWriter(self.protocol)
        for some in [[run] for run in runs] if self.device.type == "cpu" else [runs]:
            engine = self.engine(some, layout)
            checkpoint = desk.checkpoint_for(some, type(engine).__name__, self.device, eval_epochs)
            measured = engine.train(
                self.protocol.recipe,
                self.protocol.seeds,
                eval_epochs,
                progress=lambda n: tick(n * self.method.gradients),
                checkpoint=checkpoint,
            )
            frames.append(self.table(some, measured))
            desk.add(frames[-1], checkpoint)
        return merge(frames)

    def table(self, runs: Sequence[Run], measured: Measured) -> pd.DataFrame:
        """One row per run and epoch measured."""
        frames = [
            pd.DataFrame(
                {
                    "dataset": self.protocol.dataset,
                    "method": self.method.name,
                    "trial": [r.trial for r in runs],
                    "label_noise": [r.label_noise for r in runs],
                    "knob": [r.knob for r in runs],
                    "epoch": epoch,
                    **{name: values[name] for name in MEASURES},
                }
            )
            for epoch, values in measured.items()
        ]
        return merge(frames)


def train_runs(
    protocol: Protocol,
    runs: Sequence[Run],
    eval_epochs: set[int],
    tick: Callable[[int], None] = lambda units: None,
    save: Callable[[pd.DataFrame], object] = lambda rows: None,
    samples: dict[str, Tensor] | None = None,
    checkpoints: Path | None = None,
) -> pd.DataFrame:
    """Train runs of one method and label noise; one row per run and epoch asked.

    `save` is given the rows of each lot as it ends, and of a CPU's runs once a minute. A lot for
    which the memory turns out too small is halved. `samples` as `Trainer`'s; `auxiliary.samples`
    makes them. `checkpoints` is the folder of those of runs under way. `attrs["resumed"]`
    of the rows: epochs of runs that were not trained here but gone on from.
    """
    frames, desk = [], RunWriter(protocol, save, checkpoints)
    with numerics(pick_device(protocol.device), protocol.precision):
        sweep = Trainer(protocol, runs, samples=samples)
        for rows in in_lots(sweep, lambda lot, how: sweep.rows(lot, how, eval_epochs, tick, desk)):
            frames.append(rows)
            desk.flush()
    rows = merge(frames)
    rows.attrs["resumed"] = desk.resumed
    return rows


def in_lots(sweep: Trainer, work: Callable[[list[Run], str], Result]) -> Iterator[Result]:
    """What `work(runs, layout)` makes of each lot; one that does not fit after all is halved."""
    lots, layout = sweep.plan()
    while lots:
        lot = lots.pop(0)
        try:
            done = [work(lot, layout)]
        except torch.OutOfMemoryError:
            done = []
        # here the error is gone, and with it what its traceback held in memory
        lots = lots if done else [*halves(lot), *lots]
        yield from done


def halves(lot: list[Run]) -> list[list[Run]]:
    """Two smaller lots of one that did not fit after all; UserError if it was a single run."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if len(lot) == 1:
        raise UserError(
            "the device ran out of memory with a single run; choose a smaller batch_size"
        )
    return [lot[: len(lot) // 2], lot[len(lot) // 2 :]]
