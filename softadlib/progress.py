"""One tqdm bar over every training unit of a plan, fed by the sweeps' progress files."""

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


class Bar:
    """Context: `tasks` as (name, units, progress file); call `finished` as each of them ends.

    Off a terminal nothing is drawn. A unit is one epoch of one run times its gradients per step.
    """

    def __init__(self, tasks: Sequence[tuple[str, int, Path | None]]):
        self.tasks = {name: (units, progress) for name, units, progress in tasks}
        self.trainings = sum(units > 0 for units, _ in self.tasks.values())
        self.ended: set[str] = set()

    def __enter__(self) -> "Bar":
        from tqdm import tqdm

        form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
        total = max(sum(units for units, _ in self.tasks.values()), 1)
        before = sum(map(self._done, self.tasks))  # of a call cut short: not this one's speed
        self.bar = tqdm(total=total, initial=before, desc="training", bar_format=form, disable=None)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc) -> None:
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
    return [f"{rate:.3g} runs/min", f"{share:.0%} of peak"] if rate else []
