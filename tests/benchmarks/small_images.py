"""Time a step of ResNet-34 on 32 × 32 images: torchvision's network in a plain loop, and the library's engine.

    python tests/benchmarks/small_images.py [--rounds N] [--json FILE]

CPU seconds of one thread, batches of 200 random images, SGD with momentum 0.9. A round is one step of each
side, one after another; the table has the median over rounds with the smallest and largest, and
ratios within a round.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers.plain_loop import sharp_step

import softadlib
from softadlib.methods import METHODS
from softadlib.models import build
from softadlib.trainer.device import device_name, numerics
from softadlib.trainer.engines import RunGroup, choose_engine
from softadlib.trainer.recipe import Recipe
from softadlib.trainer.splits import Splits

BATCH = 200
CLASSES = 10
RECIPE = Recipe("sgd", 0.1, BATCH, 1, momentum=0.9)
RADIUS = 0.5


def random_images() -> Splits:
    """Return a batch of random images in each part: they take as long as others."""
    x = torch.randint(0, 256, (3 * BATCH, 3, 32, 32), dtype=torch.uint8)
    y = torch.randint(CLASSES, (3 * BATCH,))
    train, val, test = torch.arange(3 * BATCH)[None].split(BATCH, dim=1)
    return Splits(x, y, train, val, test, CLASSES)


def plain_step(network: nn.Module, splits: Splits, method: str, bf16: bool) -> Callable[[], object]:
    """Return a step of torchvision's network with torch's own optimizer."""
    network = copy.deepcopy(network)
    optimizer = torch.optim.SGD(network.parameters(), RECIPE.lr, RECIPE.momentum)
    x, y = splits.part("train")

    def step() -> None:
        images = splits.inputs(x, 0)
        if method == "sam":
            sharp_step("sam", network, optimizer, images, y, RADIUS)
            return
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = network(images)
        cross_entropy(logits.float(), y).backward()
        optimizer.step()

    return step


def engine_step(network: nn.Module, splits: Splits, method: str) -> Callable[[], object]:
    """Return a step of the engine that the library chooses."""
    chosen = METHODS[method]
    engine = choose_engine(RunGroup(chosen, [network], splits, [0], [RADIUS], chosen.defaults))
    engine.start(RECIPE)
    positions = torch.arange(BATCH)[None]
    return lambda: engine.step(positions)


def cpu_seconds(step: Callable[[], object]) -> float:
    """Return the CPU time of a step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def spread(values: list[float]) -> list[float]:
    """Return median, minimum and maximum."""
    return [round(v, 4) for v in (statistics.median(values), min(values), max(values))]


def main() -> None:
    """Print a line for each side, and write all of them where --json says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    device = torch.device("cpu")
    load = os.getloadavg()[0]
    splits = random_images()
    network = build("resnet34", splits.shape, CLASSES, seed=0)
    rows = {}
    with numerics(device, "fp32"):
        for method in ("erm", "sam"):
            sides = {"torchvision": plain_step(network, splits, method, bf16=False)}
            sides["engine"] = engine_step(network, splits, method)
            if method == "erm":
                sides["torchvision, bf16"] = plain_step(network, splits, method, bf16=True)
            for step in sides.values():
                step()
            rounds = [[cpu_seconds(step) for step in sides.values()] for _ in range(args.rounds)]
            for side, times in zip(sides, zip(*rounds)):
                ratios = [seconds / first for seconds, (first, *_) in zip(times, rounds)]
                row = {"cpu_s": spread(list(times)), "ratio": spread(ratios)}
                rows[f"{method}, {side}"] = row
                seconds, ratio = (
                    f"{m:.3f} ({low:.3f} to {high:.3f})" for m, low, high in row.values()
                )
                print(f"{method}, {side}: {seconds} s a step, ratio {ratio}", flush=True)
    if args.json:
        machine = {
            "device": device_name(device),
            "cpu": torch.cpu.get_capabilities().get("cpu_name", ""),
            "amx_bf16": torch.cpu.get_capabilities().get("amx_bf16", False),
            "avx512_bf16": torch.cpu.get_capabilities().get("avx512_bf16", False),
            "cores": os.cpu_count(),
            "load_before": round(load, 1),
            "torch": torch.__version__,
            "softadlib": softadlib.__version__,
        }
        what = (
            "CPU seconds a step of ResNet-34 on random 32 x 32 images in batches of 200, one thread: "
            "median, minimum, maximum"
        )
        content = {"what": what, "rounds": args.rounds, "machine": machine, "rows": rows}
        args.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
