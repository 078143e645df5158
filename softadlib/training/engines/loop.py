"""What all engines share: their runs, the optimizer, the order of samples, the loop over epochs."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from softadlib.data.splits import PARTS, Splits
from softadlib.functional.gradient_rules import Grads
from softadlib.methods import Method
from softadlib.training.checkpoint import Checkpoint, State
from softadlib.training.evaluation import loss_summary

Row = dict[str, np.ndarray]
"""{measure: (R,)}; `epoch` (R,) among them where it belongs to a table."""


def restore_optimizer(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Load `state` into the optimizer's existing tensors, whose addresses a captured step has kept."""
    tensors = {parameter: dict(values) for parameter, values in optimizer.state.items()}
    optimizer.load_state_dict(state)
    for parameter, values in tensors.items():
        for name, tensor in values.items():
            if isinstance(tensor, Tensor):
                optimizer.state[parameter][name] = tensor.copy_(optimizer.state[parameter][name])


@dataclass(frozen=True)
class TrainConfig:
    """Optimizer and schedule of a training: everything but data, method and weights."""

    optimizer: str
    lr: float
    batch_size: int
    epochs: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_schedule: str = "constant"

    def build(self, params: Sequence[Tensor]) -> torch.optim.Optimizer:
        """Make the optimizer. It works elementwise, so stacked runs stay independent."""
        device = params[0].device.type
        fused = device in ("cpu", "cuda") or None
        if self.optimizer == "sgd":
            return torch.optim.SGD(
                params, self.lr, self.momentum, weight_decay=self.weight_decay, fused=fused
            )
        make: Any = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[self.optimizer]
        optimizer: torch.optim.Optimizer = make(
            params,
            self.lr,
            weight_decay=self.weight_decay,
            fused=fused,
            capturable=device == "cuda",
        )
        return optimizer

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, 1 to `epochs`: constant, or half a cosine from `lr` to 0."""
        if self.lr_schedule == "constant":
            return self.lr
        return self.lr * (1 + math.cos(math.pi * (epoch - 1) / self.epochs)) / 2


@dataclass(frozen=True)
class RunBatch:
    """R runs of one method that one engine trains: what differs between them, and what they share."""

    method: Method
    networks: Sequence[nn.Module]
    """(R,) modules of one architecture. Engines copy their values; runs may share a module."""
    splits: Splits
    """Data of all trials, on the device that trains."""
    trial: Sequence[int]
    """(R,): whose data each run sees."""
    knob: Sequence[float]
    """(R,): the method's swept value, NaN for a method without one."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the objective or the gradient rule. A tensor (R,) holds one value per run."""
    samples: Mapping[str, Tensor] = field(default_factory=dict)
    """What the objective needs of every training sample, by name, (T, n)."""
    bf16: bool = False
    """Forward passes in bfloat16 where autocast allows; everything else keeps its precision."""

    def __post_init__(self) -> None:
        """Raise ValueError where the method lacks a value of the samples."""
        for name in self.method.samples:
            if name not in self.samples:
                raise ValueError(f"{self.method.name} needs {name} of every training sample")

    def __len__(self) -> int:
        return len(self.trial)

    @property
    def device(self) -> torch.device:
        """Where the runs are trained."""
        return self.splits.x.device


