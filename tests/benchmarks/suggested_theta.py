"""Accuracy at the suggested θ against the ordinary run's, on six problems with unknown noise.

    python tests/benchmarks/suggested_theta.py [--seeds 6] [--file outputs/bench/suggested_theta.json]

Gaussian blobs in 20 dimensions, 400 training, 200 validation and 5,000 test samples, a perceptron of
two layers of 256, Adam at 1e-3, 150 epochs in batches of 50. Every seed trains by cross-entropy,
asks `suggest_theta` on the validation logits, and trains SoftAD at that θ from the same weights and
batches. Nothing is said of noise, but in the last two problems. Runs that the file holds are not
trained again. Prints the differences with Student's 95 % intervals; limit: a mean of at least −1.0
points in each of the six. One thread, about two minutes of it.
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as nnF
from torch import Tensor, nn

from softadlib import SoftAD, suggest_theta

INPUTS, EPOCHS, BATCH, LIMIT = 20, 150, 50, -1.0
SIZES = {"train": 400, "val": 200, "test": 5000}
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}
"""The 97.5 % quantile of Student's t by the number of seeds."""


class Problem(NamedTuple):
    """Blobs whose centres are drawn with a standard deviation of `spread` in each direction."""

    classes: int
    spread: float
    flip_rate: float = 0.0
    minority: float | None = None
    told: bool = False


PROBLEMS = {
    "10 classes": Problem(10, 0.8),
    "50 classes, few data": Problem(50, 0.8),
    "10 classes, 20 % flipped": Problem(10, 0.8, flip_rate=0.2),
    "10 classes, 40 % flipped": Problem(10, 0.8, flip_rate=0.4),
    "10 classes, overlapping": Problem(10, 0.35),
    "2 classes, 5 % minority": Problem(2, 0.5, minority=0.05),
    "10 classes, 20 % flipped, told": Problem(10, 0.8, flip_rate=0.2, told=True),
    "10 classes, 40 % flipped, told": Problem(10, 0.8, flip_rate=0.4, told=True),
}

Data = tuple[Tensor, Tensor]


def make_data(problem: Problem, seed: int) -> dict[str, Data]:
    """Inputs (n, 20) and labels (n,) of each part."""
    generator = torch.Generator().manual_seed(1000 + seed)
    classes = problem.classes
    centres = problem.spread * torch.randn(classes, INPUTS, generator=generator)
    parts = {}
    for part, n in SIZES.items():
        if problem.minority is None:
            labels = torch.randint(classes, (n,), generator=generator)
        else:
            labels = (torch.rand(n, generator=generator) < problem.minority).long()
        inputs = centres[labels] + torch.randn(n, INPUTS, generator=generator)
        if problem.flip_rate:
            flipped = torch.rand(n, generator=generator) < problem.flip_rate
            shift = torch.randint(1, classes, (n,), generator=generator)
            labels = torch.where(flipped, (labels + shift) % classes, labels)
        parts[part] = (inputs, labels)
    return parts


def train(classes: int, data: Data, criterion: nn.Module, seed: int) -> nn.Module:
    """Train a perceptron; weights and batches depend on the seed alone."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(INPUTS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    inputs, labels = data
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels), generator=generator).split(BATCH):
            optimizer.zero_grad()
            criterion(network(inputs[batch]), labels[batch]).backward()
            optimizer.step()
    return network


@torch.no_grad()
def evaluate(network: nn.Module, data: Data, temperature: float = 1.0) -> tuple[float, float]:
    """Accuracy in points and cross-entropy in nats."""
    logits = network(data[0]) / temperature
    accuracy = 100 * (logits.argmax(1) == data[1]).double().mean().item()
    return accuracy, nnF.cross_entropy(logits, data[1]).item()


def run(name: str, seed: int) -> dict[str, float | str | None]:
    """One row: the ordinary run, the ordinary run scaled, SoftAD at the suggested θ."""
    problem = PROBLEMS[name]
    data = make_data(problem, seed)
    erm = train(problem.classes, data["train"], nn.CrossEntropyLoss(), seed)
    with torch.no_grad():
        logits = erm(data["val"][0])
    suggestion = suggest_theta(
        logits, data["val"][1], flip_rate=problem.flip_rate if problem.told else None
    )
    softad = erm  # where no θ is suggested the ordinary run stays
    if suggestion.theta is not None:
        softad = train(problem.classes, data["train"], SoftAD(suggestion.theta), seed)
    row = {"problem": name, "seed": seed, "theta": suggestion.theta}
    row |= {"theta_high": suggestion.theta_high, "temperature": suggestion.temperature}
    row |= {"predicted_loss": suggestion.predicted_loss}
    row["erm_acc"], row["erm_loss"] = evaluate(erm, data["test"])
    _, row["scaled_loss"] = evaluate(erm, data["test"], suggestion.temperature)
    row["softad_acc"], row["softad_loss"] = evaluate(softad, data["test"])
    return row


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean and Student's 95 % interval."""
    mean = statistics.fmean(values)
    half = STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def summarise(rows: list[dict]) -> bool:
    """Print a line per problem; whether all that were told nothing keep the limit."""
    kept = True
    for name, problem in PROBLEMS.items():
        own = [row for row in rows if row["problem"] == name]
        if len(own) < 2:
            continue
        thetas = [row["theta"] for row in own if row["theta"] is not None]
        points = interval([row["softad_acc"] - row["erm_acc"] for row in own])
        nats = interval([row["softad_loss"] - row["scaled_loss"] for row in own])
        kept &= problem.told or points[0] >= LIMIT
        levels = f"{min(thetas):.3f} to {max(thetas):.3f}" if thetas else "none"
        print(
            f"{name:30} n {len(own)}  θ {levels} ({len(thetas)} of {len(own)})  accuracy "
            "{:+.2f} [{:+.2f}, {:+.2f}] points  ".format(*points)
            + "loss against ERM/T {:+.3f} [{:+.3f}, {:+.3f}] nats".format(*nats)
        )
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6, choices=sorted(STUDENT))
    parser.add_argument("--file", type=Path, default=Path("outputs/bench/suggested_theta.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(options.file.read_text()) if options.file.exists() else []
    stored = {(row["problem"], row["seed"]) for row in rows}
    for name in PROBLEMS:
        for seed in range(options.seeds):
            if (name, seed) not in stored:
                rows.append(run(name, seed))
                options.file.write_text(json.dumps(rows, indent=1) + "\n")
                print(f"{name}, seed {seed}", flush=True)
    print("limit kept" if summarise(rows) else "LIMIT NOT KEPT")


if __name__ == "__main__":
    main()
