"""What `softad bench` times: the same work for the published loop and for ours."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from softadlib._validation import choose
from softadlib.data.images import available
from softadlib.data.splits import PARTS, Splits
from softadlib.training.device import deterministic_math, synchronize
from softadlib.training.engines.base import Engine
from softadlib.training.inputs import load_splits
from softadlib.training.memory import forward_flops
from softadlib.training.protocol import Protocol, Run
from softadlib.training.trainer import Trainer
from softadlib.workbook.bench import reference

STUDY = {"trials": 2, "values": 40, "epochs": 20}
"""The small study: SoftAD over the paper's number of θ; the paper has 15 trials and 500 epochs."""


@dataclass(frozen=True)
class Case:
    """A thing to time: a protocol, its method, and what one call of each side does."""

    name: str
    protocol: Protocol
    method: str
    epochs: int
    evals: str
    """When to measure: `never`, at the `end`, at `all` epochs; `only` measures and trains nothing.

    A replay on a GPU is `selected`: one run a trial at all epochs, the others never.
    """
    per: str
    """What the seconds are divided by."""
    replay: bool = False
    """Ours trains without curves, then one run a trial again with them; the published loop measures always."""
    our_runs: int = 0
    """Runs of a study that ours is timed on with its time scaled, on a CPU; 0 for all.

    The published loop, whose runs all take the same, is timed on one run for each process.
    """
    published_epochs: int = 0
    """Epochs that the published loop is timed on, where all take the same; 0 for all.

    Its time is scaled by the number of measurements, which take nearly all of it.
    """
    note: str = ""

    def eval_epochs(self, evals: str) -> set[int]:
        """Return the epochs to measure at."""
        last = self.epochs
        every = set(range(last + 1))
        return {"never": set(), "end": {last}, "all": every, "selected": every}[evals]

    def shortened(self) -> "tuple[Case, float]":
        """Return what the published loop is timed on, and the factor to the whole."""
        epochs = min(self.published_epochs or self.epochs, self.epochs)
        return dataclasses.replace(self, epochs=epochs), (self.epochs + 1) / (epochs + 1)

    def runs(self, count: int) -> list[Run]:
        """Return `count` runs of the method, over its grid again and again."""
        grid = self.protocol.runs(self.method)
        return [grid[i % len(grid)] for i in range(count)]


def all_cases(device: str) -> dict[str, Case]:
    """Return every case by name, in the order of the table."""
    base: dict[str, Any] = {"profile": "bench", "dataset": "gaussian", "trials": 1}
    base["device"] = device
    values = tuple(np.linspace(0.01, 0.5, STUDY["values"]).tolist())
    grids = {"softad": values, "sam": values}
    small = Protocol(**base, epochs=STUDY["epochs"], grids=grids)
    study = small.replace(trials=STUDY["trials"])
    whole: dict[str, Any] = {"method": "softad", "epochs": STUDY["epochs"], "evals": "all"}
    whole["published_epochs"] = 4
    have = available("fashionmnist") != "missing"
    base |= {"dataset": "fashionmnist" if have else "digits", "n_train": 0, "n_val": 0, "n_test": 0}
    sgd: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "batch_size": 200}
    fashion = Protocol(**base, **sgd, model="mlp1x1000", grids={"softad": (0.1,)})
    resnet = fashion.replace(model="resnet18", batch_size=50)
    noise = "" if have else "FashionMNIST is not here: noise of its shape, which takes as long"
    cases = (
        Case("train-erm", small, "erm", 20, "never", "step"),
        Case("train-sam", small, "sam", 20, "never", "step"),
        Case("eval-20000", small, "erm", 0, "only", "run"),
        Case("study-all", study, **whole, per="study", our_runs=4),
        Case("study-shown", study, **whole, per="study", replay=True),
        Case("fashionmnist-epoch", fashion, "softad", 1, "end", "epoch", note=noise),
        Case("resnet18-step", resnet, "erm", 1, "never", "step", note="noise of CIFAR-10's shape"),
    )
    return {case.name: case for case in cases}


CASES = tuple(all_cases("cpu"))


def cases(names: Sequence[str], device: str) -> list[Case]:
    """Return the cases asked for, in order. Raises UserError for an unknown name."""
    for name in names:
        choose("case", name, CASES)
    return [case for name, case in all_cases(device).items() if name in names]


def _data(case: Case) -> Splits:
    """Return the data of a case; noise of the right shape where its note says so."""
    if not case.note:
        return load_splits(case.protocol, 0.0)
    rng = np.random.default_rng(0)
    resnet = case.name == "resnet18-step"
    shape, sizes = ((3, 32, 32), (100, 50, 50)) if resnet else ((1, 28, 28), (48000, 12000, 10000))
    x = torch.from_numpy(rng.integers(0, 256, (sum(sizes), *shape), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, sum(sizes)))
    train, val, test = torch.arange(sum(sizes))[None].split(sizes, dim=1)
    return Splits(x, y, train, val, test, classes=10)


