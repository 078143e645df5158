"""Who does a study's tasks: this process, several of this machine, or (`cluster.Ray`) others' machines."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import torch

from . import protocol
from .hardware import pick_device

Result = TypeVar("Result")


class Executor(Protocol):
    """Hands out tasks and brings back what comes of them, in any order."""

    workers: int
    writes: bool
    """Whether those who do the tasks can write this `outputs/`; otherwise the caller does."""

    def device(self, wanted: protocol.Protocol) -> torch.device:
        """What the tasks of a protocol will run on. Raises UserError where it is not there."""

    def map(self, function: Callable[..., Result], tasks: Iterable[tuple]) -> Iterator[Result]:
        """`function(*task)` of every task, as each is done."""

    def facts(self) -> dict[str, Any]:
        """For the provenance: what differs from the caller's own machine."""


class Here:
    """This process, one task after another; a tick is heard at once."""

    workers, writes = 1, True

    def device(self, wanted: protocol.Protocol) -> torch.device:
        """Of this machine."""
        return pick_device(wanted.device)

    def map(self, function: Callable[..., Result], tasks: Iterable[tuple]) -> Iterator[Result]:
        """One by one."""
        return (function(*task) for task in tasks)

    def facts(self) -> dict[str, Any]:
        """Nothing differs."""
        return {}


class Processes(Here):
    """`jobs` processes of this machine."""

    def __init__(self, jobs: int):
        self.workers = jobs

    def map(self, function: Callable[..., Result], tasks: Iterable[tuple]) -> Iterator[Result]:
        """As they end; one task alone is done here."""
        tasks = list(tasks)
        if len(tasks) < 2:
            return super().map(function, tasks)
        from joblib import Parallel, delayed

        calls = (delayed(function)(*task) for task in tasks)
        return Parallel(n_jobs=self.workers, return_as="generator_unordered", batch_size=1)(calls)


def local(jobs: int, device: torch.device) -> Here:
    """On a CPU `jobs` processes; whoever has a GPU keeps it to himself."""
    return Processes(jobs) if jobs > 1 and device.type == "cpu" else Here()
