"""How far a command is: one tqdm bar on a terminal, plain lines off it."""

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EVERY = 60.0
"""Seconds between two plain lines where nothing finishes."""
BAR_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"


def duration(seconds: float) -> str:
    """Return 12 s, 4 min, 3 h, 12 days."""
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} s"


class ProgressBar:
    """Context: `tasks` as (name, units, progress file); call `finished` as each of them ends.

    `noun` says what a task is. A task without a file is followed by calls of `advance`; `stored` units
    of such tasks were done by earlier calls.
    """

    def __init__(
        self,
        tasks: Sequence[tuple[str, int, Path | None]],
        noun: str = "notebooks",
        stored: int = 0,
    ):
        self.tasks = {name: (units, progress) for name, units, progress in tasks}
        self.noun, self.total = noun, sum(units for units, _ in self.tasks.values())
        self.ended: set[str] = set()
        self.advanced = stored
        self.started = self.spoken = time.monotonic()

    def __enter__(self) -> "ProgressBar":
        from tqdm import tqdm

        self.before = self._units_done()  # work of an interrupted call
        self.bar = tqdm(
            total=max(self.total, 1), initial=self.before, bar_format=BAR_FORMAT, disable=None
        )
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.over.set()
        self.thread.join()
        if not self.bar.disable:
            self._show()
        self.bar.close()

    def advance(self, units: int) -> None:
        """Count units of a task that has no progress file."""
        self.advanced += units

    def finished(self, name: str, seconds: float | None, complaint: str = "") -> None:
        """Count a task as ended. Off a terminal print a line, on one only its complaint.

        `seconds`: None where nothing was left to train.
        """
        self.ended.add(name)
        if self.bar.disable:
            took = "was trained already" if seconds is None else f"took {duration(seconds)}"
            self._say(complaint or f"{name} {took}")
        elif complaint:
            self.bar.write(f"softad: {complaint}", file=sys.stderr)
            self._show()

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            if not self.bar.disable:
                self._show()
            elif time.monotonic() - self.spoken >= EVERY:
                self._say("under way")

    def _say(self, words: str) -> None:
        """Print one plain line with the share that is done and the time that is left."""
        self.spoken = time.monotonic()
        done = self._units_done()
        parts = [f"{len(self.ended)} of {len(self.tasks)} {self.noun}"]
        if self.total:
            parts.append(f"{done / self.total:.0%} trained")
        if self.before < done < self.total:
            rate = (done - self.before) / (self.spoken - self.started)
            parts.append(f"about {duration((self.total - done) / rate)} left")
        print(f"softad: {words} ({', '.join(parts)})", file=sys.stderr, flush=True)

    def _read(self, name: str) -> dict[str, Any]:
        """Return what a study under way reports; nothing before its start and after its end."""
        progress = self.tasks[name][1]
        if name in self.ended or progress is None:
            return {}
        try:
            facts = json.loads(progress.read_text())
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def _done(self, name: str) -> int:
        units, progress = self.tasks[name]
        if progress is None:
            return 0
        return units if name in self.ended else min(self._read(name).get("done", 0), units)

    def _units_done(self) -> int:
        return min(sum(map(self._done, self.tasks)) + self.advanced, self.total)

    def _show(self) -> None:
        rate = sum(self._read(name).get("runs_per_minute", 0) for name in self.tasks)
        parts = [f"{self.noun} {len(self.ended)}/{len(self.tasks)}"]
        parts += [f"{rate:.3g} runs/min"] if rate else []
        done = self._units_done()
        self.bar.set_description_str("training" if done < self.total else "drawing", refresh=False)
        self.bar.set_postfix_str(", ".join(parts), refresh=False)
        self.bar.n = max(done, self.bar.n)
        self.bar.refresh()
