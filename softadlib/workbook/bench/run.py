"""`softad bench`: the published loop and ours, interleaved in one run on one machine.

Two layouts: `as-shipped` is each as its user meets it, the published loop one run at a time with all
of the machine's threads, ours one process per core with one thread each. `same` gives the published
loop our layout, so that what is left is the code. An accelerator is one process's either way.
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
from softadlib.methods import METHODS
from softadlib.training import device as hardware
from softadlib.training.device import device_name
from softadlib.training.protocol import Run
from softadlib.workbook.bench.cases import STUDY, Case, cases, side_of, work_through

LAYOUTS = ("as-shipped", "same")


class Bench:
    """All cases on one device; `say` gets a line as each round ends."""

    def __init__(self, device: str, rounds: int, say: Callable[[str], None] = lambda line: None):
        self.device, self.rounds, self.say = hardware.pick_device(device), rounds, say
        self.cores = os.cpu_count() or 1
        self.processes = self.cores if self.device.type == "cpu" else 1
        self.pool: ProcessPoolExecutor | None = None

    def _timed(self, case: Case, who: str, count: int, layout: str) -> float:
        """Seconds for `count` runs in a layout."""
        alone = who == "published" and layout == "as-shipped"
        processes = 1 if alone else self.processes
        threads = self.cores if alone else 1
        evals = case.evals
        steps: list[tuple[list[Run], str]] = [(case.runs(count), evals)]
        if who == "ours" and case.replay:
            steps = [(case.runs(count), "end"), (case.runs(STUDY["trials"]), "all")]
        started = time.perf_counter()
        for runs, wanted in steps:
            shares = [runs[i::processes] for i in range(processes)]
            jobs = [(case, who, share, wanted, threads) for share in shares if share]
            self._together(jobs)
        return time.perf_counter() - started

    def _together(self, jobs: list[tuple]) -> None:
        if self.pool is None:
            for job in jobs:
                work_through(*job)
            return
        list(self.pool.map(work_through, *zip(*jobs)))

    def row(self, case: Case, layout: str) -> dict[str, Any]:
        """Medians over the rounds, both sides taking turns."""
        counts = self._counts(case, layout)
        times: dict[str, list[float]] = {"published": [], "ours": []}
        warm = dataclasses.replace(case, epochs=min(case.epochs, 1), replay=False)
        for who in times:
            self._timed(warm, who, self.processes, layout)
        for _ in range(self.rounds):
            for who in times:
                times[who].append(self._timed(case, who, counts[who], layout) / counts[who])
        scale = self._scale(case)
        seconds = {who: statistics.median(t) * scale for who, t in times.items()}
        row: dict[str, Any] = {
            "case": case.name,
            "layout": layout,
            "per": case.per,
            "published_s": seconds["published"],
            "ours_s": seconds["ours"],
            "ratio": seconds["published"] / seconds["ours"],
            "least": min(times["published"]) / min(times["ours"]),
            "rounds": self.rounds,
            "runs": counts,
            "note": case.note,
        }
        self.say(
            f"{case.name} {layout}: {_readable(row['published_s'])} against "
            f"{_readable(row['ours_s'])} per {case.per}, {row['ratio']:.2f} times"
        )
        return row

    def _counts(self, case: Case, layout: str) -> dict[str, int]:
        """How many runs each side does in a round."""
        if case.per == "study":
            runs = STUDY["trials"] * STUDY["values"]
            at_once = 1 if layout == "as-shipped" else self.processes
            return {"published": at_once, "ours": case.our_runs or runs}
        few = max(2, self.processes)
        if self.device.type != "cpu":
            return {"published": few, "ours": 64}
        return {"published": few, "ours": few if case.per == "epoch" else 4 * few}

    def _scale(self, case: Case) -> float:
        """From seconds per run to what the row stands for."""
        if case.per == "study":
            return STUDY["trials"] * STUDY["values"]
        if case.per == "step":
            train = side_of(case).sweep.splits.train.shape[1]
            return 1 / (case.epochs * -(-train // case.protocol.batch_size))
        return 1

    def table(self, names: Sequence[str]) -> dict[str, Any]:
        """Everything `--json` writes."""
        chosen = cases(names, self.device.type)
        self.pool = _pool(self.processes) if self.processes > 1 else None
        rows = []
        try:
            for case in chosen:
                layouts = LAYOUTS if self.device.type == "cpu" else LAYOUTS[:1]
                some = [self.row(case, layout) for layout in layouts]
                flops = side_of(case).flops()
                for row in some:
                    gflops = flops and flops / row["ours_s"] / 1e9
                    row["gflops"] = gflops
                    row["share_of_peak"] = gflops and gflops / hardware.peak_gflops(self.device)
                rows += some
            growth = self.growth() if "train-erm" in names else []
            methods = self.methods() if "train-erm" in names else []
        finally:
            if self.pool:
                self.pool.shutdown()
        peaks = {
            "gflops": round(hardware.peak_gflops(self.device), 1),
            "gbps": round(hardware.peak_gbps(self.device), 1),
        }
        return {
            "hardware": {
                "device": device_name(self.device),
                "cores": self.cores,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "softadlib": __version__,
            },
            "peaks": peaks,
            "study": STUDY,
            "rows": rows,
            "growth": growth,
            "methods": methods,
        }

    def methods(self) -> list[dict[str, Any]]:
        """A step of each method in our trainer, taking turns with ERM's."""
        base = cases(["train-erm"], self.device.type)[0]
        names = [m.name for m in METHODS.values() if not m.samples]
        grids = {name: (0.1,) for name in names if METHODS[name].knob}
        protocol = base.protocol.replace(grids=grids)
        of = {
            name: dataclasses.replace(base, name=f"step {name}", method=name, protocol=protocol)
            for name in names
        }
        times: dict[str, list[float]] = {name: [] for name in names}
        for round_ in range(self.rounds + 1):  # the first one prepares
            for name, case in of.items():
                seconds = self._timed(case, "ours", self.processes, "same") / self.processes
                if round_:
                    times[name].append(seconds * self._scale(base))
        erm = times["erm"]
        return [
            {
                "method": name,
                "step_s": statistics.median(times[name]),
                "over_erm": statistics.median(a / b for a, b in zip(times[name], erm)),
                "gradients": METHODS[name].gradients,
            }
            for name in names
        ]

    def growth(self) -> list[dict[str, Any]]:
        """How time and memory of ours grow with runs, epochs and width."""
        base = cases(["train-erm"], self.device.type)[0]
        sizes = [(runs, 10, "mlp4x500") for runs in (2, 4, 8, 16)]
        sizes += [(4, epochs, "mlp4x500") for epochs in (20, 40)]
        sizes += [(4, 10, "linear"), (4, 10, "mlp1x1000")]
        rows = []
        for runs, epochs, model in sizes:
            protocol = base.protocol.replace(model=model)
            name = f"growth {model}"  # its own data and networks in each process
            case = dataclasses.replace(base, name=name, epochs=epochs, protocol=protocol)
            self._timed(dataclasses.replace(case, epochs=1), "ours", self.processes, "same")
            seconds = min(self._timed(case, "ours", runs, "same") for _ in range(2))
            together = 1 if self.device.type == "cpu" else runs
            needs = side_of(case).sweep.needs(together).total
            facts = {"runs": runs, "epochs": epochs, "model": model, "seconds": seconds}
            rows.append({**facts, "bytes_per_process": needs})
        return rows


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def _readable(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def words(table: dict[str, Any]) -> str:
    """The table a person reads."""
    facts, peaks = table["hardware"], table["peaks"]
    lines = [
        f"{facts['device']}, {facts['cores']} cores, torch {facts['torch']}, "
        f"numpy {facts['numpy']}, softadlib {facts['softadlib']}",
        f"best measured here: {peaks['gflops']:.0f} GFLOP/s, {peaks['gbps']:.0f} GB/s",
        "",
        f"{'case':20} {'layout':11} {'published':>11} {'ours':>11}   {'per':6} {'ratio':>6} "
        f"{'of peak':>8}  rounds",
    ]
    for row in table["rows"]:
        share = "" if row["share_of_peak"] is None else f"{row['share_of_peak']:.0%}"
        lines.append(
            f"{row['case']:20} {row['layout']:11} {_readable(row['published_s']):>11} "
            f"{_readable(row['ours_s']):>11}   {row['per']:6} {row['ratio']:6.2f} {share:>8}  "
            f"{row['rounds']}"
        )
    lines += [f"  {row['case']}: {row['note']}" for row in table["rows"][::2] if row["note"]]
    for row in table["growth"]:
        lines.append(
            f"{row['model']}, {row['runs']:3} runs × {row['epochs']:3} epochs: "
            f"{_readable(row['seconds'])}, {row['bytes_per_process'] / 2**20:.0f} MiB a process"
        )
    for row in table["methods"]:
        lines.append(
            f"step of {row['method']:9} {_readable(row['step_s']):>9}, {row['over_erm']:.2f} times "
            f"ERM's, {row['gradients']} gradients"
        )
    return "\n".join(lines)
