"""One dataset × method: train all runs, select, replay the selected with their curves, store.

The paper reads the final epoch of every run and the curves of the selected ones. So the first pass
measures the end only; the replay trains the selected again, measures along the way, and must end
where the first pass did. On a CPU with one thread, where every run is trained alone, that holds bit
for bit; elsewhere the first pass measures every curve.
"""

import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from . import auxiliary, provenance, selection, store, suggested
from .errors import UserError
from .footprint import Work, work
from .hardware import peak_gflops, pick_device
from .methods import method_of
from .metrics import MEASURES
from .protocol import AUTO, Protocol, Run
from .sweep import train_runs
from .synthetic import SYNTHETIC

Tick = Callable[[int], None]
"""Called with the number of run × gradient × epoch units just done."""


def curve_epochs(protocol: Protocol) -> set[int]:
    """Epochs at which curves are measured: 0, every `curve_every`, and the last."""
    return {*range(0, protocol.epochs, protocol.curve_every), protocol.epochs}


CPU_TASK = 8
"""Most runs that a CPU process takes at a time: what an accident may cost."""


@dataclass
class Study:
    """The work left for one protocol and method, given the rows already kept."""

    protocol: Protocol
    method: str

    def __post_init__(self):
        self.gradients = method_of(self.protocol, self.method).gradients
        self.place = store.Place(
            self.protocol.profile, self.protocol.dataset, self.method, self.protocol.fingerprint()
        )
        self.device = pick_device(self.protocol.device)
        self.resolve()
        single = len(self.runs) == len(self.protocol.label_noise) * self.protocol.trials
        replays = self.device.type == "cpu" and self.protocol.curves == "selected" and not single
        self.first_epochs = {self.protocol.epochs}
        if self.protocol.curves != "none" and not replays:
            self.first_epochs = curve_epochs(self.protocol)
        self.replay_epochs = curve_epochs(self.protocol) if replays else set()

    def resolve(self) -> None:
        """Find out what the runs are: suggested knobs are known once they are stored."""
        self.runs = suggested.resolved(self.protocol, self.protocol.runs(self.method), self.place)

    @functools.cached_property
    def work(self) -> Work:
        """What a run costs; for the speed that is shown."""
        return work(self.protocol)

    def kept(self) -> tuple[pd.DataFrame, bool]:
        """Rows on disk that belong to this study's runs, and whether there are others."""
        rows = self.place.kept(self.protocol.label_noise)
        wanted = {r.key for r in self.runs}
        mine = [_key(q, t, v) in wanted for q, t, v in rows[store.RUN].itertuples(index=False)]
        return rows[np.array(mine, dtype=bool)], not all(mine)

    def missing(self, rows: pd.DataFrame, runs: Sequence[Run], epochs: set[int]) -> list[Run]:
        """Runs of which a row at one of `epochs` is missing."""
        have: dict[tuple, set[int]] = {}
        for q, t, v, e in rows[[*store.RUN, "epoch"]].itertuples(index=False):
            have.setdefault(_key(q, t, v), set()).add(e)
        return [r for r in runs if epochs - have.get(r.key, set())]

    def selected(self, rows: pd.DataFrame) -> list[Run]:
        """The runs whose curves are shown."""
        chosen = {
            _key(q, t, v)
            for q, t, v in selection.select(rows, self.protocol.ties)[store.RUN].itertuples(
                index=False
            )
        }
        return [r for r in self.runs if r.key in chosen]

    def done(self) -> bool:
        """True where every wanted row is stored and its provenance written."""
        if not self.place.provenance.exists() or not self.place.metrics.exists():
            return False
        rows, others = self.kept()
        if others or self.missing(rows, self.runs, self.first_epochs):
            return False
        return not (
            self.replay_epochs and self.missing(rows, self.selected(rows), self.replay_epochs)
        )

    def units(self) -> int:
        """Run × gradient × epoch of the whole study, replays and the runs that suggest included."""
        replayed = (
            self.protocol.trials * len(self.protocol.label_noise) if self.replay_epochs else 0
        )
        ordinary = len(self.runs) if self.protocol.grids.get(self.method) in AUTO else 0
        return ((len(self.runs) + replayed) * self.gradients + ordinary) * self.protocol.epochs

    def tasks(self, runs: Sequence[Run], jobs: int) -> list[list[Run]]:
        """Runs to hand out together, all of one label noise: on a CPU a few for each process."""
        size = self.protocol.stack or max(1, len(runs))
        if self.device.type == "cpu" and not self.protocol.stack:
            long = self.protocol.dataset not in SYNTHETIC
            even = CPU_TASK if jobs == 1 else -(-len(runs) // (4 * jobs))
            size = 1 if long else min(CPU_TASK, even)
        out = []
        for noise in self.protocol.label_noise:
            some = [r for r in runs if r.label_noise == noise]
            out += [some[i : i + size] for i in range(0, len(some), size)]
        return out


def _key(noise: float, trial: int, knob: float) -> tuple:
    return (noise, int(trial), None if math.isnan(knob) else knob)


def _train_and_save(study: Study, runs: list[Run], epochs: set[int], tick: Tick) -> pd.DataFrame:
    # Saved by whoever trained it, so that a death loses what was in flight and no more.
    samples = auxiliary.samples(study.protocol, runs, study.place)
    return train_runs(study.protocol, runs, epochs, tick, study.place.save_part, samples)


def _prepare(study: Study, runs: Sequence[Run], jobs: int) -> None:
    """Find and keep what the method wants to know of the training samples, one task a trial."""
    if not method_of(study.protocol, study.method).samples:
        return
    apart = study.device.type == "cpu"  # elsewhere trials are trained side by side
    alike: dict[tuple, list[Run]] = {}
    for run in runs:
        alike.setdefault((run.label_noise, run.trial if apart else 0), []).append(run)
    if jobs == 1 or len(alike) < 2 or not apart:
        for some in alike.values():
            auxiliary.samples(study.protocol, some, study.place)
        return
    from joblib import Parallel, delayed

    work = (delayed(auxiliary.samples)(study.protocol, r, study.place) for r in alike.values())
    Parallel(n_jobs=jobs)(work)


def _pass(
    study: Study, runs: Sequence[Run], epochs: set[int], jobs: int, tick: Tick
) -> list[pd.DataFrame]:
    tasks = study.tasks(runs, jobs) if runs else []
    if jobs == 1 or len(tasks) < 2 or study.device.type != "cpu":
        return [_train_and_save(study, task, epochs, tick) for task in tasks]
    from joblib import Parallel, delayed

    units = study.protocol.epochs * study.gradients
    frames = []
    work = (delayed(_train_and_save)(study, task, epochs, _silent) for task in tasks)
    for rows in Parallel(n_jobs=jobs, return_as="generator_unordered")(work):
        frames.append(rows)
        tick(units * len(rows[store.RUN].drop_duplicates()))
    return frames


def _silent(units: int) -> None: ...


def run(
    protocol: Protocol, method: str, *, jobs: int = 1, resume: bool = True, tick: Tick | None = None
) -> pd.DataFrame:
    """Do what is left of one dataset × method and return all its rows.

    `jobs` processes, one thread each, on a CPU; a GPU takes one. `resume=False` forgets earlier
    results first. `tick` is told of every unit done, those of earlier calls included. Raises
    UserError where `outputs/` cannot be written or an earlier file is broken.
    """
    study = Study(protocol, method)
    place, started = study.place, time.time()
    store.check_writable(place.path)
    if not resume:
        place.clear()
        study.resolve()
    progress = _Progress(study, tick or _silent)
    ordinary = suggested.prepare(protocol, study.runs, place, jobs, progress)
    study.resolve()
    rows, others = study.kept()
    if others or place.stored_fingerprint() not in (None, place.fingerprint):
        # results of an edited protocol: neither mixed in nor destroyed
        suggested.stay_behind(study.runs, place, place.set_aside)
        if len(rows):
            place.save_part(rows)
    todo = study.missing(rows, study.runs, study.first_epochs)
    _prepare(study, todo, jobs)
    left = _units_left(study, rows, todo) + ordinary * protocol.epochs
    progress.already(study.units() - left)
    rows = store.merge([rows, *_pass(study, todo, study.first_epochs, jobs, progress)])
    replays = study.missing(rows, study.selected(rows), study.replay_epochs)
    replayed = store.merge(_pass(study, replays, study.replay_epochs, jobs, progress))
    _same_ends(study, rows, replayed)
    rows = store.merge([rows, replayed])
    if todo or replays or not study.done():
        earlier = (
            store.read_provenance(place.provenance)["sessions"] if place.provenance.exists() else []
        )
        measured = len(todo) * len(study.first_epochs) + len(replays) * len(study.replay_epochs)
        session = provenance.session(
            study.device,
            seconds=round(time.time() - started, 2),
            runs_trained=len(todo),
            runs_replayed=len(replays),
            jobs=jobs,
            **({"runs_for_theta": ordinary} if ordinary else {}),
            **progress.speed(len(todo) + len(replays) + ordinary, measured),
        )
        place.finish(rows, provenance.describe(protocol, method, rows, [*earlier, session]))
    place.progress.unlink(missing_ok=True)
    return rows


def _units_left(study: Study, rows: pd.DataFrame, todo: Sequence[Run]) -> int:
    replays = study.protocol.trials * len(study.protocol.label_noise) if study.replay_epochs else 0
    if study.replay_epochs and not todo:
        replays = len(study.missing(rows, study.selected(rows), study.replay_epochs))
    return (len(todo) + replays) * study.protocol.epochs * study.gradients


class _Progress:
    """Adds up units and leaves them in `progress.json`, at most twice a second, for whoever watches."""

    def __init__(self, study: Study, tick: Tick):
        self.study, self.tick, self.total = study, tick, study.units()
        self.per_run = study.protocol.epochs * study.gradients
        self.count, self.before, self.written = 0, 0, 0.0
        self.started = time.monotonic()

    def already(self, units: int) -> None:
        """Of earlier calls: done, but not this one's speed."""
        self.before = units
        self(units)

    def speed(self, runs: float, measured: float) -> dict[str, float]:
        """Of this call so far: runs per minute, and operations as a share of the machine's best."""
        seconds = max(time.monotonic() - self.started, 1e-3)
        work = self.study.work
        gflops = (runs * self.per_run * work.unit + measured * work.measure) / seconds / 1e9
        return {
            "runs_per_minute": round(60 * runs / seconds, 2),
            "gflops": round(gflops, 2),
            "share_of_peak": round(gflops / peak_gflops(self.study.device), 3),
        }

    def __call__(self, units: int) -> None:
        self.count += units
        self.tick(units)
        if time.monotonic() - self.written > 0.5:
            self.written = time.monotonic()
            runs = (self.count - self.before) / self.per_run
            facts = {"done": self.count, "total": self.total, **self.speed(runs, runs)}
            store.write(self.study.place.progress, json.dumps(facts))


def _same_ends(study: Study, first: pd.DataFrame, replayed: pd.DataFrame) -> None:
    """A replay that ends elsewhere shows another run than the one that was selected."""
    ends = [
        selection.final(r).set_index(store.RUN)[list(MEASURES)] for r in (first, replayed) if len(r)
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
