"""Train what is left of a study: all runs once, the selected runs again for their curves, and store them."""

import math
import subprocess
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import loky
import numpy as np
import pandas as pd
from tqdm import tqdm

from softadlib import _files
from softadlib._validation import whole
from softadlib.trainer.device import pick_device
from softadlib.trainer.evaluation import MEASURES
from softadlib.workbook.studies import selection
from softadlib.workbook.studies.parquet import merge
from softadlib.workbook.studies.protocol import Protocol, Run
from softadlib.workbook.studies.provenance import Session
from softadlib.workbook.studies.read import measured_rows
from softadlib.workbook.studies.schema import RUN_KEY, run_keys
from softadlib.workbook.studies.store import StudyStore
from softadlib.workbook.studies.study import Study, refuse_other_protocol
from softadlib.workbook.studies.train_runs import train_runs, trained_at_once
from softadlib.workbook.studies.workers import as_they_end, workers

RUNS_PER_TASK = 8
"""Runs per task on a CPU. A crash loses at most this many."""


def run_study(
    study: Study, *, jobs: int | None = None, executor: Executor | None = None
) -> pd.DataFrame:
    """Do what is left of a study and return all rows of its runs.

    Args:
        study: what to train.
        jobs: processes on a CPU, one thread each; None is one per core. A GPU has one.
        executor: runs the tasks in place of `jobs` processes; on a cluster
            `dask.distributed.Client(address).get_executor()`.

    Raises UserError where `outputs/` cannot be written, holds results of another protocol or a broken
    file, or where another process works on the same study.
    """
    jobs = loky.cpu_count() if jobs is None else whole("jobs", jobs, 1)
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
        # Another command may have trained runs before this one had the lock.
        study = study.refreshed()
        jobs = min(jobs, max(study.left, 1)) if protocol.device == "cpu" else 1
        session = Session.begin(jobs, commit())
        with workers(jobs, executor) as pool, progress_bar(study) as bar:
            for is_replay in (False, True):
                session = train_pass(study, protocol, is_replay, session, pool, bar)
                study = study.refreshed() if study.todo else study
        if study.is_whole:
            put_together(study, session)
    return stored_rows(study)


def start_anew(study: Study) -> Study:
    """Delete what is stored of a study, and return it with all of it left to train."""
    _files.check_writable(study.store.folder)
    with study.store.lock():
        study.store.clear()
    return study.refreshed()


def train_pass(
    study: Study,
    protocol: Protocol,
    is_replay: bool,
    session: Session,
    pool: Executor | None,
    bar: Any,
) -> Session:
    """Train all runs once, or the selected ones along the way; store each chunk as it ends.

    Args:
        study: whose runs are left.
        protocol: the study's, as the processes understand it.
        is_replay: train the selected runs again.
        session: what this command has done so far.
        pool: runs the tasks; None is this process.
        bar: of progress.

    Returns the session with what was trained.
    """
    runs = study.replays if is_replay else study.todo
    epochs = protocol.curve_epochs if is_replay else study.first_epochs
    loss_epochs = protocol.loss_epochs if is_replay or study.has_curves_at_once else set()
    bar.total = bar.n + (len(runs) if is_replay else study.left)
    store = study.store
    chunks = chunks_of(protocol, runs, session.jobs)
    tasks = [
        partial(train_runs, protocol, chunk, epochs, loss_epochs, store.chunks_folder)
        for chunk in chunks
    ]
    counted = "runs_replayed" if is_replay else "runs_trained"
    ends = []
    for place, rows, where in as_they_end(tasks, pool, protocol.device):
        trained = len(chunks[place])
        session = session.now(**where, **{counted: getattr(session, counted) + trained})
        store.save_chunk(rows, study.provenance([session]), replay=is_replay)
        bar.update(trained)
        ends.append(rows[rows["epoch"] == protocol.epochs])
    if is_replay:
        warn_of_other_ends(merge(ends), store)
    return session


def chunks_of(protocol: Protocol, runs: Sequence[Run], jobs: int) -> list[list[Run]]:
    """Return the runs in chunks of one label noise each: on a CPU a few, or one where each takes long."""
    chunks = []
    for noise in protocol.label_noise:
        of_noise = [run for run in runs if run.label_noise == noise]
        if not of_noise:
            continue
        if protocol.device == "cpu" and protocol.data.cheap:
            size = min(RUNS_PER_TASK, math.ceil(len(of_noise) / (4 * jobs)))
        else:
            size = trained_at_once(protocol, of_noise[0], protocol.device)
        chunks += [of_noise[start : start + size] for start in range(0, len(of_noise), size)]
    return chunks


def stored_rows(study: Study) -> pd.DataFrame:
    """Return the stored rows of a study's runs; more may be stored, of other values and trials."""
    rows = measured_rows(study.store.rows(), study.protocol.to_dict())
    keys = {run.key for run in study.runs}
    return rows[[key in keys for key in run_keys(rows)]].reset_index(drop=True)


def put_together(study: Study, session: Session) -> None:
    """Write the study's file from what is stored in chunks."""
    store = study.store
    chunks = store.finished_chunks()
    sessions = [earlier for earlier in store.sessions() if earlier.id != session.id]
    if session.runs or not sessions:
        sessions.append(session.now())
    store.finish(store.rows(), study.provenance(sessions), chunks)


def protocol_of_workers(protocol: Protocol, executor: Executor | None) -> Protocol:
    """Return a protocol that means the same in workers, which may have another device and workbook."""
    if executor is None:
        device = device_type(protocol.device)
    else:
        device = executor.submit(device_type, protocol.device).result()
    return protocol.replace(device=device, **protocol.data.place())


def device_type(name: str) -> str:
    """Return what a device's name means in this process: "cpu" or "cuda"."""
    return pick_device(name).type


def progress_bar(study: Study) -> Any:
    """Return a bar of the trainings that are left."""
    return tqdm(
        total=study.left,
        desc=study.name,
        unit="run",
        disable=not study.left,
        mininterval=0.5 if sys.stderr.isatty() else 60,
        file=sys.stderr,
    )


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
