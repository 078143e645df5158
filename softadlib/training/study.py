"""One dataset × method: train all runs, select, replay the selected with their curves, store.

The paper reads the final epoch of every run and the curves of the selected ones. So the first pass
measures the end only; the replay trains the selected again, measures along the way, and must end
where the first pass did. On a CPU with one thread, where every run is trained alone, that holds bit
for bit; elsewhere the first pass measures every curve.
"""

import functools
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.data.synthetic import SYNTHETIC
from softadlib.results import provenance, selection
from softadlib.results.folder import ResultFolder, claim, read_provenance
from softadlib.results.schema import MEASURES, RUN_KEY
from softadlib.results.table import merge
from softadlib.training import auto_theta, heldout
from softadlib.training.checks import AUTO
from softadlib.training.device import pick_device
from softadlib.training.executors import local as executors
from softadlib.training.memory import Flops, protocol_flops
from softadlib.training.progress import ProgressCallback, StudyProgress, no_progress
from softadlib.training.protocol import Protocol, Run
from softadlib.training.trainer import train_runs

OnRows = Callable[[pd.DataFrame], object]
"""Called with the rows of a few finished runs."""


def curve_epochs(protocol: Protocol) -> set[int]:
    """Epochs at which curves are measured: 0, every `curve_every`, and the last."""
    return {*range(0, protocol.epochs, protocol.curve_every), protocol.epochs}


CPU_TASK = 8
"""Most runs that a CPU process takes at a time: what an accident may cost."""


