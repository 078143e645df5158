"""Train what is left of a study: all runs once, the selected runs again for their curves, and store them."""

import math
import os
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from softadlib import __version__, _files
from softadlib._validation import UserError, whole
from softadlib.models import build
from softadlib.trainer.device import machine, pick_device
from softadlib.trainer.evaluation import MEASURES
from softadlib.trainer.splits import PARTS
from softadlib.workbook.data.images import own_folder
from softadlib.workbook.data.synthetic import SYNTHETIC
from softadlib.workbook.data.tables import table_file
from softadlib.workbook.studies import selection
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.parquet import merge
from softadlib.workbook.studies.protocol import Protocol, Run
from softadlib.workbook.studies.provenance import Session
from softadlib.workbook.studies.read import measured_rows
from softadlib.workbook.studies.schema import RUN_KEY, run_keys
from softadlib.workbook.studies.store import StudyStore
from softadlib.workbook.studies.study import (
    Study,
    first_epochs,
    has_curves_at_once,
    refuse_other_protocol,
)
from softadlib.workbook.studies.train_runs import train_runs, trained_at_once

RUNS_PER_TASK = 8
"""Runs per task on a CPU. A crash loses at most this many."""
WORTH_WORKERS = 20.0
"""Seconds of training below which a study is trained in this process: workers take 5 s each to start."""
_ONE_TASK = threading.Lock()


@dataclass(frozen=True)
class Task:
    """One unit of work for a process."""

    runs: Sequence[Run]
    """The runs that it trains, of one method and label noise."""
    device: str
    work: Callable[[], Any]


@dataclass(frozen=True)
class Pass:
    """Runs that are trained with the same measurements."""

    runs: Sequence[Run]
    epochs: set[int]
    loss_epochs: set[int]
    is_replay: bool
    left: int
    """Trainings that are left at most, those of a later pass included."""


@dataclass
class SessionLog:
    """What this command has done for a study so far."""

    jobs: int
    commit: str | None
    machine: dict[str, Any] = field(default_factory=dict)
    """Where the last task ran."""
    runs_trained: int = 0
    runs_replayed: int = 0
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    started: float = field(default_factory=time.monotonic)
    announced: bool = False
    """Whether the first task has ended, after which is said how long the others take."""

    @property
    def runs(self) -> int:
        """Number of trainings, replays included."""
        return self.runs_trained + self.runs_replayed

    @property
    def seconds(self) -> float:
        """Time since it began."""
        return time.monotonic() - self.started

    def session(self) -> Session:
        """Describe it as it is stored."""
        load = round(os.getloadavg()[2], 2) if hasattr(os, "getloadavg") else None
        return Session.model_validate(
            {
                "id": self.id,
                "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "seconds": round(self.seconds, 2),
                "runs_trained": self.runs_trained,
                "runs_replayed": self.runs_replayed,
                "jobs": self.jobs,
                **(self.machine or machine(pick_device("cpu"))),
                "cores": os.cpu_count(),
                "load": load,  # of the last 15 minutes: above `cores`, other work was under way
                "softadlib": __version__,
                "commit": self.commit,
            }
        )


def run_study(study: Study, *, jobs: int = 1, executor: Executor | None = None) -> pd.DataFrame:
    """Do what is left of a study and return all rows of its runs.

    Args:
        study: what to train.
        jobs: processes on a CPU, one thread each; a GPU has one. A study that takes seconds uses one.
        executor: runs the tasks in place of `jobs` processes; on a cluster
            `dask.distributed.Client(address).get_executor()`.

    Raises UserError where `outputs/` cannot be written, holds results of another protocol or a broken
    file, or where another process works on the same study.
    """
    whole("jobs", jobs, 1)
    if study.fresh:
        study = start_anew(study)
    else:
        refuse_other_protocol(study)
    if study.finished:
        return stored_rows(study)
    store = study.store
    _files.check_writable(store.folder)
    with store.lock() if study.is_whole else nullcontext():
        if study.is_whole:
            store.delete_temporary_files()
        protocol = protocol_of_workers(study.protocol, executor)
        log = SessionLog(useful_jobs(study, protocol.device, jobs), commit())
        with workers(log.jobs, executor) as pool, progress_bar(study) as bar:
            for planned in passes(study):
                bar.total = bar.n + planned.left
                ends = []
                tasks = training_tasks(study, protocol, planned, log.jobs)
                for task, rows in as_they_end(tasks, pool, log):
                    if planned.is_replay:
                        log.runs_replayed += len(task.runs)
                    else:
                        log.runs_trained += len(task.runs)
                    provenance = study.provenance([log.session()])
                    store.save_part(rows, provenance, replay=planned.is_replay)
                    bar.update(len(task.runs))
                    announce(bar, log)
                    ends.append(rows[rows["epoch"] == protocol.epochs])
                if planned.is_replay:
                    warn_of_other_ends(merge(ends), store)
        if study.is_whole:
            put_together(study, log)
    return stored_rows(study)


