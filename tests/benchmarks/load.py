"""How long 2,000 result folders take to become the tables, and the memory at the peak.

    python tests/benchmarks/load.py [--folders 2000] [--rows 10000] [--shape all] [--every-epoch]

Writes that many folders of one made-up profile in a temporary workbook (datasets of one's own ×
methods), then reads them in a fresh process. Shapes of the rows in each folder:
    small   the rows in total over all folders, all final epochs
    paper   the rows in each: final epochs of 40 runs a trial, every epoch of one of them
    curves  the rows in each: every epoch of every run
    ends    the rows in each, every one of them another run (no protocol of ours has so many)
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from softadlib.analysis import paper, tables
from softadlib.methods import METHODS
from softadlib.results import reader as store
from softadlib.results import selection
from softadlib.results.folder import ResultFolder
from softadlib.results.provenance import Provenance
from softadlib.results.schema import MEASURES
from softadlib.results.table import merge

SHAPES = ("small", "paper", "curves", "ends")


def folder_of(dataset: str, method: str, shape: str, count: int, rng: np.random.Generator):
    """About `count` rows of one dataset × method, and how many runs they are of."""
    epochs = 1 if shape in ("small", "ends") else 500
    trials, knobs, shown = {
        "small": (1, count, 1),
        "ends": (count // 40, 40, 40),
        "paper": (count // (epochs + 40), 40, 1),
        "curves": (count // epochs, 1, 1),
    }[shape]
    runs = [(t, k, k < shown) for t in range(trials) for k in range(knobs)]
    at = [(t, k / 40, e) for t, k, full in runs for e in range(1 if full else epochs, epochs + 1)]
    rows = pd.DataFrame(at, columns=["trial", "knob", "epoch"])
    rows = rows.assign(dataset=dataset, method=method, label_noise=0.0)
    rows[list(MEASURES)] = rng.random((len(rows), len(MEASURES)))
    rows["acc_val"] = rows["acc_val"].round(2)  # so that some are tied, as in 100 points
    return merge([rows]), len(runs)


def build(home: Path, folders: int, count: int, shape: str) -> tuple[int, int]:
    """Write the folders; returns rows and runs."""
    (home / "params").mkdir(parents=True)
    (home / "notebooks").mkdir()
    os.environ["SOFTAD_HOME"] = str(home)
    rng, methods, total, runs = np.random.default_rng(0), list(METHODS)[:10], 0, 0
    for i in range(folders):
        each = count if shape != "small" else max(1, count // folders)
        dataset, method = f"own{i // len(methods):04}", methods[i % len(methods)]
        rows, n = folder_of(dataset, method, shape, each, rng)
        known = {"label_noise": [0.0]}
        facts = Provenance("many", dataset, method, n, [], "f", known, [], [])
        ResultFolder("many", dataset, method, "f").finish(rows, facts)
        total, runs = total + len(rows), runs + n
    return total, runs


def peak() -> int:
    """Most memory this process has held so far, in MB; Linux."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) // 1024


def read(every_epoch: bool) -> None:
    """What the notebooks of Tables 1 and 2 do; prints seconds, peak memory and counts as JSON."""
    before = peak()
    start, cpu = time.perf_counter(), time.process_time()
    rows = store.read("many", label_noise=0.0, final=not every_epoch)
    loaded = time.perf_counter() - start
    names, methods = paper.datasets_in(rows, 1), paper.methods_in(rows)
    cells = tables.loss_gap(rows, names, methods)
    tables.hyperparameters(rows, names, [m for m in methods if METHODS[m].knob])
    done = time.perf_counter() - start
    facts = {
        "rows": len(rows),
        "runs": len(rows if not every_epoch else selection.final(rows)),
        "lines": len(cells),
        "read s": round(loaded, 2),
        "with tables s": round(done, 2),
        "CPU s": round(time.process_time() - cpu, 2),
        "MB of the imports": before,
        "peak MB": peak(),
    }
    print(json.dumps(facts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folders", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=10000)
    parser.add_argument("--shape", choices=(*SHAPES, "all"), default="all")
    parser.add_argument("--every-epoch", action="store_true", help="read all rows, not the ends")
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        read(args.every_epoch)
        return
    for shape in SHAPES[:3] if args.shape == "all" else (args.shape,):
        with tempfile.TemporaryDirectory() as folder:
            total, runs = build(Path(folder) / "home", args.folders, args.rows, shape)
            size = sum(p.stat().st_size for p in Path(folder).rglob("*.parquet")) / 2**20
            print(f"{shape}: {args.folders} folders, {total} rows of {runs} runs, {size:.0f} MB")
            command = [sys.executable, __file__, "--read", *["--every-epoch"] * args.every_epoch]
            for _ in range(2):  # the first also starts the interpreter's and the disk's caches
                subprocess.run(command, check=True, env=os.environ)


if __name__ == "__main__":
    main()