@dataclass
class Study:
    """The work left for one protocol and method, given the rows already kept.

    `device`: what it is done on, by default this machine's. `trials`: those (label noise, trial)
    alone, as a shard does.
    """

    protocol: Protocol
    method: str
    device: torch.device | None = None
    trials: Collection[tuple[float, int]] | None = None

    def __post_init__(self):
        self.gradients = self.protocol.method(self.method).gradients
        self.place = ResultFolder(
            self.protocol.profile, self.protocol.dataset, self.method, self.protocol.fingerprint()
        )
        self.device = self.device or pick_device(self.protocol.device)
        # others' machines may have a GPU that this one has not, or the other way round
        self.told = self.protocol.replace(device=self.device.type)
        self.resolve()
        single = len(self.runs) == self.choices
        replays = self.device.type == "cpu" and self.protocol.curves == "selected" and not single
        self.first_epochs = {self.protocol.epochs}
        if self.protocol.curves != "none" and not replays:
            self.first_epochs = curve_epochs(self.protocol)
        self.replay_epochs = curve_epochs(self.protocol) if replays else set()

    def resolve(self) -> None:
        """Find out what the runs are: suggested knobs are known once they are stored."""
        runs = self.protocol.runs(self.method)
        if self.trials is not None:
            runs = tuple(r for r in runs if (r.label_noise, r.trial) in self.trials)
        self.runs = auto_theta.resolve_auto(self.protocol, runs, self.place)

    @functools.cached_property
    def work(self) -> Flops:
        """What a run costs; for the speed that is shown."""
        return protocol_flops(self.protocol)

    def kept(self) -> tuple[pd.DataFrame, bool]:
        """Rows on disk that belong to this study's runs, and whether there are others."""
        rows = self.place.kept(self.protocol.label_noise)
        wanted = {r.key for r in self.runs}
        mine = [_key(q, t, v) in wanted for q, t, v in rows[RUN_KEY].itertuples(index=False)]
        return rows[np.array(mine, dtype=bool)], not all(mine)

    def missing(self, rows: pd.DataFrame, runs: Sequence[Run], epochs: set[int]) -> list[Run]:
        """Runs of which a row at one of `epochs` is missing."""
        have: dict[tuple, set[int]] = {}
        for q, t, v, e in rows[[*RUN_KEY, "epoch"]].itertuples(index=False):
            have.setdefault(_key(q, t, v), set()).add(e)
        return [r for r in runs if epochs - have.get(r.key, set())]

    def selected(self, rows: pd.DataFrame) -> list[Run]:
        """The runs whose curves are shown."""
        chosen = {
            _key(q, t, v)
            for q, t, v in selection.select(rows, self.protocol.ties)[RUN_KEY].itertuples(
                index=False
            )
        }
        return [r for r in self.runs if r.key in chosen]

    def done(self) -> bool:
        """True where every wanted row is stored and its provenance written."""
        if not self.place.provenance.exists() or not self.place.metrics.exists():
            return False
        facts = read_provenance(self.place.provenance)
        rows, others = self.kept()
        told = (facts.get("rows", len(rows)), facts.get("runs"))
        if told != (len(rows), len(self.runs)):
            return False  # killed between the table and its provenance
        if others or self.missing(rows, self.runs, self.first_epochs):
            return False
        return not (
            self.replay_epochs and self.missing(rows, self.selected(rows), self.replay_epochs)
        )

    def stored(self) -> int:
        """How many of its runs are trained and stored, curves aside."""
        return len(self.runs) - len(self.missing(self.kept()[0], self.runs, self.first_epochs))

    def units(self) -> int:
        """Run × gradient × epoch of the whole study, replays and runs that tell it something included."""
        replayed = self.choices if self.replay_epochs else 0
        each = 1 if self.protocol.grids.get(self.method) in AUTO else 0
        before = (each + heldout.models(self.protocol, self.method)) * self.choices
        return ((len(self.runs) + replayed) * self.gradients + before) * self.protocol.epochs

    @property
    def choices(self) -> int:
        """How many runs are selected: one of each label noise and trial."""
        return len({(r.label_noise, r.trial) for r in self.runs})

    def tasks(self, runs: Sequence[Run], jobs: int) -> list[list[Run]]:
        """Runs of one label noise to hand out together: on a CPU a few for each process."""
        size = self.protocol.stack or max(1, -(-len(runs) // jobs))
        if self.told.device == "cpu" and not self.protocol.stack:
            long = self.protocol.dataset not in SYNTHETIC
            even = CPU_TASK if jobs == 1 else -(-len(runs) // (4 * jobs))
            size = 1 if long else min(CPU_TASK, even)
        return [list(runs[i : i + size]) for i in range(0, len(runs), size)]


def _key(noise: float, trial: int, knob: float) -> tuple:
    return (noise, int(trial), None if math.isnan(knob) else knob)


def _train_and_save(
    protocol: Protocol,
    runs: list[Run],
    epochs: set[int],
    samples: dict[str, torch.Tensor] | None,
    keep: ResultFolder | None,
    checkpoints: Path | None,
    tick: ProgressCallback,
) -> pd.DataFrame:
    # Saved by whoever trained it, so that a death loses what was in flight and no more.
    save = keep.save_part if keep else lambda rows: None
    return train_runs(protocol, runs, epochs, tick, save, samples, checkpoints)


def _pass(
    study: Study,
    runs: Sequence[Run],
    epochs: set[int],
    executor: executors.Executor,
    tick: ProgressCallback,
    on_rows: OnRows,
) -> list[pd.DataFrame]:
    units, here = study.protocol.epochs * study.gradients, executor.workers == 1 and executor.writes
    keep = study.place if executor.writes else None
    more = (keep, executor.checkpoints(study.place), tick if here else no_progress)
    tasks = []
    for noise in study.protocol.label_noise:
        if some := [r for r in runs if r.label_noise == noise]:
            samples = heldout.samples(study.protocol, some, study.place)
            chunks = study.tasks(some, executor.workers)
            tasks += [(study.told, task, epochs, samples, *more) for task in chunks]
    frames = []
    for rows in executor.map(_train_and_save, tasks):
        frames.append(rows)
        if not executor.writes:
            study.place.save_part(rows)
        on_rows(rows)
        if not here:
            tick(units * len(rows[RUN_KEY].drop_duplicates()))
    return frames


def run(
    protocol: Protocol,
    method: str,
    *,
    jobs: int = 1,
    resume: bool = True,
    tick: ProgressCallback | None = None,
    executor: executors.Executor | None = None,
    trials: Collection[tuple[float, int]] | None = None,
    on_rows: OnRows | None = None,
) -> pd.DataFrame:
    """Do what is left of one dataset × method and return all its rows.

    `jobs` processes, one thread each, on a CPU, and one on a GPU, unless an `executor` says
    otherwise. `resume=False` forgets earlier results first. `tick` is told of every unit done,
    those of earlier calls included. Of `trials`, (label noise, trial) each, only the parts are
    left, for a call without to merge. `on_rows` is called in this process with the rows of a few
    runs once they are saved, replays included; what it raises ends the call. Raises UserError where
    `outputs/` cannot be written, an earlier file is broken, or another process is at work on the same.
    """
    executor = executor or executors.local(jobs, pick_device(protocol.device))
    study = Study(protocol, method, executor.where, trials)
    _workspace.check_writable(study.place.path)
    pair = (protocol.dataset, method)
    with claim(protocol.profile, [pair], shared=trials is not None):
        return _run(
            protocol, study, resume, tick or no_progress, executor, on_rows or (lambda rows: None)
        )


def _run(
    protocol: Protocol,
    study: Study,
    resume: bool,
    tick: ProgressCallback,
    executor: executors.Executor,
    on_rows: OnRows,
) -> pd.DataFrame:
    place, trials, started = study.place, study.trials, time.monotonic()
    if not resume:
        place.clear()
        study.resolve()
    progress = StudyProgress(
        study.units(),
        protocol.epochs * study.gradients,
        tick,
        None if trials is not None else place.progress,
    )
    ordinary = auto_theta.prepare(study.told, study.runs, place, executor, progress)
    study.resolve()
    rows, others = study.kept()
    earlier = place.sessions()
    if trials is None and (others or place.stored_fingerprint() not in (None, place.fingerprint)):
        if len(rows):
            place.save_part(rows)
        # results of an edited protocol: neither mixed in nor destroyed
        auto_theta.preserve_suggestions(study.runs, place, place.set_aside)
    todo = study.missing(rows, study.runs, study.first_epochs)
    held_out = heldout.prepare(study.told, todo, place, executor, progress)
    expected, per_run = _replays_left(study, rows, todo), study.gradients * protocol.epochs
    left = (len(todo) + expected) * per_run + (ordinary + held_out) * protocol.epochs
    progress.add_done(study.units() - left)
    frames = _pass(study, todo, study.first_epochs, executor, progress, on_rows)
    rows = merge([rows, *frames])
    replays = study.missing(rows, study.selected(rows), study.replay_epochs)
    progress.add_done((expected - len(replays)) * per_run)
    frames += (again := _pass(study, replays, study.replay_epochs, executor, progress, on_rows))
    replayed = merge(again)
    _check_replay(study, rows, replayed)
    rows = merge([rows, replayed])
    if todo or replays or (trials is None and not earlier):
        resumed = sum(frame.attrs.get("resumed", 0) for frame in frames)
        trained = len(todo) + len(replays) + ordinary + held_out - resumed / protocol.epochs
        measured = len(todo) * len(study.first_epochs) + len(replays) * len(study.replay_epochs)
        session = provenance.session(
            executor.facts(),
            seconds=round(time.monotonic() - started, 2),
            runs_trained=len(todo),
            runs_replayed=len(replays),
            jobs=executor.workers,
            **({"runs_for_theta": ordinary} if ordinary else {}),
            **({"runs_for_samples": held_out} if held_out else {}),
            **({"epochs_resumed": resumed} if resumed else {}),
            **_speed(study, progress, trained, measured),
        )
        earlier.append(session)
        if trials is not None:
            place.save_session(session)
    if trials is None and (todo or replays or not study.done()):
        place.finish(rows, provenance.describe(protocol, study.method, rows, earlier))
    elif trials is None:
        place.tidy()
    progress.close()
    return rows


def _speed(
    study: Study, progress: StudyProgress, trained: float, measured: int
) -> dict[str, float]:
    """Runs per minute, and the floating-point operations of training and measuring per second."""
    seconds, work = progress.seconds(), study.work
    operations = trained * progress.units_per_run * work.unit + measured * work.measure
    return {
        "runs_per_minute": round(60 * trained / seconds, 2),
        "gflops": round(operations / seconds / 1e9, 2),
    }


def _replays_left(study: Study, rows: pd.DataFrame, todo: Sequence[Run]) -> int:
    """At most: what is trained anew may be selected."""
    if not study.replay_epochs:
        return 0
    open_ones = {(r.label_noise, r.trial) for r in todo}
    others = [r for r in study.selected(rows) if (r.label_noise, r.trial) not in open_ones]
    return len(open_ones) + len(study.missing(rows, others, study.replay_epochs))


def _check_replay(study: Study, first: pd.DataFrame, replayed: pd.DataFrame) -> None:
    """A replay that ends elsewhere shows another run than the one that was selected."""
    ends = [
        selection.final(r).set_index(RUN_KEY)[list(MEASURES)] for r in (first, replayed) if len(r)
    ]
    if len(ends) < 2:
        return
    ours, theirs = ends[1], ends[0].loc[ends[1].index]
    same = np.isclose(ours, theirs, rtol=1e-9, atol=0, equal_nan=True).all(axis=1)
    if not same.all():
        _, trial, knob = ours.index[~same][0]
        raise UserError(
            f"{study.place.path}: the replay of {study.method} trial {trial} at {knob:g} ended at test loss "
            f"{ours['loss_test'][~same].iloc[0]:.6g}, the first pass at {theirs['loss_test'][~same].iloc[0]:.6g}; "
            "the first pass was made on another machine or torch: set `curves: none`, or delete that folder "
            "and run again"
        )