class Clock:
    """Wall and CPU seconds since it was last started, all work of the device included."""

    def __init__(self, device: torch.device):
        self.device = device
        self.start()

    def start(self) -> None:
        """Set both to zero."""
        self._wait()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return (wall seconds, CPU seconds of this process)."""
        self._wait()
        return time.perf_counter() - self.wall, time.process_time() - self.cpu

    def _wait(self) -> None:
        synchronize(self.device)


Job = Callable[[Clock], object]
"""Work to be timed; it may start the clock anew after a part that does not count."""


def _measuring(engine: Engine) -> Job:
    return lambda clock: engine.measure(range(len(engine)))


class Side:
    """One process's end of a case: data loaded once, networks and engines made outside of the timed part."""

    def __init__(self, case: Case):
        self.case = case
        self.trainer = Trainer(case.protocol, case.runs(1), splits=_data(case))

    def ours(self, runs: Sequence[Run], evals: str) -> list[Job]:
        """Train as `softad train` does: the same engines and lots."""
        protocol = self.case.protocol
        lots = Trainer(protocol, runs, splits=self.trainer.splits).lots()
        engines = [self.trainer.engine(lot) for lot in lots]
        if evals == "only":
            return [_measuring(engine) for engine in engines]
        # On a GPU the first epoch captures the step: of a single epoch's or step's time it is no part.
        warm = int(self.trainer.device.type != "cpu" and self.case.per != "study")
        config = dataclasses.replace(protocol.recipe, epochs=self.case.epochs + warm)
        eval_epochs = {epoch + warm for epoch in self.case.eval_epochs(evals)}

        def train(clock: Clock, engine: Any) -> None:
            epochs_left = [warm]

            def progress(runs: int) -> None:
                if epochs_left[0]:
                    epochs_left[0] -= 1
                    clock.start()

            keep = range(min(STUDY["trials"], len(engine))) if evals == "selected" else None
            engine.train(config, protocol.seeds, eval_epochs, keep=keep, progress=progress)

        return [functools.partial(train, engine=engine) for engine in engines]

    def published(self, runs: Sequence[Run], evals: str) -> list[Job]:
        """Train as the paper's code does."""
        protocol, trainer = self.case.protocol, self.trainer
        data = {part: trainer.splits.part(part) for part in PARTS}
        data = {p: (trainer.splits.inputs(x, p, 0), y) for p, (x, y) in data.items()}
        make = reference.optimizers(protocol.optimizer, protocol.lr, protocol.momentum)

        def train(clock: Clock, run: Run, network: torch.nn.Module) -> None:
            if evals == "only":
                reference.final_measures(network, data)
                return
            reference.shuffled_loop(
                trainer.method.name,
                network,
                data,
                self.case.epochs,
                protocol.batch_size,
                make,
                run.knob,
                self.case.eval_epochs(evals),
            )

        networks = [trainer.network(run).to(trainer.device) for run in runs]
        return [functools.partial(train, run=r, network=n) for r, n in zip(runs, networks)]

    def flops(self) -> int | None:
        """Count matrix products and convolutions in what one figure of the case stands for."""
        splits, case = self.trainer.splits, self.case
        forward = forward_flops(self.trainer.example, splits.shape)
        train, *others = (getattr(splits, part).shape[1] for part in PARTS)
        trained = 3 * forward * self.trainer.method.gradients
        measured = forward * (train + sum(others))
        per_step = trained * min(case.protocol.batch_size, train)
        return {"step": per_step, "run": measured, "epoch": trained * train + measured}.get(
            case.per
        )


_SIDES: dict[str, Side] = {}
"""Sides of this process; a worker of the pool keeps its data from round to round."""


def side_of(case: Case) -> Side:
    """Return this process's end of a case, made once."""
    if case.name not in _SIDES:
        _SIDES[case.name] = Side(case)
    _SIDES[case.name].case = case  # the same data, perhaps fewer epochs
    return _SIDES[case.name]


@dataclass(frozen=True)
class Seconds:
    """What some work took: wall seconds of the slowest process, CPU seconds of all."""

    wall: float
    cpu: float
    share: float = 1.0
    """CPU ÷ wall seconds of the process that waited most; below 1 where others used its core."""


def work_through(case: Case, who: str, runs: Sequence[Run], evals: str, threads: int) -> Seconds:
    """Do one process's share of a round."""
    side = side_of(case)
    device = side.trainer.device
    torch.set_num_threads(threads)
    with deterministic_math(device, "fp32", threads):
        jobs = getattr(side, who)(runs, evals)
        wall = cpu = 0.0
        for job in jobs:
            clock = Clock(device)
            job(clock)
            seconds = clock.read()
            wall, cpu = wall + seconds[0], cpu + seconds[1]
    return Seconds(wall, cpu, cpu / wall)