def start_anew(study: Study) -> Study:
    """Delete what is stored of a study, and return it with all of it left to train."""
    _files.check_writable(study.store.folder)
    with study.store.lock():
        study.store.clear()
    return study.as_it_is_now()


def passes(study: Study) -> Iterator[Pass]:
    """Yield what is left to train: all runs once, then the selected ones along the way."""
    protocol = study.protocol
    epochs = first_epochs(protocol, study.method)
    at_once = has_curves_at_once(protocol, study.method)
    loss_epochs = protocol.loss_epochs if at_once else set()
    # Plan again under the lock: another command may have trained runs in the meantime.
    plan = study.as_it_is_now().plan
    yield Pass(plan.todo, epochs, loss_epochs, is_replay=False, left=plan.left)
    if plan.todo:
        plan = study.as_it_is_now().plan
    measured = (protocol.curve_epochs, protocol.loss_epochs)
    yield Pass(plan.replays, *measured, is_replay=True, left=plan.left)


def stored_rows(study: Study) -> pd.DataFrame:
    """Return the stored rows of a study's runs; more may be stored, of other values and trials."""
    rows = measured_rows(study.store.rows(), study.protocol.to_dict())
    keys = {run.key for run in study.plan.runs}
    return rows[[key in keys for key in run_keys(rows)]].reset_index(drop=True)


def put_together(study: Study, log: SessionLog) -> None:
    """Write the study's file from what is stored in parts."""
    store = study.store
    parts = store.finished_parts()
    sessions = [session for session in store.sessions() if session.id != log.id]
    if log.runs or not sessions:
        sessions.append(log.session())
    store.finish(store.rows(), study.provenance(sessions), parts)


# Tasks


def training_tasks(study: Study, protocol: Protocol, planned: Pass, jobs: int) -> list[Task]:
    """Return the tasks of a pass: runs of one label noise each."""
    parts = study.store.parts
    tasks = []
    for noise in protocol.label_noise:
        runs = [run for run in planned.runs if run.label_noise == noise]
        if not runs:
            continue
        size = runs_per_task(protocol, runs, jobs)
        for start in range(0, len(runs), size):
            chunk = runs[start : start + size]
            measured = (planned.epochs, planned.loss_epochs)
            work = partial(train_runs, protocol, chunk, *measured, parts)
            tasks.append(Task(chunk, protocol.device, work))
    return tasks


def runs_per_task(protocol: Protocol, runs: Sequence[Run], jobs: int) -> int:
    """Return how many of `runs` a task takes: on a CPU a few, or one where each takes long."""
    if protocol.device == "cpu" and protocol.dataset in SYNTHETIC:
        return min(RUNS_PER_TASK, math.ceil(len(runs) / (4 * jobs)))
    return trained_at_once(protocol, runs[0], protocol.device)


def as_they_end(
    tasks: Sequence[Task], pool: Executor | None, log: SessionLog
) -> Iterator[tuple[Task, Any]]:
    """Run tasks, in this process where there is no pool; yield each with its result as it ends."""
    if pool is None:
        for task in tasks:
            log.machine = log.machine or machine(pick_device(task.device))
            yield task, task.work()
        return
    place = (str(_files.home()), str(_files.data_root()))
    futures = {pool.submit(run_in_worker, task, *place): task for task in tasks}
    for future in as_completed(futures):
        log.machine, result = future.result()
        yield futures[future], result


def run_in_worker(task: Task, home: str, data: str) -> tuple[dict[str, str], Any]:
    """Run a task in another process, which may have had another workbook when it started.

    A dask worker may have several threads, but torch's number of threads is that of the process.
    """
    with _ONE_TASK:
        os.environ.update(SOFTAD_HOME=home, SOFTAD_DATA=data)
        return machine(pick_device(task.device)), task.work()


# Workers


def protocol_of_workers(protocol: Protocol, executor: Executor | None) -> Protocol:
    """Return a protocol that means the same in workers, which may have another device and workbook."""
    if executor is None:
        device = device_type(protocol.device)
    else:
        device = executor.submit(device_type, protocol.device).result()
    changes = {"device": device}
    if protocol.folder:
        changes["folder"] = str(own_folder(protocol.folder))
    if protocol.table:
        changes["table"] = str(table_file(protocol.table))
    return protocol.replace(**changes)


