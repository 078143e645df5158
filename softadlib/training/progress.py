"""Report progress in units: one unit is one epoch of one run times its gradients per step."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from softadlib._validation import UserError
from softadlib._workspace import write

ProgressCallback = Callable[[int], None]
"""Called with the number of units (or, by an engine, of run epochs) just done."""


def no_progress(units: int) -> None:
    """Ignore the report."""


class StudyProgress:
    """Count the units of one study, pass them on, and write them to a file twice a second.

    Args:
        total: units of the whole study.
        units_per_run: units of one run.
        callback: called with every number of units.
        path: file that other processes read; None writes none.
    """

    def __init__(
        self, total: int, units_per_run: int, callback: ProgressCallback, path: Path | None = None
    ):
        self.total, self.units_per_run = total, units_per_run
        self.callback, self.path = callback, path
        self.count = self.already_done = 0
        self.written = 0.0
        self.started = time.monotonic()

    def add_done(self, units: int) -> None:
        """Count units of earlier calls, which say nothing about the speed of this one."""
        self.already_done += units
        self(units)

    def seconds(self) -> float:
        """Time since the start, never 0."""
        return max(time.monotonic() - self.started, 1e-3)

    def runs_per_minute(self) -> float:
        """Return the speed of this call so far."""
        runs = (self.count - self.already_done) / self.units_per_run
        return round(60 * runs / self.seconds(), 2)

    def __call__(self, units: int) -> None:
        self.count += units
        self.callback(units)
        if self.path is not None and time.monotonic() - self.written > 0.5:
            self.written = time.monotonic()
            facts = {
                "done": self.count,
                "total": self.total,
                "runs_per_minute": self.runs_per_minute(),
            }
            with contextlib.suppress(UserError):  # storing the rows reports a full disk
                write(self.path, json.dumps(facts))

    def close(self) -> None:
        """Delete the file."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
