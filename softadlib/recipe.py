"""How networks are stepped, whatever steps them: optimizer, order of samples, loop over epochs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Tick = Callable[[int], None]
"""Told how many runs have just finished an epoch."""


def no_tick(runs: int) -> None:
    """For whoever does not watch."""


@dataclass(frozen=True)
class Recipe:
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


def batches(
    seeds: Sequence[int], epoch: int, n: int, size: int, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Positions (T, ≤ size) in the training part, a fresh order per trial and epoch.

    The order is a function of (seed, epoch) alone: the same for every method, and for a run that
    resumes in the middle. It goes to the device once an epoch.
    """
    order = np.stack([np.random.default_rng([seed, epoch]).permutation(n) for seed in seeds])
    yield from torch.from_numpy(order).to(device).split(size, dim=1)


class Trained:
    """The loop over epochs, of engines that step all their runs batch by batch.

    They have `splits`, `device`, a length, `measure`, and `begin`.
    """

    def begin(self, recipe: Recipe) -> Callable[[Iterable[Tensor]], None]:
        """Make the optimizer; what comes back does one epoch in the order it is given."""
        raise NotImplementedError

    def train(
        self,
        recipe: Recipe,
        seeds: Sequence[int],
        eval_epochs: Collection[int],
        *,
        keep: int | None = None,
        tick: Tick = no_tick,
    ) -> dict[int, dict[str, np.ndarray]]:
        """Train, and measure the first `keep` runs at `eval_epochs` (0 is before any step).

        `seeds` (T,): one shuffling seed per trial. Returns {epoch: {measure: (keep,)}}.
        """
        run_epoch, measured = self.begin(recipe), {}
        n, kept = self.splits.train.shape[1], range(len(self) if keep is None else keep)
        for epoch in range(recipe.epochs + 1):
            if epoch:
                run_epoch(batches(seeds, epoch, n, recipe.batch_size, self.device))
                tick(len(kept))
            if epoch in eval_epochs:
                measured[epoch] = self.measure(kept)
        return measured
