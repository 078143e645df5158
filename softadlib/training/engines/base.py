"""How networks are stepped, whatever steps them: optimizer, order of samples, loop over epochs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softadlib.data.splits import Splits
from softadlib.methods import Method
from softadlib.training.checkpoint import NO_CHECKPOINT, NullCheckpoint, State
from softadlib.training.progress import ProgressCallback, no_progress

Row = dict[str, np.ndarray]
"""{measure: (R,)} of one epoch."""
Measured = dict[int, Row]
"""{epoch: {measure: (R,)}}."""


def restore(optimizer: torch.optim.Optimizer, state: State) -> None:
    """`load_state_dict` into the tensors that are there already, as a captured step needs."""
    before = {p: dict(own) for p, own in optimizer.state.items()}
    optimizer.load_state_dict(state)
    for p, own in before.items():
        for name, tensor in own.items():
            if isinstance(tensor, Tensor):
                optimizer.state[p][name] = tensor.copy_(optimizer.state[p][name])


@dataclass(frozen=True)
class TrainConfig:
    """How networks are stepped: everything that is not data, method or weights."""

    optimizer: str
    lr: float
    batch_size: int
    epochs: int
    momentum: float = 0.0
    weight_decay: float = 0.0

    def build(self, params: Sequence[Tensor]) -> torch.optim.Optimizer:
        """An elementwise optimizer: over stacked parameters it steps every run by itself."""
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
        """The batch of one run alone, with its own value of every setting."""
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
    """Positions (T, ≤ size) in the training part, a fresh order per trial and epoch.

    The order is a function of (seed, epoch) alone: the same for every method, and for a run that
    resumes in the middle. It goes to the device once an epoch.
    """
    order = np.stack([np.random.default_rng([seed, epoch]).permutation(n) for seed in seeds])
    yield from torch.from_numpy(order).to(device).split(size, dim=1)


class Engine:
    """The loop over epochs, of engines that step all their runs batch by batch.

    They have `splits`, `device`, a length, `measure`, `begin`, `state_dict` and `load_state_dict`.
    """

    splits: Splits
    device: torch.device

    def __len__(self) -> int:
        """The number of runs."""
        raise NotImplementedError

    def measure(self, runs: Collection[int]) -> Row:
        """Every measure, one value per run asked."""
        raise NotImplementedError

    def begin(self, recipe: TrainConfig) -> Callable[[Iterable[Tensor]], None]:
        """Make the optimizer; what comes back does one epoch in the order it is given."""
        raise NotImplementedError

    def state_dict(self) -> State:
        """Parameters, buffers and the optimizer's state, once `begin` was called."""
        raise NotImplementedError

    def load_state_dict(self, state: State) -> None:
        """Go on from there; values are copied into the tensors that `begin` has seen."""
        raise NotImplementedError

    def train(
        self,
        recipe: TrainConfig,
        seeds: Sequence[int],
        eval_epochs: Collection[int],
        *,
        keep: int | None = None,
        progress: ProgressCallback = no_progress,
        checkpoint: NullCheckpoint = NO_CHECKPOINT,
    ) -> Measured:
        """Train, and measure the first `keep` runs at `eval_epochs` (0 is before any step).

        `seeds` (T,): one shuffling seed per trial. Resumes from the state of
        `checkpoint` and saves new ones there. Returns {epoch: {measure: (keep,)}}.
        """
        run_epoch, first = self.begin(recipe), 0
        measured: Measured = {}
        n, kept = self.splits.train.shape[1], range(len(self) if keep is None else keep)
        if earlier := checkpoint.state:
            self.load_state_dict(earlier["state"])
            measured, first = earlier["measured"], earlier["epoch"] + 1
            progress(len(kept) * earlier["epoch"])
        for epoch in range(first, recipe.epochs + 1):
            if epoch:
                run_epoch(batches(seeds, epoch, n, recipe.batch_size, self.device))
                progress(len(kept))
            if epoch in eval_epochs:
                measured[epoch] = self.measure(kept)
            if epoch < recipe.epochs and checkpoint.due(epoch):
                checkpoint.save({"epoch": epoch, "measured": measured, "state": self.state_dict()})
        return measured
