"""Units as they are done: added up for each study, and one tqdm bar over all studies of a plan.

A unit is one epoch of one run times its gradients per step.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softadlib._validation import UserError
from softadlib._workspace import write
from softadlib.training.device import peak_gflops

if TYPE_CHECKING:
    from softadlib.training.study import Study

Tick = Callable[[int], None]
"""Called with the number of units just done."""


def silent(units: int) -> None:
    """Tell nobody."""


class StudyProgress:
    """Adds up a study's units, tells `tick`, and leaves them in `progress.json` twice a second at most.

    `mine`: this machine does the work, so that its peak says something. `leave`: write that file.
    """

    def __init__(self, study: "Study", tick: Tick, mine: bool = True, leave: bool = True):
        self.study, self.tick, self.total = study, tick, study.units()
        self.mine, self.leave = mine, leave
        self.per_run = study.protocol.epochs * study.gradients
        self.count, self.before, self.written = 0, 0, 0.0
        self.started = time.monotonic()

    def already(self, units: int) -> None:
        """Of earlier calls, or not needed after all: done, but not this one's speed."""
        self.before += units
        self(units)

    def speed(self, runs: float, measured: float) -> dict[str, float]:
        """Of this call so far: runs per minute, and operations as a share of the machine's best."""
        seconds = max(time.monotonic() - self.started, 1e-3)
        work = self.study.work
        gflops = (runs * self.per_run * work.unit + measured * work.measure) / seconds / 1e9
        facts = {"runs_per_minute": round(60 * runs / seconds, 2), "gflops": round(gflops, 2)}
        if self.mine:
            facts["share_of_peak"] = round(gflops / peak_gflops(self.study.device), 3)
        return facts

    def __call__(self, units: int) -> None:
        self.count += units
        self.tick(units)
        if self.leave and time.monotonic() - self.written > 0.5:
            self.written = time.monotonic()
            runs = (self.count - self.before) / self.per_run
            facts = {"done": self.count, "total": self.total, **self.speed(runs, runs)}
            with contextlib.suppress(UserError):  # a full disk is said where rows are stored
                write(self.study.place.progress, json.dumps(facts))

    def over(self) -> None:
        """Nothing is under way any more."""
        if self.leave:
            self.study.place.progress.unlink(missing_ok=True)


class ProgressBar:
    """Context: `tasks` as (name, units, progress file); call `finished` as each of them ends.

    Off a terminal nothing is drawn.
    """

    def __init__(self, tasks: Sequence[tuple[str, int, Path | None]]):
        self.tasks = {name: (units, progress) for name, units, progress in tasks}
        self.trainings = sum(units > 0 for units, _ in self.tasks.values())
        self.ended: set[str] = set()

    def __enter__(self) -> "ProgressBar":
        from tqdm import tqdm

        form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
        total = max(sum(units for units, _ in self.tasks.values()), 1)
        before = sum(map(self._done, self.tasks))  # of a call cut short: not this one's speed
        self.bar = tqdm(total=total, initial=before, desc="training", bar_format=form, disable=None)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.over.set()
        self.thread.join()
        self._show()
        self.bar.close()

    def finished(self, name: str, complaint: str = "") -> None:
        """Count a task as over, and say so at once if there is something to complain of."""
        self.ended.add(name)
        if complaint:
            self.bar.write(f"softad: {complaint}", file=sys.stderr)
        self._show()

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            self._show()

    def _read(self, name: str) -> dict:
        """What a sweep under way says of itself; nothing if not begun, or just finished."""
        progress = self.tasks[name][1]
        if name in self.ended or progress is None:
            return {}
        try:
            facts = json.loads(progress.read_text())
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def _done(self, name: str) -> int:
        units = self.tasks[name][0]
        return units if name in self.ended else min(self._read(name).get("done", 0), units)

    def _show(self) -> None:
        done = sum(map(self._done, self.tasks))
        under_way = [self._read(name) for name in self.tasks]
        trained = sum(self.tasks[name][0] > 0 for name in self.ended)
        self.bar.set_description_str(
            "training" if trained < self.trainings else "drawing", refresh=False
        )
        parts = [f"notebooks {len(self.ended)}/{len(self.tasks)}", *speed_words(under_way)]
        self.bar.set_postfix_str(", ".join(parts), refresh=False)
        self.bar.n = max(done, self.bar.n)
        self.bar.refresh()


def speed_words(under_way: Sequence[dict]) -> list[str]:
    """Runs per minute and share of the machine's peak, of all sweeps under way together."""
    rate = sum(facts.get("runs_per_minute", 0) for facts in under_way)
    share = sum(facts.get("share_of_peak", 0) for facts in under_way)
    words = [f"{rate:.3g} runs/min"] if rate else []
    return words + ([f"{share:.0%} of peak"] if share else [])
