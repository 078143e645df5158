"""Child processes that end with their parent, and SIGTERM that ends a command as Ctrl-C does."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Result = TypeVar("Result")
_watched: set[int] = set()


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


@contextlib.contextmanager
def stopped_by_term() -> Iterator[None]:
    """Let SIGTERM end the block the way Ctrl-C does, once; a second one ends the process."""

    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise SigTerm

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
