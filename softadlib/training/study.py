"""A study is one dataset × method: train what is missing, select, train the selected again, store.

The paper reads the final epoch of every run and the curves of the selected ones. So the first pass
measures the last epoch only. The replay trains the selected runs again and measures them along the
way: the same call with other runs and epochs. A run of a grid of one value is measured along the way
at once.
"""

import os
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from softadlib import __version__, _workspace
from softadlib._validation import UserError
from softadlib.data.images import own_folder
from softadlib.data.synthetic import SYNTHETIC
from softadlib.data.tables import table_file
from softadlib.results import selection
from softadlib.results.schema import MEASURES, RUN_KEY, missing_keys, run_keys
from softadlib.results.store import Facts, Session, StudyStore, held_out_name, merge
from softadlib.training.chunk import Samples, train_runs, trained_alone
from softadlib.training.device import machine, pick_device
from softadlib.training.heldout import held_out_losses, needs_held_out, stored_samples
from softadlib.training.protocol import Protocol, Run

CPU_CHUNK = 8
"""Most runs that a process takes at a time on a CPU: what an accident may cost."""
GPU_CHUNK = 64
"""Most runs that a GPU trains side by side: more are hardly faster, and an accident costs them all."""
MALLOC = {"mmap_threshold": 2**25, "trim_threshold": 2**28, "hugetlb": 1}
"""glibc's limits in bytes for workers: they keep freed memory, where a step would ask for it anew."""
_ONE_TASK = threading.Lock()


@dataclass(frozen=True)
class Plan:
    """What is left of a study."""

    runs: Sequence[Run]
    """All runs of the protocol, or of a shard of its trials."""
    todo: Sequence[Run]
    """Runs without a row at every epoch of the first pass."""
    replays: Sequence[Run]
    """Selected runs whose curves are missing; where runs are left, at most one a trial more."""
    open_trials: int
    """Trials whose selection is open, since runs are left."""

    @property
    def trained(self) -> int:
        """How many runs are trained."""
        return len(self.runs) - len(self.todo)

    @property
    def left(self) -> int:
        """How many trainings are left at most, replays included."""
        return len(self.todo) + len(self.replays) + self.open_trials


def first_epochs(protocol: Protocol, method: str) -> set[int]:
    """Return the epochs at which every run is measured."""
    single = len(protocol.grids.get(method, ())) < 2
    if protocol.curves == "all" or (protocol.curves == "selected" and single):
        return protocol.curve_epochs
    return {protocol.epochs}


def plan_study(
    protocol: Protocol,
    method: str,
    rows: pd.DataFrame,
    losses: pd.DataFrame,
    shard: tuple[int, int] = (1, 1),
) -> Plan:
    """Return what is left of a study, given its stored rows and losses.

    `shard` (i, N) takes every N-th trial, from the i-th on.
    """
    which, count = shard
    runs = [run for run in protocol.runs(method) if run.trial % count == which - 1]
    first = first_epochs(protocol, method)
    measured_once = protocol.curves == "selected" and first == protocol.curve_epochs
    at_once = protocol.best_epoch or measured_once
    todo = _missing(runs, rows, first, losses if at_once else None)
    if protocol.curves != "selected" or measured_once:
        return Plan(runs, todo, [], 0)
    open_trials = {(run.label_noise, run.trial) for run in todo}
    keys = {run.key for run in runs if (run.label_noise, run.trial) not in open_trials}
    known = rows[[key in keys for key in run_keys(rows)]]
    chosen = set(run_keys(selection.select(known, protocol.ties))) if len(known) else set()
    selected = [run for run in runs if run.key in chosen]
    replays = _missing(selected, rows, protocol.curve_epochs, losses)
    return Plan(runs, todo, replays, len(open_trials))


def _missing(
    runs: Sequence[Run],
    rows: pd.DataFrame,
    epochs: Collection[int],
    losses: pd.DataFrame | None = None,
) -> list[Run]:
    """Return the runs that lack rows of some epochs, or losses of single samples of the last one."""
    keys = missing_keys(rows, [run.key for run in runs], epochs)
    if losses is not None:
        keys |= missing_keys(losses, [run.key for run in runs], {max(epochs)})
    return [run for run in runs if run.key in keys]


