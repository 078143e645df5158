"""What every engine has: the weights of R runs, their data, their measures. A subclass says how they step."""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softadlib.functional.gradient_rules import Grads
from softadlib.methods import Method
from softadlib.trainer.checkpoint import State
from softadlib.trainer.evaluation import (
    as_rows,
    evaluate,
    loss_summary,
    model_norm,
)
from softadlib.trainer.recipe import Recipe
from softadlib.trainer.splits import PARTS, Splits

Row = dict[str, np.ndarray]
"""{measure: (R,)}, an entry per run; `epoch` (R,) is among them where it belongs to a table."""

SAMPLES_AT_ONCE = 1000
"""Samples per forward pass in evaluation on a CPU: what stays in its cache."""
GPU_BYTES = 2**31
"""Bytes of activations per forward pass in evaluation on a GPU, of all runs together."""


@dataclass(frozen=True)
class RunGroup:
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
    bf16: bool = False
    """Forward passes in bfloat16 where autocast allows; everything else keeps its precision."""

    def __len__(self) -> int:
        return len(self.trial)

    @property
    def device(self) -> torch.device:
        """Where the runs are trained."""
        return self.splits.x.device

    def take(self, positions: Sequence[int]) -> "RunGroup":
        """Return the runs at these positions."""
        settings = dict(self.settings)
        for name, value in settings.items():
            if isinstance(value, Tensor):
                settings[name] = value[list(positions)]
        return dataclasses.replace(
            self,
            networks=[self.networks[i] for i in positions],
            trial=[self.trial[i] for i in positions],
            knob=[self.knob[i] for i in positions],
            settings=settings,
        )