def device_type(name: str) -> str:
    """Return what a device's name means in this process: "cpu" or "cuda"."""
    return pick_device(name).type


def useful_jobs(study: Study, device: str, jobs: int) -> int:
    """Return how many processes to use: one on a GPU, or if training takes only seconds."""
    if device != "cpu":
        return 1
    if jobs > 1 and estimated_seconds(study) < WORTH_WORKERS:
        return 1
    return jobs


def estimated_seconds(study: Study) -> float:
    """Return roughly how long one process takes for what is left of a study, on a CPU.

    From the multiplications of a perceptron's steps and evaluations; a convolutional network takes
    longer.
    """
    protocol = study.protocol
    splits = load_splits(protocol, protocol.label_noise[0], trials=1)
    network = build(protocol.model, splits.shape, splits.classes, seed=0)
    weights = sum(p.numel() for p in network.parameters())
    steps = protocol.epochs * math.ceil(splits.train.shape[1] / protocol.batch_size)
    seconds_per_weight = 2e-11 if protocol.dtype == "float32" else 4e-11
    seconds_per_step = 4e-4 + 6 * weights * protocol.batch_size * seconds_per_weight
    samples: int = sum(getattr(splits, part).shape[1] for part in PARTS)
    evaluations = len(first_epochs(protocol, study.method))
    seconds_per_evaluation = 2 * weights * samples * seconds_per_weight
    return study.plan.left * (steps * seconds_per_step + evaluations * seconds_per_evaluation)


@contextmanager
def workers(jobs: int, executor: Executor | None) -> Iterator[Executor | None]:
    """Yield what runs the tasks: None for this process."""
    if executor is not None or jobs < 2:
        yield executor
        return
    import loky

    pool = loky.get_reusable_executor(
        jobs,
        env={"OMP_NUM_THREADS": "1"},
        reuse="auto",
        initializer=end_with_parent,
        initargs=(os.getpid(),),
    )
    try:
        yield pool
    except BrokenProcessPool:
        raise UserError(
            "a process was killed, as the system does where memory runs out; the same command "
            "resumes, with fewer --jobs it needs less"
        ) from None
    except BaseException:
        pool.shutdown(kill_workers=True)
        raise


def end_with_parent(parent: int) -> None:
    """End this worker within seconds after its parent ends, even in the middle of a task.

    Stopping `softad run` kills the kernel, which then has no time to end its workers.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# What is said on the way


def progress_bar(study: Study) -> Any:
    """Return a bar of the trainings that are left."""
    return tqdm(
        total=study.plan.left,
        desc=study.name,
        unit="run",
        disable=not study.plan.left,
        mininterval=0.5 if sys.stderr.isatty() else 60,
        file=sys.stderr,
    )


def announce(bar: Any, log: SessionLog) -> None:
    """Say after the first task how long the others will take, where that is more than a minute."""
    left = log.seconds / log.runs * (bar.total - bar.n)
    if left > 60 and not log.announced:
        minutes = f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
        tqdm.write(
            f"softad: {bar.desc}: about {minutes} for {bar.total - bar.n} trainings; stop at any time, "
            "the same command goes on",
            file=sys.stderr,
        )
    log.announced = True


def warn_of_other_ends(replayed: pd.DataFrame, store: StudyStore) -> None:
    """Warn where a replay ends elsewhere than its run did: on another machine, torch or GPU batch."""
    if replayed.empty:
        return
    last = selection.final(replayed).set_index(RUN_KEY)[list(MEASURES)]
    known = selection.final(store.rows([])).set_index(RUN_KEY)[list(MEASURES)].loc[last.index]
    same = np.isclose(last, known, rtol=1e-9, atol=0, equal_nan=True).all(axis=1)
    if not same.all():
        apart = (last["loss_test"] - known["loss_test"]).abs().max()
        warnings.warn(
            f"{store.file}: {(~same).sum()} of {len(last)} runs, trained again for their curves, now end "
            f"differently, by up to {apart:.2g} nats of test loss, as on another machine or torch; "
            "the stored rows of their last epoch are kept",
            stacklevel=2,
        )


def commit() -> str | None:
    """Return the repository's commit, `+` where files other than results differ.

    None outside one, and where the package that runs lies elsewhere.
    """
    if not Path(__file__).resolve().is_relative_to(_files.home()):
        return None
    git = ["git", "-C", str(_files.home())]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 10}
    try:
        name = subprocess.run([*git, "describe", "--always", "--abbrev=12"], check=True, **options)
        difference = [*git, "diff", "--quiet", "HEAD", "--", ".", ":!outputs"]
        changed = subprocess.run(difference, **options)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name.stdout.strip()}{'+' if changed.returncode else ''}"