def store_of(protocol: Protocol, method: str) -> StudyStore:
    """Return where a study's results are stored."""
    fingerprint = protocol.fingerprint(method)
    return StudyStore(protocol.profile, protocol.dataset, method, fingerprint)


def is_finished(protocol: Protocol, method: str, plan: Plan, store: StudyStore) -> bool:
    """Tell whether nothing is left: no run, and the table is written for this very protocol."""
    if plan.left or store.finished_parts() or (facts := store.facts()) is None:
        return False
    # The fingerprint holds the method's own settings, and grids of other methods do not matter.
    # A field that is younger than the stored results has its default there.
    defaults = {name: field.default for name, field in Protocol.model_fields.items()}
    asked, stored = (
        {**defaults, **values, "settings": None, "grids": values["grids"].get(method)}
        for values in (protocol.to_dict(), facts.protocol)
    )
    return asked == stored


def run_study(
    protocol: Protocol,
    method: str,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    shard: tuple[int, int] = (1, 1),
    resume: bool = True,
) -> pd.DataFrame:
    """Do what is left of one dataset × method and return all its rows.

    Args:
        protocol: what to train.
        method: one of the protocol's.
        jobs: processes on a CPU, one thread each; a GPU has one.
        executor: runs the parts of the study in place of `jobs` processes; on a cluster
            `dask.distributed.Client(address).get_executor()`.
        shard: (i, N) trains every N-th trial, from the i-th on. Its rows are stored as parts, for a
            call without `shard` to put together.
        resume: False deletes earlier results of this protocol first.

    Raises UserError where `outputs/` cannot be written, a stored file is broken, or another process
    works on the same study.
    """
    store = store_of(protocol, method)
    _workspace.check_writable(store.folder)
    if shard != (1, 1):
        if not resume:
            raise UserError("resume=False deletes what other shards did; leave one of the two out")
        return _StudyRun(protocol, method, store, jobs, executor, shard).run()
    with store.lock():
        store.delete_temporary_files()
        if not resume:
            store.clear()
        return _StudyRun(protocol, method, store, jobs, executor, shard).run()


