"""Tasks of a study, and the executors that run them on this machine; `ray.RayExecutor` has a cluster."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.data import images
from softadlib.results.folder import ResultFolder
from softadlib.training.device import machine
from softadlib.training.executors import processes
from softadlib.training.progress import ProgressCallback, no_progress


@dataclass(frozen=True)
class TaskContext:
    """Where a task runs."""

    folder: ResultFolder | None = None
    """Where the task stores its results; None where the caller does."""
    checkpoints: Path | None = None
    """Folder for checkpoints; None for none."""
    progress: ProgressCallback = no_progress
    """Called with the units that are done."""


class Task(Protocol):
    """A part of a study that one process does: a frozen dataclass, which travels to that process."""

    @property
    def units(self) -> int:
        """Units of progress."""

    def run(self, context: TaskContext) -> Any:
        """Return the result; store it if the context has a folder."""

    def store(self, folder: ResultFolder, result: Any) -> None:
        """Store the result, in the caller's process."""


class Executor(Protocol):
    """Runs tasks and returns their results, in any order."""

    workers: int
    device: torch.device
    """What the tasks run on."""
    shares_disk: bool
    """Whether tasks can write the caller's `outputs/`; otherwise the caller stores their results."""

    def checkpoints(self, folder: ResultFolder) -> Path | None:
        """Return the folder for checkpoints of tasks under way; None for none."""

    def map(self, tasks: Sequence[Task], context: TaskContext) -> Iterator[tuple[Task, Any]]:
        """Run every task; yield it with its result as it ends."""

    def describe(self) -> dict[str, Any]:
        """Return the machine and versions of the tasks so far, for the provenance."""


class SerialExecutor:
    """Runs one task after another in this process."""

    shares_disk = True

    def __init__(self, device: torch.device, workers: int = 1):
        self.device, self.workers = device, workers

    def checkpoints(self, folder: ResultFolder) -> Path | None:
        """Return the result folder's own."""
        return folder.checkpoints

    def map(self, tasks: Sequence[Task], context: TaskContext) -> Iterator[tuple[Task, Any]]:
        """Run every task in turn."""
        return ((task, task.run(context)) for task in tasks)

    def describe(self) -> dict[str, Any]:
        """Describe this machine."""
        return machine(self.device)


class ProcessExecutor(SerialExecutor):
    """Runs tasks in several processes of this machine."""

    def map(self, tasks: Sequence[Task], context: TaskContext) -> Iterator[tuple[Task, Any]]:
        """Run every task; a single one in this process. Raises UserError where a process is killed."""
        if len(tasks) < 2:
            yield from super().map(tasks, context)
            return
        from joblib import Parallel, delayed

        workspace = (os.getpid(), str(_workspace.home()), str(images.data_root()))
        calls = (delayed(_in_worker)(*workspace, i, task, context) for i, task in enumerate(tasks))
        parallel = Parallel(
            n_jobs=min(self.workers, len(tasks)), return_as="generator_unordered", batch_size=1
        )
        with explain_killed_worker():
            with _quiet_resource_tracker():
                results = parallel(calls)
            for i, result in results:
                yield tasks[i], result


@contextmanager
def explain_killed_worker() -> Iterator[None]:
    """Raise a UserError where one of joblib's processes was killed."""
    try:
        yield
    except BrokenProcessPool:
        raise UserError(
            "a process was killed, as the system does where memory runs out; the same command "
            "resumes, with fewer --jobs it needs less"
        ) from None


@contextmanager
def _quiet_resource_tracker() -> Iterator[None]:
    """Let loky's resource tracker, if it starts here, remove what a killed worker held unannounced."""
    before = os.environ.get("PYTHONWARNINGS")
    ours = "ignore:resource_tracker"
    os.environ["PYTHONWARNINGS"] = f"{before},{ours}" if before else ours
    try:
        yield
    finally:
        del os.environ["PYTHONWARNINGS"]
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before


def _in_worker(
    parent: int, home: str, data: str, i: int, task: Task, context: TaskContext
) -> tuple[int, Any]:
    """Run a task in a process of `parent`, which may have had another workspace when it started."""
    os.environ.update(SOFTAD_HOME=home, SOFTAD_DATA=data)
    return i, processes.run_with_parent(parent, task.run, context)


def local(jobs: int, device: torch.device) -> SerialExecutor:
    """Return an executor with `jobs` processes on a CPU, and with this one process on a GPU."""
    if jobs > 1 and device.type == "cpu":
        return ProcessExecutor(device, jobs)
    return SerialExecutor(device)


def run_tasks(
    executor: Executor, tasks: Iterable[Task], folder: ResultFolder, progress: ProgressCallback
) -> Iterator[Any]:
    """Run tasks, see their results stored in `folder`, and yield them as they end.

    A task in this process reports its units as they are done, any other one when it ends.
    """
    in_process = executor.workers == 1 and executor.shares_disk
    context = TaskContext(
        folder if executor.shares_disk else None,
        executor.checkpoints(folder),
        progress if in_process else no_progress,
    )
    for task, result in executor.map(list(tasks), context):
        if not executor.shares_disk:
            task.store(folder, result)
        if not in_process:
            progress(task.units)
        yield result


def group_trials(
    trials: Iterable[tuple[float, int]], device: torch.device
) -> list[tuple[float, tuple[int, ...]]]:
    """Return (label noise, trials) of each task: one trial on a CPU, else all, side by side."""
    groups: dict[tuple[float, int], tuple[int, ...]] = {}
    for noise, trial in sorted(trials):
        key = (noise, trial if device.type == "cpu" else 0)
        groups[key] = (*groups.get(key, ()), trial)
    return [(noise, group) for (noise, _), group in groups.items()]
