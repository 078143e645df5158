"""Child processes: their memory, their end with their parent, and signals that end a command."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")
_watched: set[int] = set()
_MALLOC = {"mmap_threshold": 2**25, "trim_threshold": 2**28, "hugetlb": 1}
"""glibc's limits in bytes: smaller blocks come from the heap, and so much of its free end stays; large pages."""


def keep_freed_memory() -> None:
    """Let processes that start from now on reuse freed memory, in large pages where the system has them.

    glibc otherwise returns a gradient's memory to the system when it is freed, and the next step
    takes it again page by page. It reads the variable when a process starts, so this process and
    other C libraries are left as they are. A value that the user has set stays.
    """
    limits = ":".join(f"glibc.malloc.{name}={value}" for name, value in _MALLOC.items())
    os.environ.setdefault("GLIBC_TUNABLES", limits)


def exit_with_parent(parent: int) -> None:
    """End this process within a second of the death of `parent`, which started it or is it."""
    if os.getpid() == parent or parent in _watched:
        return
    _watched.add(parent)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # stored files are whole at every moment

    if os.getppid() != parent:
        watch()  # the parent died before this process got here
    threading.Thread(target=watch, daemon=True, name="exit_with_parent").start()


def run_with_parent(parent: int, work: Callable[..., Result], *args: Any) -> Result:
    """Return `work(*args)`, in a process that `parent` started and that must not outlive it."""
    exit_with_parent(parent)
    return work(*args)


class SigTerm(KeyboardInterrupt):
    """SIGTERM, as a scheduler sends it before it kills: ends a command as Ctrl-C does."""


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def stopped_by_signals(while_importing: Callable[[KeyboardInterrupt], int]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block with `KeyboardInterrupt`.

    A SIGTERM more than a second after the first kills; `timeout` and `scancel` send two at once.
    An exception that C++ meets while a package such as torch is imported aborts the process. A
    signal that comes then ends it at once, with the status that `while_importing` returns.
    """
    first: float | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal first
        reason = KeyboardInterrupt()
        if number == signal.SIGTERM:
            if first is not None:
                if time.monotonic() - first > 1:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    os.kill(os.getpid(), signal.SIGTERM)
                return
            first, reason = time.monotonic(), SigTerm()
        if _is_importing(frame):
            os._exit(while_importing(reason))  # stored files are whole at every moment
        raise reason

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup ignores Ctrl-C
        before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