def batches(
    seeds: Sequence[int], epoch: int, n: int, size: int, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Yield positions (T, ≤ size) in the training part, a fresh order per trial and epoch.

    The order is a function of (seed, epoch) alone. So it is the same for every method, and a run
    that resumes needs no generator state. It goes to the device once an epoch.
    """
    order = np.stack([np.random.default_rng([seed, epoch]).permutation(n) for seed in seeds])
    yield from torch.split(torch.from_numpy(order).to(device), size, dim=1)


class Engine:
    """R runs trained together, and the one loop over epochs. A subclass steps and measures its runs."""

    splits: Splits
    device: torch.device
    trials: list[int]
    """(R,): whose data each run sees."""

    def __init__(self, batch: RunBatch):
        self.splits, self.device, self.trials = batch.splits, batch.device, list(batch.trial)
        self.shuffled = sorted(set(self.trials))

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.trials)

    def state(self, run: int) -> tuple[Grads, Grads]:
        """Return parameters and buffers of one run, by name."""
        raise NotImplementedError

    def measure(self, runs: Sequence[int]) -> Row:
        """Measure the runs asked for, one value per run in that order."""
        raise NotImplementedError

    def validation_losses(self) -> np.ndarray:
        """Return the mean validation loss of every run, (R,)."""
        raise NotImplementedError

    def logits(self, run: int, part: str) -> Tensor:
        """Return the logits of one run on a part of its trial's data, (n, C), in evaluation mode."""
        raise NotImplementedError

    def measure_losses(self, runs: Sequence[int], calibrated: bool) -> Row:
        """Summarise the losses of single samples: {column: (len(runs), 3, …)}, a row per part."""
        rows = []
        for run in runs:
            logits = [self.logits(run, part) for part in PARTS]
            labels = [self.splits.y[getattr(self.splits, part)[self.trials[run]]] for part in PARTS]
            rows.append(loss_summary(logits, labels, calibrated))
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def begin(self, config: TrainConfig) -> Callable[[Iterable[Tensor]], None]:
        """Make the optimizer. Return what trains one epoch on batches of positions (T', b).

        Row i of the positions belongs to trial `shuffled[i]`.
        """
        raise NotImplementedError

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next epoch; needs `begin`."""
        raise NotImplementedError

    def weights(self) -> State:
        """Return the parameters and buffers of all runs, (R, …) each, as tensors that training changes."""
        raise NotImplementedError

    def state_dict(self) -> State:
        """Return parameters, buffers and the optimizer's state; needs `begin`."""
        raise NotImplementedError

    def load_state_dict(self, state: State) -> None:
        """Resume from `state`: copy its values into the tensors that `begin` has seen."""
        raise NotImplementedError

    def train(
        self,
        config: TrainConfig,
        seeds: Sequence[int],
        eval_epochs: Collection[int],
        *,
        loss_epochs: Collection[int] = (),
        best_epoch: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> list[Row]:
        """Train all runs and measure them at `eval_epochs`; epoch 0 is before any step.

        Args:
            config: optimizer and schedule.
            seeds: (T,), one shuffling seed per trial.
            eval_epochs: epochs to measure at.
            loss_epochs: of these, epochs at which the losses of single samples are summarised too,
                and calibration after the last epoch.
            best_epoch: also measure every run, with calibration, as it was at the epoch of its lowest
                validation loss. That loss is measured every epoch.
            checkpoint: may hold an earlier state, and is given new ones.

        Returns a table a measurement: {measure: (R,)}, and `epoch` (R,).
        """
        checkpoint = checkpoint or Checkpoint(None, {})
        run_epoch, first = self.begin(config), 0
        n, order_seeds = self.splits.train.shape[1], [seeds[trial] for trial in self.shuffled]
        measured: list[Row] = []
        best = BestWeights(self) if best_epoch else None
        if earlier := checkpoint.load():
            self.load_state_dict(earlier["state"])
            measured = [tree_map(Tensor.numpy, row) for row in earlier["measured"]]
            first = earlier["epoch"] + 1
            if best:
                best.load_state_dict(earlier["best"])
        runs = range(len(self))
        for epoch in range(first, config.epochs + 1):
            if epoch:
                if config.lr_schedule != "constant":
                    self.set_lr(config.lr_at(epoch))
                run_epoch(batches(order_seeds, epoch, n, config.batch_size, self.device))
            if epoch in eval_epochs:
                row = {"epoch": np.full(len(self), epoch), **self.measure(runs)}
                if epoch in loss_epochs:
                    row |= self.measure_losses(runs, calibrated=epoch == config.epochs)
                measured.append(row)
            if best and epoch:
                best.update(epoch)
            if epoch < config.epochs and checkpoint.due(epoch):
                state = {"epoch": epoch, "state": self.state_dict()}
                state["measured"] = [tree_map(torch.from_numpy, row) for row in measured]
                checkpoint.save(state | ({"best": best.state_dict()} if best else {}))
        if best:
            measured.insert(0, best.measure())
        return measured


class BestWeights:
    """The weights of every run at the epoch of its lowest validation loss."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.weights = tree_map(Tensor.clone, engine.weights())
        self.loss = np.full(len(engine), np.inf)
        self.epoch = np.zeros(len(engine), dtype=np.int64)

    def update(self, epoch: int) -> None:
        """Keep the weights of the runs whose validation loss is lower than ever."""
        loss = self.engine.validation_losses()
        better = np.flatnonzero(loss < self.loss)
        if len(better):
            self.loss[better], self.epoch[better] = loss[better], epoch
            index = torch.from_numpy(better).to(self.engine.device)
            for kept, now in zip(self.weights.values(), self.engine.weights().values()):
                kept[index] = now[index]

    def measure(self) -> Row:
        """Measure the kept weights; the engine's own stay as they are. Epoch 0 marks a run without any."""
        current = self.engine.weights()
        last = tree_map(Tensor.clone, current)
        for name, value in current.items():
            value.copy_(self.weights[name])
        runs = range(len(self.engine))
        row = {"epoch": self.epoch, **self.engine.measure(runs)}
        row |= self.engine.measure_losses(runs, calibrated=True)
        for name, value in current.items():
            value.copy_(last[name])
        return row

    def state_dict(self) -> State:
        """Return what a checkpoint holds."""
        numbers = {"loss": torch.from_numpy(self.loss), "epoch": torch.from_numpy(self.epoch)}
        return {"weights": self.weights, **numbers}

    def load_state_dict(self, state: State) -> None:
        """Go on from a checkpoint."""
        self.weights = {k: v.to(self.engine.device) for k, v in state["weights"].items()}
        self.loss, self.epoch = state["loss"].numpy(), state["epoch"].numpy()
