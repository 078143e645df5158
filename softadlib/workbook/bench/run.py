"""`softad bench`: time the published loop and ours in turns, in one run on one machine.

Two layouts. `as-shipped` is each as its user meets it: the published loop one run at a time with all
threads of the machine, ours one process per core with one thread each. `same` gives the published loop
our layout, so that what is left is the code. An accelerator is one process's either way.
"""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from softadlib import __version__
from softadlib._validation import choose
from softadlib.methods import METHODS
from softadlib.training.device import device_name, pick_device, processor_name
from softadlib.training.protocol import Run
from softadlib.workbook.bench import peaks
from softadlib.workbook.bench.cases import CASES, STUDY, Case, Seconds, cases, side_of, work_through
from softadlib.workbook.bench.lines import heading, range_text, readable, row_line

LAYOUTS = ("as-shipped", "same")
TABLES = ("methods", "growth")
"""What is timed beside the cases: a step of each method, and growth with runs, epochs and width."""
NAMES = (*CASES, *TABLES)
BUDGET = 240.0
"""Seconds for everything: a row begins no round that would end after its share."""
ROW_BUDGET = 40.0
"""Seconds for a row at most, where few are asked for."""
BUSY = 0.5
"""Processes per core that wait to run, from which the machine is too busy for a timing."""


