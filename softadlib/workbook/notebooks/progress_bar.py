"""One tqdm bar over all notebooks of a plan, fed by the progress files of their studies."""

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any


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
        before = sum(map(self._done, self.tasks))  # work of an interrupted call
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
        """Count a task as ended, and print its complaint at once."""
        self.ended.add(name)
        if complaint:
            self.bar.write(f"softad: {complaint}", file=sys.stderr)
        self._show()

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            self._show()

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
        units = self.tasks[name][0]
        return units if name in self.ended else min(self._read(name).get("done", 0), units)

    def _show(self) -> None:
        done = sum(map(self._done, self.tasks))
        rate = sum(self._read(name).get("runs_per_minute", 0) for name in self.tasks)
        trained = sum(self.tasks[name][0] > 0 for name in self.ended)
        self.bar.set_description_str(
            "training" if trained < self.trainings else "drawing", refresh=False
        )
        parts = [f"notebooks {len(self.ended)}/{len(self.tasks)}"]
        parts += [f"{rate:.3g} runs/min"] if rate else []
        self.bar.set_postfix_str(", ".join(parts), refresh=False)
        self.bar.n = max(done, self.bar.n)
        self.bar.refresh()