class Engine:
    """R runs of one method on one device. Subclasses have `step` and `network`."""

    def __init__(self, group: RunGroup):
        self.method = group.method
        self.splits = group.splits
        self.device = group.device
        self.bf16 = group.bf16
        self.trials = list(group.trial)
        self.trial = torch.as_tensor(self.trials, device=self.device)
        self.shuffled = sorted(set(self.trials))
        """Trials that have an order of samples: row i of a batch of positions belongs to the i-th."""
        rows = [self.shuffled.index(trial) for trial in self.trials]
        self.row = torch.as_tensor(rows, device=self.device)
        self.train_index = self.splits.train[self.shuffled]
        self.template = copy.deepcopy(group.networks[0]).train()
        self.params: Grads = self._stack([dict(n.named_parameters()) for n in group.networks])
        self.buffers: Grads = self._stack([dict(n.named_buffers()) for n in group.networks])
        dtype = next(iter(self.params.values())).dtype
        self.knob = torch.as_tensor(group.knob, dtype=dtype, device=self.device)
        self.shared = dict(group.settings)
        self.per_run: dict[str, Tensor] = {}
        for name, value in group.settings.items():
            if isinstance(value, Tensor):
                self.per_run[name] = self.shared.pop(name).to(self.device)

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.trials)

    def _stack(self, networks: Sequence[Mapping[str, Tensor]]) -> Grads:
        """Copy the values of R networks into tensors (R, …)."""
        stacked = {}
        for name in networks[0]:
            values = [network[name].detach() for network in networks]
            stacked[name] = torch.stack(values).to(self.device)
        return stacked

    # Training

    def start(self, recipe: Recipe) -> None:
        """Make the optimizer, before the first step."""
        self.optimizer = recipe.make_optimizer(list(self.params.values()))

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next epoch."""
        self.optimizer.param_groups[0]["lr"] = lr

    def step(self, positions: Tensor) -> None:
        """Step all runs once, on the samples at `positions` (T', b) of the trials in `shuffled`."""
        raise NotImplementedError

    def batch_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (R, b, …) and targets (R, b) at `positions` (T', b), of each run's own trial."""
        index = self.train_index.gather(1, positions)[self.row]
        x = self.splits.inputs(self.splits.x[index], self.trial)
        return x, self.splits.y[index]

    def apply_gradients(self, directions: Grads) -> None:
        """Let the optimizer step along `directions` (R, …), after the decay of a method that decays."""
        if self.method.decays_weights:
            lr = self.optimizer.param_groups[0]["lr"]
            factor = 1 - lr * self.knob.double()
            for p in self.params.values():
                p.mul_(factor.to(p.dtype).view(-1, *[1] * (p.ndim - 1)))
        for name, p in self.params.items():
            g = directions[name]
            # Fused optimizers need the strides of the parameter.
            p.grad = g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
        self.optimizer.step()
        self.optimizer.zero_grad()  # frees the gradients before the next are made

    def momentum(self) -> Grads:
        """Return the optimizer's moving average of gradients by name; empty before the first step."""
        key = "momentum_buffer" if isinstance(self.optimizer, torch.optim.SGD) else "exp_avg"
        averages = {}
        for name, p in self.params.items():
            average = self.optimizer.state.get(p, {}).get(key)
            if average is not None:
                averages[name] = average
        return averages

    def arguments(self, of_run: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments of the objective and those of the gradient rule, beside the knob.

        `of_run`: one run's own values of settings.
        """
        given = {**self.shared, **of_run}
        objective = self.method.settings_for("objective")
        rule = self.method.settings_for("rule")
        of_objective = {name: value for name, value in given.items() if name in objective}
        of_rule = {name: value for name, value in given.items() if name in rule}
        return of_objective, of_rule

    # Weights

    def weights(self) -> State:
        """Return the parameters and buffers of all runs, (R, …) each, as tensors that training changes."""
        return self.params | self.buffers

    def tensors_of(self, run: int) -> tuple[Grads, Grads]:
        """Return parameters and buffers of one run, views of the stacked ones."""
        params = {name: value[run] for name, value in self.params.items()}
        buffers = {name: value[run] for name, value in self.buffers.items()}
        return params, buffers

    def state_dict(self) -> State:
        """Return the weights and the optimizer's state; needs `start`."""
        return {"weights": self.weights(), "optimizer": self.optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Resume from `state`: copy its values into the tensors that `start` has seen."""
        for name, value in self.weights().items():
            value.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])

    def module(self, run: int) -> nn.Module:
        """Return a network with the weights of one run, on the CPU, in evaluation mode."""
        network = copy.deepcopy(self.template).cpu().eval()
        params, buffers = self.tensors_of(run)
        network.load_state_dict(params | buffers, strict=False)  # tied weights have one name here
        return network

    # Evaluation

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        """Return x ↦ logits of one run, batch norm by its running statistics."""
        raise NotImplementedError

    @contextlib.contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Put the network into evaluation mode, without gradients, and back into training mode."""
        self.template.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.template.train()

    def measure(self) -> Row:
        """Return loss and accuracy on train, val and test, and the model norm, (R,) each."""
        measures = self.evaluate_parts(PARTS)
        norms = [model_norm(self.tensors_of(run)[0]) for run in range(len(self))]
        return as_rows({**measures, "model_norm": torch.stack(norms)})

    def validation_losses(self) -> np.ndarray:
        """Return the mean validation loss of every run, (R,)."""
        losses = self.evaluate_parts(("val",))["loss_val"]
        return np.asarray(losses.cpu().double())

    def measure_losses(self, calibrated: bool, closed_form: bool = False) -> Row:
        """Summarise the losses of single samples: {column: (R, 3, …)}, one row per part.

        `closed_form`: also those of the class probabilities in closed form.
        """
        rows = []
        for run in range(len(self)):
            log_probabilities = self.log_probabilities(run) if closed_form else None
            rows.append(loss_summary(*self.outputs(run, PARTS), calibrated, log_probabilities))
        return stacked(rows)

    def log_probabilities(self, run: int) -> Callable[[Tensor], Tensor]:
        """Return logits (n, C) of one run ↦ ln p (n, C), class probabilities in closed form."""
        closed_form = self.method.log_probabilities
        assert closed_form is not None
        own = {name: value[run].cpu() for name, value in self.per_run.items()}
        of_objective, _ = self.arguments(own)
        knob = self.knob[run].cpu()
        return lambda logits: closed_form(logits, knob, **of_objective)

    def outputs(self, run: int, parts: Sequence[str]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the logits (n, C) of one run and the labels (n,), for each part of its trial's data."""
        logits = [self.logits(run, part) for part in parts]
        indices = [getattr(self.splits, part)[self.trials[run]] for part in parts]
        return logits, [self.splits.y[index] for index in indices]

    def logits(self, run: int, part: str) -> Tensor:
        """Return the logits of one run on a part of its trial's data, (n, C), in evaluation mode."""
        data = self.splits
        trial = self.trials[run]
        with self.evaluation_mode():
            network = self.network(run)
            chunks = getattr(data, part)[trial].split(self.samples_per_pass(1))
            return torch.cat([network(data.inputs(data.x[c], trial)) for c in chunks])

    def evaluate_parts(self, parts: Sequence[str]) -> dict[str, Tensor]:
        """Return loss and accuracy on `parts`, (R,) each, one run after another.

        On a CPU, runs side by side would cost up to half as much again.
        """
        size = self.samples_per_pass(1)
        rows = []
        with self.evaluation_mode():
            for run, trial in enumerate(self.trials):
                rows.append(self.evaluate_network(self.network(run), trial, size, parts))
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def evaluate_network(
        self,
        network: Callable[[Tensor], Tensor],
        trial: int | Tensor,
        size: int,
        parts: Sequence[str],
    ) -> dict[str, Tensor]:
        """Return loss and accuracy on each part, by passes of `size` samples.

        They are () for one trial, and (R,) for the trials (R,) of a network of R runs.
        """
        data = self.splits
        measures = {}

        def logits(index: Tensor) -> Tensor:
            return network(data.inputs(data.x[index], trial))

        for part in parts:
            index = getattr(data, part)[trial]
            both = evaluate(logits, index, data.y, size)
            measures[f"loss_{part}"], measures[f"acc_{part}"] = both.unbind(-1)
        return measures

    def samples_per_pass(self, runs: int) -> int:
        """Return how many samples of `runs` runs a forward pass of an evaluation takes."""
        if self.device.type == "cpu":
            return SAMPLES_AT_ONCE
        bytes_per_sample = self._activations * self.knob.element_size()
        return max(1, GPU_BYTES // (runs * bytes_per_sample))

    @functools.cached_property
    def _activations(self) -> int:
        """Floats that the layers put out for one sample; found once, it costs a forward pass."""
        return max(1, count_activations(self.template, self.splits.shape))


def stacked(rows: Sequence[Row]) -> Row:
    """Return rows of single runs as one, {column: (R, …)}."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def count_activations(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Count the floats that the layers of `network` put out for one sample of `shape`."""
    sizes: list[int] = []
    network = copy.deepcopy(network).eval()
    for module in network.modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(lambda m, args, out: sizes.append(out[0].numel()))
    with torch.no_grad():
        network(torch.zeros(2, *shape, dtype=next(network.parameters()).dtype))
    return sum(sizes)
