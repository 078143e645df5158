"""Child processes that end with their parent, and SIGTERM that ends a command as Ctrl-C does."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Result = TypeVar("Result")


_followed: set[int] = set()


def follow(parent: int) -> None:
    """End this process within a second of the death of `parent`, which started it or is it."""
    if os.getpid() == parent or parent in _followed:
        return
    _followed.add(parent)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # what is stored is whole at every moment

    if os.getppid() != parent:
        watch()  # it died before this process got here
    threading.Thread(target=watch, daemon=True, name="follow").start()


def following(parent: int, work: Callable[..., Result], *args: Any) -> Result:
    """`work(*args)` in a process that `parent` started and that is not to outlive it."""
    follow(parent)
    return work(*args)


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a scheduler sends it before it kills: ends as Ctrl-C does."""


@contextlib.contextmanager
def stopped_by_term() -> Iterator[None]:
    """Let SIGTERM end what is inside the way Ctrl-C does, once; a second one ends the process."""

    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
