"""Time the published training loop and the library's in turns, on one thread.

    python tests/benchmarks/speed.py [--rounds N] [--only CASE …] [--json FILE]

Both sides see the same data and initial weights, a round is one call of each, and the table has the
median over rounds with the smallest and largest. Ratios are taken within a round. With
PYTHONPATH=CHECKOUT the library is that of another checkout.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers import published_loop
from helpers.plain_loop import final_measures, torch_optimizer

import softadlib
from softadlib.trainer import loop
from softadlib.trainer.device import device_name, numerics
from softadlib.trainer.evaluator import Evaluator
from softadlib.trainer.splits import PARTS, Splits
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.protocol import Protocol, Run
from softadlib.workbook.studies.results import select
from softadlib.workbook.studies.train_runs import make_engine, network_of, train_runs

MLP = {"profile": "speed", "dataset": "gaussian", "trials": 1, "device": "cpu"}
GRID = {"softad": [0.05, 0.1, 0.2, 0.4], "sam": [0.1]}
EPOCHS = 20


@dataclass
class Case:
    """One thing to time: a call of each side, and by what its seconds are divided."""

    what: str
    published: Callable[[], object]
    ours: Callable[[], object]
    count: int
    warm: bool = True
    """Whether a first call of each side does not count."""


def data_of(protocol: Protocol, splits: Splits) -> published_loop.Data:
    """Return the parts of the first trial as the published loop takes them."""
    data = {}
    for part in PARTS:
        x, y = splits.part(part)
        data[part] = (splits.inputs(x, 0), y)
    return data


def train_published(
    protocol: Protocol, splits: Splits, run: Run, data: published_loop.Data, measured: bool
) -> list[dict[str, float]]:
    """Train a run by the published loop, with torch's optimizer; return its measures."""
    network, recipe = network_of(protocol, splits, run), protocol.recipe
    optimizer = torch_optimizer(recipe, network.parameters())
    options = {"epochs": recipe.epochs, "batch_size": recipe.batch_size, "measured": measured}
    return published_loop.train(network, data, run.method, run.knob, optimizer=optimizer, **options)


def steps(protocol: Protocol, splits: Splits, method: str, what: str) -> Case:
    """Train one run and measure nothing; seconds are those of a step."""
    (run,) = protocol.runs(method)
    data, recipe = data_of(protocol, splits), protocol.recipe

    def published() -> None:
        train_published(protocol, splits, run, data, measured=False)

    def ours() -> None:
        loop.train(make_engine(protocol, [run], splits), recipe, protocol.seeds, set())

    n = len(data["train"][1])
    return Case(what, published, ours, recipe.epochs * -(-n // recipe.batch_size))


def measuring(protocol: Protocol, splits: Splits) -> Case:
    """Measure one run on all parts of its data."""
    (run,) = protocol.runs("erm")
    data, network = data_of(protocol, splits), network_of(protocol, splits, run)
    evaluator = Evaluator(make_engine(protocol, [run], splits))
    points = sum(len(y) for _, y in data.values())
    what = f"mlp4x500, measuring {points:,} points"
    return Case(what, lambda: final_measures(network, data), evaluator.measure, 1)


def study(protocol: Protocol, splits: Splits) -> Case:
    """Train a few runs of SoftAD, select one, and return its curves.

    The published loop measures every run at every epoch; ours trains the selected run again for them.
    """
    runs, data, recipe = protocol.runs("softad"), data_of(protocol, splits), protocol.recipe

    def published() -> None:
        histories = [train_published(protocol, splits, run, data, measured=True) for run in runs]
        max(histories, key=lambda history: history[-1]["acc_val"])

    def ours() -> None:
        rows = train_runs(protocol, runs, {recipe.epochs})
        (knob,) = select(rows, protocol.ties)["knob"]
        train_runs(protocol, [run for run in runs if run.knob == knob], protocol.curve_epochs)

    what = f"study of {len(runs)} runs, {recipe.epochs} epochs, with curves"
    return Case(what, published, ours, 1, warm=False)


def noise(shape: tuple[int, int, int], sizes: tuple[int, int, int]) -> Splits:
    """Return random images of one trial: they take as long as others."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (sum(sizes), *shape), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, sum(sizes)))
    train, val, test = torch.arange(sum(sizes))[None].split(sizes, dim=1)
    return Splits(x, y, train, val, test, classes=10).to(torch.device("cpu"), torch.float32)


def make_cases() -> dict[str, Callable[[], Case]]:
    """Return what makes each case, by name."""
    mlp = Protocol(**MLP, epochs=EPOCHS, grids=GRID)
    splits = load_splits(mlp, 0.0).to(torch.device("cpu"), torch.float32)
    sgd = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "epochs": 2}
    resnet = Protocol(**MLP, **sgd, model="resnet18")
    return {
        "erm-step": lambda: steps(mlp, splits, "erm", "mlp4x500, a step of ERM, batch 50"),
        "sam-step": lambda: steps(mlp, splits, "sam", "mlp4x500, a step of SAM, batch 50"),
        "measuring": lambda: measuring(mlp, splits),
        "study": lambda: study(mlp.replace(epochs=10), splits),
        "resnet18-step": lambda: steps(
            resnet,
            noise((3, 32, 32), (50, 50, 50)),
            "erm",
            "ResNet-18 on 32 × 32, a step of ERM, batch 50",
        ),
    }


def seconds(call: Callable[[], object], count: int) -> float:
    """Return the wall-clock seconds of a call, divided by `count`."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) / count


def spread(values: list[float]) -> list[float]:
    """Return median, minimum and maximum."""
    return [statistics.median(values), min(values), max(values)]


def time_case(case: Case, rounds: int) -> dict[str, object]:
    """Time both sides of a case in turns."""
    if case.warm:
        case.published(), case.ours()
    pairs = [
        (seconds(case.published, case.count), seconds(case.ours, case.count)) for _ in range(rounds)
    ]
    published, ours = (list(side) for side in zip(*pairs))
    return {
        "what": case.what,
        "published_s": spread(published),
        "ours_s": spread(ours),
        "ratio": spread([a / b for a, b in pairs]),
        "rounds": rounds,
    }


def main() -> None:
    """Print a line a case, and write all of them where --json says."""
    cases = make_cases()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=cases, default=list(cases), metavar="CASE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    device = torch.device("cpu")
    load = os.getloadavg()[0]
    print(f"{device_name(device)}, torch {torch.__version__}, one thread, load {load:.1f} before")
    rows = {}
    with numerics(device, "fp32"):
        for name in args.only:
            row = rows[name] = time_case(cases[name](), args.rounds)
            (old, *_), (new, *_), (ratio, low, high) = (
                row["published_s"],
                row["ours_s"],
                row["ratio"],
            )
            print(
                f"{row['what']}: published {1e3 * old:.3g} ms, ours {1e3 * new:.3g} ms, "
                f"ratio {ratio:.2f} ({low:.2f} to {high:.2f})",
                flush=True,
            )
    if args.json:
        machine = {
            "device": device_name(device),
            "cores": os.cpu_count(),
            "load_before": round(load, 1),
        }
        machine |= {"torch": torch.__version__, "softadlib": softadlib.__version__}
        args.json.write_text(json.dumps({"machine": machine, "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