def load_warning() -> str:
    """Say that other processes are at work on this machine; nothing where it is idle."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < BUSY * cores:
        return ""
    return f"the load is {load:.1f} on {cores} cores: compare CPU times, wall times are unreliable"


class Bench:
    """All cases on one device.

    Args:
        device: as of `pick_device`.
        rounds: of each case at most, fewer where time is up; both sides take turns.
        say: gets a line as each row ends.
        save: gets the table as each row ends.
    """

    def __init__(
        self,
        device: str,
        rounds: int,
        say: Callable[[str], None] = lambda line: None,
        save: Callable[[dict[str, Any]], object] = lambda table: None,
    ):
        self.device, self.rounds, self.say, self.save = pick_device(device), rounds, say, save
        self.cores = os.cpu_count() or 1
        self.on_cpu = self.device.type == "cpu"
        self.processes = self.cores if self.on_cpu else 1
        self.pool: ProcessPoolExecutor | None = None
        self.deadline, self.rows_left = time.monotonic() + BUDGET, 1

    def _timed(self, case: Case, who: str, count: int, layout: str) -> Seconds:
        """Time `count` runs."""
        alone = who == "published" and layout == "as-shipped"
        processes, threads = (1, self.cores) if alone else (self.processes, 1)
        steps: list[tuple[list[Run], str]] = [(case.runs(count), case.evals)]
        if who == "ours" and case.replay:
            # A CPU trains the selected again. A GPU trains all again, and measures the selected.
            again = (STUDY["trials"], "all") if self.on_cpu else (count, "selected")
            steps = [(case.runs(count), "end"), (case.runs(again[0]), again[1])]
        wall = cpu = 0.0
        share = 1.0
        for runs, evals in steps:
            parts = [runs[i::processes] for i in range(processes)]
            jobs = [(case, who, part, evals, threads) for part in parts if part]
            seconds = self._work(jobs)
            wall += max(s.wall for s in seconds)
            cpu += sum(s.cpu for s in seconds)
            if self.on_cpu and threads == 1:
                share = min(share, *(s.share for s in seconds))
        return Seconds(wall, cpu, share)

    def _work(self, jobs: list[tuple[Any, ...]]) -> list[Seconds]:
        if self.pool is None:
            return [work_through(*job) for job in jobs]
        return list(self.pool.map(work_through, *zip(*jobs)))

    def _alternate(self, case: Case, layouts: Sequence[str]) -> dict[str, list[Seconds]]:
        """Time ours, and the published loop in each layout, in turns; seconds are those of one run.

        At least one round. Ours has one layout: a process for each core.
        """
        started = time.monotonic()
        share = len(layouts) * min(ROW_BUDGET, (self.deadline - started) / self.rows_left)
        warm = dataclasses.replace(case, epochs=min(case.epochs, 1), replay=False)
        # Ours is the second of three, so that neither layout is farther from it.
        sides = [(layout, "published", layout, *case.shortened()) for layout in layouts]
        sides.insert(1, ("ours", "ours", layouts[-1], case, 1.0))
        times: dict[str, list[Seconds]] = {side: [] for side, *_ in sides}
        for _, who, layout, *_ in sides:
            self._timed(warm, who, self.processes, layout)
        for _ in range(self.rounds):
            begun = time.monotonic()
            for side, who, layout, timed, factor in sides:
                count = self._counts(case, layout)[who]
                seconds = self._timed(timed, who, count, layout)
                scale = factor / count
                times[side].append(
                    Seconds(seconds.wall * scale, seconds.cpu * scale, seconds.share)
                )
            now = time.monotonic()
            if now + (now - begun) > started + share:
                break
        return times

    def rows(self, case: Case, layouts: Sequence[str]) -> list[dict[str, Any]]:
        """Return a row for each layout: medians over the rounds, and ratios of each round."""
        times = self._alternate(case, layouts)
        return [self._row(case, layout, times[layout], times["ours"]) for layout in layouts]

    def _row(
        self, case: Case, layout: str, published: list[Seconds], ours: list[Seconds]
    ) -> dict[str, Any]:
        """Compare the rounds of the published loop in one layout with ours."""
        scale = self._scale(case)
        row: dict[str, Any] = {"case": case.name, "layout": layout, "per": case.per}
        for who, all_seconds in {"published": published, "ours": ours}.items():
            row[f"{who}_s"] = statistics.median(s.wall for s in all_seconds) * scale
            row[f"{who}_cpu_s"] = statistics.median(s.cpu for s in all_seconds) * scale
        row |= _ratios("ratio", [a.wall / b.wall for a, b in zip(published, ours)])
        row |= _ratios("cpu_ratio", [a.cpu / b.cpu for a, b in zip(published, ours)])
        row["core_share"] = min(s.share for s in (*published, *ours))
        row |= {"rounds": len(ours), "runs": self._counts(case, layout), "note": case.note}
        flops = side_of(case).flops()
        row["gflops"] = flops and flops / row["ours_s"] / 1e9
        row["share_of_peak"] = flops and row["gflops"] / peaks.peak_gflops(self.device)
        return row

    def _counts(self, case: Case, layout: str) -> dict[str, int]:
        """Return how many runs each side does in a round."""
        few = max(2, self.processes)
        if case.per == "study":
            runs = STUDY["trials"] * STUDY["values"]
            at_once = 1 if layout == "as-shipped" else self.processes
            # On a GPU a few runs take about as long as all of them.
            ours = case.our_runs if self.on_cpu and case.our_runs else runs
            return {"published": at_once, "ours": ours}
        resnet = case.name == "resnet18-step"
        if not self.on_cpu:
            return {"published": few, "ours": 8 if resnet else 64}
        return {"published": few, "ours": few if resnet or case.per == "epoch" else 4 * few}

    def _scale(self, case: Case) -> float:
        """Return the factor from seconds per run to what the row stands for."""
        if case.per == "study":
            return STUDY["trials"] * STUDY["values"]
        if case.per == "step":
            train = side_of(case).trainer.splits.train.shape[1]
            return 1 / (case.epochs * -(-train // case.protocol.batch_size))
        return 1

    def table(self, names: Sequence[str] = NAMES) -> dict[str, Any]:
        """Time what is named; `say` and `save` get every row as it ends."""
        for name in names:
            choose("case", name, NAMES)
        layouts = LAYOUTS if self.on_cpu else LAYOUTS[:1]
        chosen = cases([name for name in names if name in CASES], self.device.type)
        tables = [name for name in TABLES if name in names]
        self.deadline = time.monotonic() + BUDGET
        self.rows_left = len(chosen) * len(layouts) + len(tables)
        table: dict[str, Any] = {
            "hardware": {
                "device": device_name(self.device),
                "processor": processor_name(),
                "cores": self.cores,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "softadlib": __version__,
            },
            "warning": load_warning(),
            "peaks": {
                "gflops": round(peaks.peak_gflops(self.device), 1),
                "gbps": round(peaks.peak_gbps(self.device), 1),
            },
            "step_products": peaks.step_products() if self.on_cpu else {},
            "study": STUDY,
            "rows": [],
            "growth": [],
            "methods": [],
        }
        self.say(heading(table))
        self.pool = _pool(self.processes) if self.processes > 1 else None
        try:
            for case in chosen:
                for row in self.rows(case, layouts):
                    table["rows"].append(row)
                    self.say(row_line(row))
                    self.rows_left -= 1
                self.save(table)
            for name in tables:
                table[name] = getattr(self, name)()
                self.save(table)
                self.rows_left -= 1
        finally:
            if self.pool:
                self.pool.shutdown()
        return table

    def methods(self) -> list[dict[str, Any]]:
        """Time a step of each method in our trainer, taking turns with ERM's."""
        base = cases(["train-erm"], self.device.type)[0]
        names = [m.name for m in METHODS.values() if not m.samples]
        grids = {name: (0.1,) for name in names if METHODS[name].knob}
        protocol = base.protocol.replace(grids=grids)
        count = self.processes if self.on_cpu else 64
        times: dict[str, list[float]] = {name: [] for name in names}
        ends = time.monotonic() + min(
            ROW_BUDGET, (self.deadline - time.monotonic()) / self.rows_left
        )
        for round_ in range(self.rounds + 1):  # the first one prepares
            if round_ > 1 and time.monotonic() > ends:
                break
            for name in names:
                case = dataclasses.replace(
                    base, name=f"step {name}", method=name, protocol=protocol
                )
                seconds = self._timed(case, "ours", count, "same").wall / count
                if round_:
                    times[name].append(seconds * self._scale(base))
        rows = []
        for name in names:
            ratios = [a / b for a, b in zip(times[name], times["erm"])]
            row: dict[str, Any] = {"method": name, "step_s": statistics.median(times[name])}
            row |= _ratios("over_erm", ratios) | {"gradients": METHODS[name].gradients}
            rows.append(row)
            self.say(
                f"step of {name:9} {readable(row['step_s']):>9}, {row['over_erm']:.2f} "
                f"({range_text(row['over_erm_range'])}) times ERM's, {row['gradients']} gradients"
            )
        return rows

    def growth(self) -> list[dict[str, Any]]:
        """Time ours, and estimate its memory, as runs, epochs and width grow."""
        base = cases(["train-erm"], self.device.type)[0]
        few = base.epochs // 2
        sizes = [(runs, few, "mlp4x500") for runs in (2, 4, 8, 16)]
        sizes += [(4, epochs, "mlp4x500") for epochs in (2 * few, 4 * few)]
        sizes += [(4, few, "linear"), (4, few, "mlp1x1000")]
        rows = []
        for runs, epochs, model in sizes:
            protocol = base.protocol.replace(model=model)
            name = f"growth {model}"  # its own data and networks in each process
            case = dataclasses.replace(base, name=name, epochs=epochs, protocol=protocol)
            self._timed(dataclasses.replace(case, epochs=1), "ours", self.processes, "same")
            seconds = min(self._timed(case, "ours", runs, "same").wall for _ in range(2))
            needs = side_of(case).trainer.needs(1 if self.on_cpu else runs).total
            row = {"runs": runs, "epochs": epochs, "model": model, "seconds": seconds}
            rows.append({**row, "bytes_per_process": needs})
            self.say(
                f"{model}, {runs:3} runs × {epochs:3} epochs: {readable(seconds)}, "
                f"{needs / 2**20:.0f} MiB a process"
            )
        return rows


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def _ratios(name: str, ratios: Sequence[float]) -> dict[str, Any]:
    """Return the median and the range of the rounds' ratios."""
    return {name: statistics.median(ratios), f"{name}_range": [min(ratios), max(ratios)]}
