"""What `softad bench` times: the same work for the published loop and for ours."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from softadlib._validation import choose
from softadlib.data.images import available
from softadlib.data.splits import PARTS, Splits
from softadlib.training import device as hardware
from softadlib.training.inputs import load_splits
from softadlib.training.memory import forward_flops
from softadlib.training.protocol import Protocol, Run
from softadlib.training.trainer import Trainer
from softadlib.workbook.bench import reference

CASES = (
    "train-erm",
    "train-sam",
    "eval-20000",
    "study-all",
    "study-shown",
    "fashionmnist-epoch",
    "resnet18-step",
)
STUDY = {"trials": 2, "values": 40, "epochs": 20}
"""The small study: SoftAD over the paper's number of θ; the paper has 15 trials and 500 epochs."""


@dataclass(frozen=True)
class Case:
    """What is timed: a protocol, its method, and what one call of each side does."""

    name: str
    protocol: Protocol
    method: str
    epochs: int
    evals: str
    """When to measure: `never`, at the `end`, at `all` epochs; `only` measures and trains nothing."""
    per: str
    """What the seconds are divided by."""
    replay: bool = False
    """Ours trains without curves and one run a trial again with them; the published loop measures always."""
    our_runs: int = 0
    """Of a study, how many of its runs ours is timed on, its time scaled; 0 where it does them all.

    The published loop, whose runs all take the same, is timed on one run of a study for each process.
    """
    note: str = ""

    def at(self, evals: str) -> set[int]:
        """The epochs to measure at."""
        last = self.epochs
        return {"never": set(), "end": {last}, "all": set(range(last + 1))}[evals]

    def runs(self, count: int) -> list[Run]:
        """`count` runs of the method over its grid, again and again."""
        grid = self.protocol.runs(self.method)
        return [grid[i % len(grid)] for i in range(count)]


def cases(names: Sequence[str], device: str) -> list[Case]:
    """The cases asked for, in order."""
    base: dict[str, Any] = {
        "profile": "bench",
        "dataset": "gaussian",
        "trials": 1,
        "device": device,
    }
    values = tuple(np.linspace(0.01, 0.5, STUDY["values"]).tolist())
    small = Protocol(**base, epochs=STUDY["epochs"], grids={"softad": values, "sam": values})
    study = small.replace(trials=STUDY["trials"])
    whole: dict[str, Any] = {
        "method": "softad",
        "epochs": STUDY["epochs"],
        "evals": "all",
        "per": "study",
    }
    have = available("fashionmnist") != "missing"
    image: dict[str, Any] = {
        **base,
        "dataset": "fashionmnist" if have else "digits",
        "n_train": 0,
        "n_val": 0,
    }
    sgd: dict[str, Any] = {
        "n_test": 0,
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "batch_size": 200,
    }
    fashion = Protocol(**image, **sgd, model="mlp1x1000", grids={"softad": (0.1,)})
    missing = "" if have else "FashionMNIST is not here: noise of its shape, which takes as long"
    every = {
        "train-erm": Case("train-erm", small, "erm", 100, "never", "step"),
        "train-sam": Case("train-sam", small, "sam", 100, "never", "step"),
        "eval-20000": Case("eval-20000", small, "erm", 0, "only", "run"),
        "study-all": Case("study-all", study, **whole, our_runs=4),
        "study-shown": Case("study-shown", study, **whole, replay=True),
        "fashionmnist-epoch": Case(
            "fashionmnist-epoch", fashion, "softad", 1, "end", "epoch", note=missing
        ),
        "resnet18-step": Case(
            "resnet18-step",
            fashion.replace(model="resnet18", batch_size=50),
            "erm",
            1,
            "never",
            "step",
            note="noise of CIFAR-10's shape",
        ),
    }
    for name in names:
        choose("case", name, CASES)
    return [every[name] for name in CASES if name in names]


def _data(case: Case) -> Splits:
    """What a case is timed on; noise of the right shape where it says so."""
    if not case.note:
        return load_splits(case.protocol, 0.0)
    rng = np.random.default_rng(0)
    resnet = case.name == "resnet18-step"
    shape, sizes = ((3, 32, 32), (1000, 50, 50)) if resnet else ((1, 28, 28), (48000, 12000, 10000))
    x = torch.from_numpy(rng.integers(0, 256, (sum(sizes), *shape), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, sum(sizes)))
    train, val, test = torch.arange(sum(sizes))[None].split(sizes, dim=1)
    return Splits(x, y, train, val, test, classes=10)


class Side:
    """One process's end of a case: data loaded once, each call timed by whoever calls."""

    def __init__(self, case: Case):
        self.case = case
        self.sweep = Trainer(case.protocol, case.runs(1), splits=_data(case))

    def ours(self, runs: Sequence[Run], evals: str) -> None:
        """As `softad train` does it."""
        engine = self.sweep.engine(runs)
        if evals == "only":
            engine.measure(range(len(runs)))
            return
        recipe = dataclasses.replace(self.case.protocol.recipe, epochs=self.case.epochs)
        engine.train(recipe, self.case.protocol.seeds, self.case.at(evals))

    def published(self, runs: Sequence[Run], evals: str) -> None:
        """As the paper's code does it."""
        protocol, splits, device = self.case.protocol, self.sweep.splits, self.sweep.device
        method = self.sweep.method
        data = {part: splits.part(part) for part in PARTS}
        data = {p: (splits.inputs(x, p, 0), y) for p, (x, y) in data.items()}
        make = reference.optimizers(protocol.optimizer, protocol.lr, protocol.momentum)
        settings = protocol.settings_of(method.name)
        for run in runs:
            network = self.sweep.network(run).to(device)
            if evals == "only":
                reference.final_measures(network, data)
                continue
            reference.shuffled_loop(
                method.name,
                network,
                data,
                self.case.epochs,
                protocol.batch_size,
                make,
                run.knob,
                self.case.at(evals),
                **settings,
            )

    def flops(self) -> int | None:
        """Matrix products and convolutions in what one figure of the case stands for."""
        splits, case = self.sweep.splits, self.case
        forward = forward_flops(self.sweep.example, splits.shape)
        train, *others = (getattr(splits, part).shape[1] for part in PARTS)
        trained = 3 * forward * self.sweep.method.gradients
        return {
            "step": trained * min(case.protocol.batch_size, train),
            "run": forward * (train + sum(others)),
            "epoch": trained * train + forward * (train + sum(others)),
        }.get(case.per)


_SIDES: dict[str, Side] = {}


def side_of(case: Case) -> Side:
    """This process's end of a case, made once."""
    if case.name not in _SIDES:
        _SIDES[case.name] = Side(case)
    _SIDES[case.name].case = case  # the same data, perhaps fewer epochs
    return _SIDES[case.name]


def work_through(case: Case, who: str, runs: Sequence[Run], evals: str, threads: int) -> None:
    """One process's share of a round."""
    torch.set_num_threads(threads)
    side = side_of(case)
    with hardware.numerics(side.sweep.device, "fp32", threads):
        getattr(side, who)(runs, evals)
    if side.sweep.device.type == "cuda":
        torch.cuda.synchronize()