class _StudyRun:
    """One call of `run_study`."""

    def __init__(
        self,
        protocol: Protocol,
        method: str,
        store: StudyStore,
        jobs: int,
        executor: Executor | None,
        shard: tuple[int, int],
    ):
        self.protocol, self.method, self.store = protocol, method, store
        self.shard, self.executor = shard, executor
        if executor is None:
            device = pick_device(protocol.device).type
        else:  # workers may have another device than this machine
            home = str(_workspace.home())
            device = executor.submit(_device_of_worker, home, protocol.device).result()
        # Workers may have another workbook's root.
        changes = {"device": device}
        if protocol.folder:
            changes["folder"] = str(own_folder(protocol.folder))
        if protocol.table:
            changes["table"] = str(table_file(protocol.table))
        self.worker_protocol = protocol.replace(**changes)
        self.jobs = jobs if device == "cpu" else 1
        self.started, self.id = time.monotonic(), uuid.uuid4().hex[:16]
        self.trained = self.replayed = 0
        self.machine: dict[str, Any] = {}

    def run(self) -> pd.DataFrame:
        protocol, store = self.protocol, self.store
        rows = store.rows()
        plan = plan_study(protocol, self.method, rows, store.losses(), self.shard)
        if is_finished(protocol, self.method, plan, store) and self.shard == (1, 1):
            mark_as_last(store, locked=True)
            return self._rows_of(rows, plan)
        bar = tqdm(
            total=plan.left,
            desc=f"{protocol.dataset} × {self.method}",
            unit="run",
            disable=not plan.left,
            mininterval=0.5 if sys.stderr.isatty() else 60,
            file=sys.stderr,
        )
        with bar, self._pool() as pool:
            first = first_epochs(protocol, self.method)
            losses = protocol.loss_epochs if first == protocol.curve_epochs else set()
            losses = losses if protocol.curves == "selected" else set()
            self._hold_out(plan.todo, pool)
            self._train(plan.todo, first, losses, pool, bar)
            rows = store.rows()
            plan = plan_study(protocol, self.method, rows, store.losses(), self.shard)
            bar.total = bar.n + len(plan.replays)
            self._hold_out(plan.replays, pool)
            epochs = protocol.curve_epochs
            self._train(plan.replays, epochs, protocol.loss_epochs, pool, bar, rows)
        parts, rows = store.finished_parts(), store.rows()
        if self.shard == (1, 1):
            self._finish(rows, parts)
        return self._rows_of(rows, plan)

    def _rows_of(self, rows: pd.DataFrame, plan: Plan) -> pd.DataFrame:
        """Return the rows of this protocol's runs; more may be stored, of other grids."""
        keys = {run.key for run in plan.runs}
        return rows[[key in keys for key in run_keys(rows)]].reset_index(drop=True)

    def _train(
        self,
        runs: Sequence[Run],
        epochs: set[int],
        loss_epochs: set[int],
        pool: Executor | None,
        bar: Any,
        first_pass: pd.DataFrame | None = None,
    ) -> None:
        """Train runs in chunks and store each chunk as it ends.

        `first_pass`: rows that exist; of a replay its last epoch is not stored again.
        """
        replayed, tasks = [], list(self._tasks(runs, epochs, loss_epochs))
        for chunk, (rows, losses) in self._map(train_runs, tasks, pool):
            if first_pass is not None:
                replayed.append(rows)
                rows = rows[rows["epoch"] < self.protocol.epochs]
                self.replayed += len(chunk)
            else:
                self.trained += len(chunk)
            self.store.save_part(rows, losses, self._session())
            bar.update(len(chunk))
        if first_pass is not None and replayed:
            _compare(merge(replayed), first_pass, self.store)

    def _tasks(
        self, runs: Sequence[Run], epochs: set[int], loss_epochs: set[int]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of `train_runs` for every chunk of runs."""
        protocol = self.worker_protocol
        for noise in protocol.label_noise:
            alike = [run for run in runs if run.label_noise == noise]
            samples: Samples | None = None
            if alike and needs_held_out(self.method):
                trials = {run.trial for run in alike}
                samples = stored_samples(protocol, noise, trials, self.store)
            for chunk in self._split(alike):
                yield protocol, chunk, epochs, loss_epochs, samples, self.store.parts

    def _map(
        self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], pool: Executor | None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield (second argument, result) of every task as it ends."""
        if pool is None or (self.executor is None and len(tasks) < 2):
            for task in tasks:
                self.machine = self.machine or machine(pick_device(task[0].device))
                yield task[1], function(*task)
            return
        place = (str(_workspace.home()), str(_workspace.data_root()))
        futures = {pool.submit(_in_worker, *place, function, task): task for task in tasks}
        for future in as_completed(futures):
            self.machine, result = future.result()
            yield futures[future][1], result

    def _split(self, runs: Sequence[Run]) -> Iterator[list[Run]]:
        """Split runs into chunks: on a CPU a few for each process, one by one where each takes long."""
        protocol, device, size = self.worker_protocol, self.worker_protocol.device, GPU_CHUNK
        if device == "cpu":
            size = min(CPU_CHUNK, max(1, -(-len(runs) // (4 * self.jobs))))
        if runs and protocol.dataset not in SYNTHETIC and trained_alone(protocol, runs[0], device):
            size = 1
        for start in range(0, len(runs), size):
            yield list(runs[start : start + size])

    def _hold_out(self, runs: Sequence[Run], pool: Executor | None) -> None:
        """Compute and store the held-out losses that `runs` need and that are missing."""
        if not needs_held_out(self.method):
            return
        trials = sorted({(run.label_noise, run.trial) for run in runs})
        stored = self.store.held_out()
        missing = [trial for trial in trials if held_out_name(*trial) not in stored]
        tasks = [(self.worker_protocol, trial, self.store) for trial in missing]
        for (noise, trial), losses in self._map(_hold_out_trial, tasks, pool):
            self.store.save_held_out(noise, trial, losses)

    @contextmanager
    def _pool(self) -> Iterator[Executor | None]:
        """Yield what runs the tasks: None for this process."""
        if self.executor is not None or self.jobs < 2:
            yield self.executor
            return
        import loky

        settings = ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC.items())
        env = {"GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", settings), "OMP_NUM_THREADS": "1"}
        pool = loky.get_reusable_executor(max_workers=self.jobs, env=env, reuse="auto")
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

    @cached_property
    def _commit(self) -> str | None:
        return commit()

    def _session(self) -> Session:
        """Describe this call so far."""
        load = round(os.getloadavg()[2], 2) if hasattr(os, "getloadavg") else None
        return Session.model_validate(
            {
                "id": self.id,
                "finished": _now(),
                "seconds": round(time.monotonic() - self.started, 2),
                "runs_trained": self.trained,
                "runs_replayed": self.replayed,
                "jobs": self.jobs,
                **(self.machine or machine(pick_device(self.worker_protocol.device))),
                "cores": os.cpu_count(),
                "load": load,  # of the last 15 minutes: above `cores`, other work was under way
                "softadlib": __version__,
                "commit": self._commit,
            }
        )

    def _finish(self, rows: pd.DataFrame, parts: Sequence[Path]) -> None:
        """Write the table with its facts, and the losses of the runs that are selected."""
        worked = self.trained or self.replayed
        earlier = [session for session in self.store.sessions() if session.id != self.id]
        sessions = [*earlier, self._session()] if worked or not earlier else earlier
        facts = Facts(
            profile=self.protocol.profile,
            dataset=self.protocol.dataset,
            method=self.method,
            fingerprint=self.store.fingerprint,
            protocol=self.protocol.to_dict(),
            seeds=list(self.protocol.seeds),
            sessions=sessions,
            asked=datetime.now(UTC).isoformat(),
        )
        self.store.finish(rows, self.store.losses(), facts, parts)


def mark_as_last(store: StudyStore, *, locked: bool = False) -> None:
    """Where another protocol's results were asked for later, note that a finished study is the last one.

    `locked`: the caller holds the study's lock.
    """
    facts = store.facts()
    assert facts is not None
    others = [other.facts() for other in store.of_other_protocols()]
    if any(other and facts.last_asked <= other.last_asked for other in others):
        facts = facts.model_copy(update={"asked": datetime.now(UTC).isoformat()})
        with nullcontext() if locked else store.lock():
            parts = store.finished_parts()
            store.finish(store.rows(), store.losses(), facts, parts)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _hold_out_trial(protocol: Protocol, trial: tuple[float, int], store: StudyStore) -> np.ndarray:
    return held_out_losses(protocol, *trial, store, store.parts)


def _device_of_worker(home: str, name: str) -> str:
    os.environ["SOFTAD_HOME"] = home
    return pick_device(name).type


def _in_worker(
    home: str, data: str, function: Callable[..., Any], task: tuple[Any, ...]
) -> tuple[dict[str, str], Any]:
    """Run a task in another process, which may have had another workbook when it started.

    A dask worker may have several threads, but torch's number of threads is the process's.
    """
    with _ONE_TASK:
        os.environ.update(SOFTAD_HOME=home, SOFTAD_DATA=data)
        return machine(pick_device(task[0].device)), function(*task)


def _compare(replayed: pd.DataFrame, first_pass: pd.DataFrame, store: StudyStore) -> None:
    """Warn where a replay ends elsewhere than its run did: on another machine, torch or GPU batch."""
    last = selection.final(replayed).set_index(RUN_KEY)[list(MEASURES)]
    known = selection.final(first_pass).set_index(RUN_KEY)[list(MEASURES)].loc[last.index]
    same = np.isclose(last, known, rtol=1e-9, atol=0, equal_nan=True).all(axis=1)
    if not same.all():
        apart = (last["loss_test"] - known["loss_test"]).abs().max()
        warnings.warn(
            f"{store.folder}: {(~same).sum()} of {len(last)} runs, trained again for their curves, ended up "
            f"to {apart:.2g} nats of test loss from where they ended first, as on another machine or torch; "
            "their last epoch stays as it was",
            stacklevel=2,
        )


def commit() -> str | None:
    """Return the repository's commit, `+` where files other than results differ; None outside one."""
    git = ["git", "-C", str(_workspace.home())]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 10}
    try:
        name = subprocess.run([*git, "describe", "--always", "--abbrev=12"], check=True, **options)
        difference = [*git, "diff", "--quiet", "HEAD", "--", ".", ":!outputs"]
        changed = subprocess.run(difference, **options)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name.stdout.strip()}{'+' if changed.returncode else ''}"
