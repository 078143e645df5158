"""What all engines share: their runs, the optimizer, the order of samples, the loop over epochs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softadlib.data.splits import PARTS, Splits
from softadlib.functional.gradient_rules import Grads
from softadlib.methods import Method
from softadlib.training.checkpoint import NO_CHECKPOINT, NullCheckpoint, State
from softadlib.training.evaluation import loss_summary
from softadlib.training.progress import ProgressCallback, no_progress

Row = dict[str, np.ndarray]
"""{measure: (R,)} of one epoch."""
Measured = dict[int, Row]
"""{epoch: {measure: (R,)}}."""


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

    def build(self, params: Sequence[Tensor]) -> torch.optim.Optimizer:
        """Make the optimizer. It works elementwise, so stacked runs stay independent."""
        device = params[0].device.type
        fused = device in ("cpu", "cuda") or None
        if self.optimizer == "adam":
            return torch.optim.Adam(
                params,
                self.lr,
                weight_decay=self.weight_decay,
                fused=fused,
                capturable=device == "cuda",
            )
        return torch.optim.SGD(
            params, self.lr, self.momentum, weight_decay=self.weight_decay, fused=fused
        )


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
        """Raise ValueError where the parts disagree, or where the method lacks a value of the samples."""
        sizes = {len(self.networks), len(self.trial), len(self.knob)}
        if len(sizes) > 1:
            raise ValueError(f"networks, trial and knob must be as many; got {sorted(sizes)}")
        for name in self.method.samples:
            if name not in self.samples:
                raise ValueError(f"{self.method.name} needs {name} of every training sample")

    def __len__(self) -> int:
        return len(self.trial)

    @property
    def device(self) -> torch.device:
        """Where the runs are trained."""
        return self.splits.x.device

    def single(self, run: int) -> "RunBatch":
        """Return the batch of one run alone, with its own value of every setting."""
        settings = {
            name: value[run : run + 1] if isinstance(value, Tensor) else value
            for name, value in self.settings.items()
        }
        return replace(
            self,
            networks=[self.networks[run]],
            trial=[self.trial[run]],
            knob=[self.knob[run]],
            settings=settings,
        )


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
    """R runs trained together, and the one loop over epochs.

    A subclass steps and measures its runs. `make_engine` asks each class of `ENGINES` whether it
    `supports` a network on a device.
    """

    most_runs: int | None = None
    """Runs that one engine takes; None where only memory limits them."""
    splits: Splits
    device: torch.device
    trials: list[int]
    """(R,): whose data each run sees."""

    def __init__(self, batch: RunBatch):
        self.splits, self.device, self.trials = batch.splits, batch.device, list(batch.trial)
        self.shuffled = sorted(set(self.trials))

    @classmethod
    def supports(cls, network: nn.Module, device: torch.device, bf16: bool = False) -> bool:
        """Tell whether this engine trains networks like `network` on `device`."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.trials)

    def state(self, run: int) -> tuple[Grads, Grads]:
        """Return parameters and buffers of one run, by name."""
        raise NotImplementedError

    def measure(self, runs: Sequence[int]) -> Row:
        """Measure the runs asked for, one value per run in that order."""
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
        keep: Sequence[int] | None = None,
        progress: ProgressCallback = no_progress,
        checkpoint: NullCheckpoint = NO_CHECKPOINT,
    ) -> Measured:
        """Train all runs, and measure those in `keep` (default: all) at `eval_epochs`.

        At `loss_epochs`, some of `eval_epochs`, the losses of single samples are summarised too, and
        calibration after the last epoch. Epoch 0 is before any step. `seeds` (T,) holds one shuffling
        seed per trial. `progress` gets the number of runs that finished an epoch. `checkpoint` holds
        an earlier state, if there is one, and is given new ones. Returns
        {epoch: {measure: (len(keep),)}}, and in the same way what `measure_losses` returns.
        """
        run_epoch, first = self.begin(config), 0
        kept = range(len(self)) if keep is None else keep
        n, order_seeds = self.splits.train.shape[1], [seeds[trial] for trial in self.shuffled]
        measured: Measured = {}
        if earlier := checkpoint.state:
            self.load_state_dict(earlier["state"])
            measured, first = earlier["measured"], earlier["epoch"] + 1
            progress(len(self) * earlier["epoch"])
        for epoch in range(first, config.epochs + 1):
            if epoch:
                run_epoch(batches(order_seeds, epoch, n, config.batch_size, self.device))
                progress(len(self))
            if epoch in eval_epochs:
                measured[epoch] = self.measure(kept)
            if epoch in loss_epochs:
                measured[epoch] |= self.measure_losses(kept, calibrated=epoch == config.epochs)
            if epoch < config.epochs and checkpoint.due(epoch):
                checkpoint.save({"epoch": epoch, "measured": measured, "state": self.state_dict()})
        return measured
