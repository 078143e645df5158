"""One dataset × method: train all runs, select, replay the selected with their curves, store.

The paper reads the final epoch of every run and the curves of the selected ones. So the first pass
measures the end only; the replay trains the selected again, measures along the way, and must end
where the first pass did. On a CPU with one thread, where every run is trained alone, that holds bit
for bit. A GPU replays the whole lots of the first pass, where that costs less than measuring all
curves (`study_plan.replay_pays`); otherwise its first pass measures every curve.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Sequence

import pandas as pd

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.results import sample_losses
from softadlib.results.folder import lock_results
from softadlib.results.provenance import Provenance, Session
from softadlib.results.schema import RunKey
from softadlib.results.table import merge
from softadlib.training import auto_theta, heldout
from softadlib.training.device import pick_device
from softadlib.training.executors.local import Executor, local, run_tasks
from softadlib.training.executors.train_task import TrainTask
from softadlib.training.progress import ProgressCallback, StudyProgress, no_progress
from softadlib.training.protocol import Protocol, Run
from softadlib.training.study_plan import FirstPass, Study

SESSION_INTERVAL = 60.0
"""Seconds after which the session is stored again when a task ends, for a call that is killed."""

OnRows = Callable[[pd.DataFrame], object]
"""Called with the rows of a few finished runs."""


def run(
    protocol: Protocol,
    method: str,
    *,
    jobs: int = 1,
    resume: bool = True,
    progress: ProgressCallback = no_progress,
    executor: Executor | None = None,
    trials: Collection[tuple[float, int]] | None = None,
    on_rows: OnRows = lambda rows: None,
    losses: bool = False,
) -> pd.DataFrame:
    """Do what is left of one dataset × method and return all its rows.

    Args:
        protocol: what to train.
        method: one of the protocol's.
        jobs: processes on a CPU, one thread each; a GPU has one.
        resume: False deletes earlier results first.
        progress: called with every number of units done, those of earlier calls included.
        executor: runs the tasks, in place of `jobs` processes of this machine.
        trials: only these (label noise, trial). Their rows are stored as parts, for a call without
            `trials` to merge.
        on_rows: called in this process with the rows of a few runs once they are stored, replays
            included. What it raises ends the call.
        losses: also train selected runs again whose losses of single samples are not stored.

    Raises UserError where `outputs/` cannot be written, an earlier file is broken, or another
    process works on the same result.
    """
    executor = executor or local(jobs, pick_device(protocol.device))
    study = Study(protocol, method, executor.device, trials)
    _workspace.check_writable(study.folder.path)
    pair = (protocol.dataset, method)
    with lock_results(protocol.profile, [pair], shared=trials is not None):
        if not resume:
            study.folder.clear(protocol.fingerprint("erm"))
            study.resolve()
        return _StudyRun(study, executor, progress, on_rows, losses).run()


class _StudyRun:
    """One call of `run`: prepare, train, replay, store."""

    def __init__(
        self,
        study: Study,
        executor: Executor,
        progress: ProgressCallback,
        on_rows: OnRows,
        losses: bool,
    ):
        self.study, self.executor, self.on_rows, self.losses = study, executor, on_rows, losses
        self.folder, self.is_shard = study.folder, study.trials is not None
        path = None if self.is_shard else self.folder.progress
        total = study.total_work() + (study.losses_work() if losses else 0)
        self.progress = StudyProgress(total, study.units_per_run, progress, path)
        self.resumed = 0
        self.call_id, self.session_saved = uuid.uuid4().hex[:16], time.monotonic()

    def run(self) -> pd.DataFrame:
        """Do what is left; return all rows."""
        self.prepare()
        try:
            self.train()
            self.replay()
            if self.losses:
                self.fill_losses()
        except BaseException:
            with contextlib.suppress(UserError):  # what stopped the call is what to report
                self.save_unfinished_session()
            raise
        self.store()
        self.progress.close()
        return self.rows

    def prepare(self) -> None:
        """Train the models that the runs depend on, and find which runs are left to train."""
        study, args = self.study, (self.folder, self.executor, self.progress)
        if not self.is_shard and self.folder.take_back():
            study.resolve()
        self.ordinary = auto_theta.prepare(study.worker_protocol, study.runs, *args)
        study.resolve()
        self.rows, others = study.stored_rows()
        self.sessions = self.folder.sessions()
        self.missing_at_start = self.count_missing(self.rows)
        if not self.is_shard:
            self.set_aside(others)
        self.todo = study.with_lots(study.missing(self.rows, study.runs, study.first_epochs))
        self.held_out = heldout.prepare(study.worker_protocol, self.todo, *args)
        self.expected = study.replays_left(self.rows, self.todo)
        models = (self.ordinary + self.held_out) * study.protocol.epochs
        left = (len(self.todo) + self.expected) * study.units_per_run + models
        self.progress.add_done(study.total_work() - left)

    def set_aside(self, others: bool) -> None:
        """Move results of an edited protocol away: they are neither mixed in nor destroyed."""
        edited = self.folder.stored_fingerprint() not in (None, self.folder.fingerprint)
        if edited:
            self.folder.set_aside()
        if others:
            self.folder.set_aside(unfinished=True)
        if (edited or others) and len(self.rows):
            self.folder.save_part(self.rows)

    def train(self) -> None:
        """Train the runs that are left, measured as the first pass is."""
        study = self.study
        losses = study.loss_epochs if study.losses_in_first_pass else set()
        self.rows = merge([self.rows, *self.train_pass(self.todo, study.first_epochs, losses)])

    def replay(self) -> None:
        """Train the selected runs again, measured at every epoch of their curves."""
        study = self.study
        self.replays = study.replays(self.rows, self.todo)
        self.progress.add_done((self.expected - len(self.replays)) * study.units_per_run)
        only = {run.key for run in study.selected(self.rows)}
        self.curves = [run for run in self.replays if run.key in only]
        args = (study.replay_epochs, study.loss_epochs, only)
        first_pass = study.first_pass(self.rows)
        self.rows = merge([self.rows, *self.train_pass(self.replays, *args, first_pass=first_pass)])

    def fill_losses(self) -> None:
        """Train selected runs again whose losses are not stored; their rows stay as they are."""
        study, epochs = self.study, self.study.loss_epochs
        missing = study.without_losses(self.rows)
        runs = study.with_lots(missing)
        self.progress.add_done(study.losses_work() - len(runs) * study.units_per_run)
        self.train_pass(runs, epochs, epochs, {run.key for run in missing}, stores_rows=False)

    def train_pass(
        self,
        runs: Sequence[Run],
        epochs: set[int],
        loss_epochs: set[int],
        only: set[RunKey] | None = None,
        stores_rows: bool = True,
        first_pass: FirstPass | None = None,
    ) -> list[pd.DataFrame]:
        """Train `runs` in tasks of one label noise each; return the rows of those in `only`."""
        study, tasks = self.study, []
        for noise in study.protocol.label_noise:
            alike = [run for run in runs if run.label_noise == noise]
            if alike:
                samples = heldout.sample_inputs(study.protocol, alike, self.folder)
                chunks = study.chunks(alike, self.executor.workers)
                args = (epochs, samples, only, loss_epochs, stores_rows, first_pass)
                tasks += [TrainTask(study.worker_protocol, chunk, *args) for chunk in chunks]
        frames = []
        for rows, _ in run_tasks(self.executor, tasks, self.folder, self.progress):
            frames.append(rows)
            if not stores_rows:
                continue
            self.resumed += rows.attrs.get("resumed", 0)
            if len(rows):
                self.on_rows(rows)
            if time.monotonic() - self.session_saved > SESSION_INTERVAL:
                self.save_unfinished_session()
        return frames

    def store(self) -> None:
        """Write the table and its provenance; of a shard only the session, its rows are stored."""
        todo, replays = len(self.todo), len(self.replays)
        worked = bool(todo or replays)
        if worked or not (self.is_shard or self.sessions):
            seconds = self.progress.seconds()
            resumed = self.resumed / self.study.protocol.epochs
            trained = todo + replays + self.ordinary + self.held_out - resumed
            rates = {
                "runs_per_minute": round(60 * trained / seconds, 2),
                "gflops": round(self.operations(trained) / seconds / 1e9, 2),
            }
            session = self.session(seconds, todo, replays, **rates)
            self.sessions.append(session)
            self.folder.save_session(session, self.call_id)
        if self.is_shard:
            return
        sample_losses.finish(self.folder, [run.key for run in self.study.selected(self.rows)])
        if worked or not self.study.done():
            protocol = self.study.protocol
            facts = (protocol.to_dict(), protocol.fingerprint(self.study.method), protocol.seeds)
            provenance = Provenance.from_rows(self.rows, *facts, self.sessions)
            self.folder.finish(self.rows, provenance)
        else:
            self.folder.tidy()

    def save_unfinished_session(self) -> None:
        """Store the session so far, if a run has ended: a later call adds it to the provenance.

        It has no speed: runs that are under way count for nothing, their time does.
        """
        self.session_saved = time.monotonic()
        rows, _ = self.study.stored_rows()
        counts = zip(self.missing_at_start, self.count_missing(rows))
        trained, replayed = (before - now for before, now in counts)
        if trained or replayed:
            session = self.session(self.progress.seconds(), trained, replayed, stopped=True)
            self.folder.save_session(session, self.call_id)

    def count_missing(self, rows: pd.DataFrame) -> tuple[int, int]:
        """Return how many runs lack rows of the first pass, and how many those of a replay."""
        study = self.study
        first = study.missing(rows, study.runs, study.first_epochs)
        return len(first), len(study.missing(rows, study.runs, study.replay_epochs))

    def operations(self, trained: float) -> float:
        """Return the floating-point operations of so many runs and of all measurements."""
        study, work = self.study, self.study.work
        measured = len(self.todo) * len(study.first_epochs)
        measured += len(self.curves) * len(study.replay_epochs)
        return trained * study.units_per_run * work.unit + measured * work.measure

    def session(self, seconds: float, trained: int, replayed: int, **facts: object) -> Session:
        """Describe this call: what it trained, and on what."""
        optional = {
            "runs_for_theta": self.ordinary,
            "runs_for_samples": self.held_out,
            "epochs_resumed": self.resumed,
        }
        return Session.now(
            seconds,
            self.executor.describe(),
            runs_trained=trained,
            runs_replayed=replayed,
            jobs=self.executor.workers,
            **{name: count for name, count in optional.items() if count},
            **facts,
        )
