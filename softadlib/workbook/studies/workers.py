"""Processes that run the tasks of a study: this one, those of loky, or a cluster's."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

import loky

from softadlib import _files
from softadlib._validation import UserError
from softadlib.trainer.device import machine, pick_device
from softadlib.workbook.studies import own_methods

Result = TypeVar("Result")
Machine = dict[str, str]
"""Device, versions and processor, as `trainer.device.machine` gives them."""
_ONE_TASK = threading.Lock()


@contextmanager
def workers(jobs: int, executor: Executor | None) -> Iterator[Executor | None]:
    """Yield what runs the tasks: `executor` if given, `jobs` processes, or None for this process."""
    if executor is not None or jobs < 2:
        yield executor
        return
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


def as_they_end(
    tasks: Sequence[Callable[[], Result]], pool: Executor | None, device: str
) -> Iterator[tuple[int, Result, Machine]]:
    """Run tasks on a device; yield the place of each, its result and the machine, as it ends."""
    if pool is None:
        for place, task in enumerate(tasks):
            yield place, task(), machine(pick_device(device))
        return
    home, data, modules = str(_files.home()), str(_files.data_root()), own_methods.modules()
    futures = {}
    for place, task in enumerate(tasks):
        futures[pool.submit(run_in_worker, task, device, home, data, modules)] = place
    for future in as_completed(futures):
        result, where = future.result()
        yield futures[future], result, where


def run_in_worker(
    task: Callable[[], Result], device: str, home: str, data: str, modules: Sequence[str]
) -> tuple[Result, Machine]:
    """Run a task in another process, which may have had another workbook when it started.

    A dask worker may have several threads, but torch's number of threads is that of the process.
    """
    with _ONE_TASK:
        os.environ.update(SOFTAD_HOME=home, SOFTAD_DATA=data)
        for module in modules:
            own_methods.register(module)
        return task(), machine(pick_device(device))
