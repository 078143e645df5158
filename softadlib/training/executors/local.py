"""Who does a study's tasks: this process, several of this machine, or a cluster (`cluster.RayExecutor`)."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from softadlib import _workspace
from softadlib.data import images
from softadlib.results.folder import ResultFolder
from softadlib.training.device import machine
from softadlib.training.executors import processes

Result = TypeVar("Result")


class Executor(Protocol):
    """Hands out tasks and brings back what comes of them, in any order."""

    workers: int
    where: torch.device
    """What the tasks run on."""
    writes: bool
    """Whether those who do the tasks can write this `outputs/`; otherwise the caller does."""

    def checkpoints(self, place: ResultFolder) -> Path | None:
        """The folder of the checkpoints of tasks under way; None where they keep none."""

    def map(self, function: Callable[..., Result], tasks: Iterable[tuple]) -> Iterator[Result]:
        """`function(*task)` of every task, as each is done."""

    def facts(self) -> dict[str, Any]:
        """For the provenance: on what, and with which versions, the tasks so far were done."""


class SerialExecutor:
    """This process, one task after another; a tick is heard at once."""

    writes = True

    def __init__(self, where: torch.device, workers: int = 1):
        self.where, self.workers = where, workers

    def checkpoints(self, place: ResultFolder) -> Path | None:
        """The one in the folder itself."""
        return place.checkpoints

    def map(self, function: Callable[..., Result], tasks: Iterable[tuple]) -> Iterator[Result]:
        """One by one."""
        return (function(*task) for task in tasks)

    def facts(self) -> dict[str, Any]:
        """Of this machine."""
        return machine(self.where)


class ProcessExecutor(SerialExecutor):
    """Several processes of this machine."""

    def map(self, function: Callable[..., Result], tasks: Iterable[tuple]) -> Iterator[Result]:
        """As they end; one task alone is done here."""
        tasks = list(tasks)
        if len(tasks) < 2:
            return super().map(function, tasks)
        from joblib import Parallel, delayed

        mine = (os.getpid(), str(_workspace.home()), str(images.data_root()))
        calls = (delayed(_ours)(*mine, function, *task) for task in tasks)
        return Parallel(n_jobs=self.workers, return_as="generator_unordered", batch_size=1)(calls)


def _ours(parent: int, home: str, data: str, function: Callable[..., Result], *task: Any) -> Result:
    """In a process that `parent` started, perhaps when its folders were others."""
    os.environ.update(SOFTAD_HOME=home, SOFTAD_DATA=data)
    return processes.following(parent, function, *task)


def local(jobs: int, where: torch.device) -> SerialExecutor:
    """On a CPU `jobs` processes; whoever has a GPU keeps it to himself."""
    return (
        ProcessExecutor(where, jobs) if jobs > 1 and where.type == "cpu" else SerialExecutor(where)
    )
