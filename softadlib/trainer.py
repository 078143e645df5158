"""The only training loop: R networks of one architecture, stacked and trained together.

The update is written for one run and `vmap` makes R of it: a gradient norm, a threshold or a batch
statistic is per run by construction. No number crosses from one run to another, so a run that
diverges leaves the others as they were.
"""

import copy
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnF
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from .errors import UserError, choose
from .methods import Method
from .metrics import MEASURES, evaluate, model_norm
from .splits import PARTS, Splits

EVAL_CHUNK = {"cpu": 1000}
"""Samples per forward pass in evaluation; what stays in a CPU's cache. Elsewhere 20,000."""
STACK = {"cpu": 8}
"""Runs side by side; elsewhere 128."""


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA, then Apple's MPS, then the CPU; any other name must be there."""
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    choose("device", name, ["auto", *there])
    if name == "auto":
        return torch.device(next(d for d in ("cuda", "mps", "cpu") if there[d]))
    if not there[name]:
        raise UserError(
            f"device {name!r} is not available here; choose from auto, "
            f"{', '.join(d for d, ok in there.items() if ok)}"
        )
    return torch.device(name)


@dataclass(frozen=True)
class Recipe:
    """How the networks of a stack are stepped: everything that is not data, method or weights."""

    optimizer: str
    lr: float
    batch_size: int
    epochs: int
    momentum: float = 0.0
    weight_decay: float = 0.0

    def build(self, params: Sequence[Tensor]) -> torch.optim.Optimizer:
        """An elementwise optimizer over stacked parameters steps every run by itself."""
        if self.optimizer == "adam":
            return torch.optim.Adam(
                params, self.lr, weight_decay=self.weight_decay, fused=_fused(params)
            )
        return torch.optim.SGD(
            params, self.lr, self.momentum, weight_decay=self.weight_decay, fused=_fused(params)
        )


def _fused(params: Sequence[Tensor]) -> bool | None:
    return params[0].device.type in ("cpu", "cuda") or None


def batches(seeds: Sequence[int], epoch: int, n: int, size: int) -> Iterator[np.ndarray]:
    """Positions (T, ≤ size) in the training part, a fresh order per trial and epoch.

    The order is a function of (seed, epoch) alone: the same for every method, and for a run that
    resumes in the middle.
    """
    order = np.stack([np.random.default_rng([seed, epoch]).permutation(n) for seed in seeds])
    for start in range(0, n, size):
        yield order[:, start : start + size]


class Stack:
    """R networks of one architecture with their own weights, data, knob and objective.

    `networks`: R modules alike but for their values. `trial` (R,): whose data each one sees.
    `knob` (R,): θ or radius. `settings`: further arguments of the method's objective or gradient
    rule; a tensor (R,) is one value per run, anything else is shared.
    """

    def __init__(
        self,
        method: Method,
        networks: Sequence[nn.Module],
        splits: Splits,
        trial: Sequence[int],
        knob: Sequence[float],
        settings: dict[str, Any] | None = None,
    ):
        device, dtype = splits.x.device, next(networks[0].parameters()).dtype
        self.method, self.splits = method, splits
        self.trial = torch.as_tensor(trial, device=device)
        self.knob = torch.as_tensor(knob, dtype=dtype, device=device)
        params, buffers = stack_module_state([net.to(device) for net in networks])
        self.params = {name: p.detach().clone() for name, p in params.items()}
        self.buffers = {name: b.detach().clone() for name, b in buffers.items()}
        self.skeleton = copy.deepcopy(networks[0]).to("meta")
        settings = settings or {}
        self.per_run = {k: v.to(device) for k, v in settings.items() if isinstance(v, Tensor)}
        self.shared = {k: v for k, v in settings.items() if not isinstance(v, Tensor)}
        self._update = vmap(self._gradient)

    def __len__(self) -> int:
        return len(self.trial)

    def _gradient(self, params, buffers, x, y, knob, per_run):
        """One run's direction. Buffers change in place, as `nn.BatchNorm` does."""
        settings = {**self.shared, **per_run}
        objective = {k: v for k, v in settings.items() if k in self.method.settings}
        rule = {k: v for k, v in settings.items() if k in self.method.rule_settings}

        def loss(params, buffers):
            logits = functional_call(self.skeleton, (params, buffers), (x,))
            losses = nnF.cross_entropy(logits, y, reduction="none")
            return self.method.objective(losses, knob, **objective)

        def gradient(params, track: bool = True):
            return grad(loss)(
                params, buffers if track else {k: b.clone() for k, b in buffers.items()}
            )

        return self.method.rule(gradient, params, knob, **rule)

    def epoch(self, optimizer: torch.optim.Optimizer, order: Iterator[np.ndarray]) -> None:
        """One pass over the training part; every run sees its trial's batch at each step."""
        self.skeleton.train()
        data, train = self.splits, self.splits.train
        for positions in order:
            positions = torch.as_tensor(positions, device=train.device)
            index = train.gather(1, positions)[self.trial]
            x = data.inputs(data.x[index], "train", self.trial)
            grads = self._update(
                self.params, self.buffers, x, data.y[index], self.knob, self.per_run
            )
            for name, p in self.params.items():
                p.grad = grads[name]
            optimizer.step()

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        """x ↦ logits of one run, batch norm by its running statistics."""
        self.skeleton.eval()
        state = (
            {k: p[run] for k, p in self.params.items()},
            {k: b[run] for k, b in self.buffers.items()},
        )
        return lambda x: functional_call(self.skeleton, state, (x,))

    def _logits(
        self, network: Callable[[Tensor], Tensor], part: str, trial: int, index: Tensor
    ) -> Tensor:
        return network(self.splits.inputs(self.splits.x[index], part, trial))

    def measure(self, runs: Collection[int]) -> dict[str, np.ndarray]:
        """Loss and accuracy on train, val and test, and the model norm, one value per run asked."""
        chunk = EVAL_CHUNK.get(self.splits.x.device.type, 20000)
        out = {name: np.full(len(runs), np.nan) for name in MEASURES}
        for i, run in enumerate(runs):
            network, trial = self.network(run), self.trial[run].item()
            for part in PARTS:
                index = getattr(self.splits, part)[trial]  # gathered chunk by chunk, never whole
                forward = functools.partial(self._logits, network, part, trial)
                loss, accuracy = evaluate(forward, index, self.splits.y[index], chunk).tolist()
                out[f"loss_{part}"][i], out[f"acc_{part}"][i] = loss, accuracy
            out["model_norm"][i] = model_norm({k: p[run] for k, p in self.params.items()}).item()
        return out

    def train(
        self,
        recipe: Recipe,
        seeds: Sequence[int],
        eval_epochs: Collection[int],
        *,
        keep: int | None = None,
        on_epoch: Callable[[int], None] | None = None,
    ) -> dict[int, dict[str, np.ndarray]]:
        """Train, and measure the first `keep` runs at `eval_epochs` (0 is before any step).

        `seeds` (T,): one shuffling seed per trial. Returns {epoch: {measure: (keep,)}}.
        """
        params = list(self.params.values())
        optimizer, measured = recipe.build(params), {}
        n, kept = self.splits.train.shape[1], range(len(self) if keep is None else keep)
        for epoch in range(recipe.epochs + 1):
            if epoch:
                self.epoch(optimizer, batches(seeds, epoch, n, recipe.batch_size))
            if epoch in eval_epochs:
                measured[epoch] = self.measure(kept)
            if on_epoch:
                on_epoch(epoch)
        return measured
