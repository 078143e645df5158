"""What every engine has: the weights of R runs and their data. A subclass says how they step."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from softadlib.functional.gradient_rules import Grads
from softadlib.methods import Method
from softadlib.trainer.checkpoint import State
from softadlib.trainer.recipe import Recipe
from softadlib.trainer.splits import Splits


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
    hyperparameter: Sequence[float]
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
            hyperparameter=[self.hyperparameter[i] for i in positions],
            settings=settings,
        )


class Engine:
    """R runs of one method on one device. Subclasses have `step` and `network`.

    `trainer.evaluator.Evaluator` measures them.
    """

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
        self.hyperparameter = torch.as_tensor(group.hyperparameter, dtype=dtype, device=self.device)
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
            factor = 1 - lr * self.hyperparameter.double()
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
        """Return the arguments of the objective and those of the gradient rule, beside the hyperparameter.

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

    # Networks

    @contextlib.contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Put the network into evaluation mode, without gradients, and back into training mode."""
        self.template.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.template.train()

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        """Return x (n, …) ↦ logits (n, C) of one run, in the mode that the template is in."""
        raise NotImplementedError

    def stacked_network(self) -> Callable[[Tensor], Tensor] | None:
        """Return (R, n, …) ↦ (R, n, C), logits of all runs, where they are faster together; else None."""
        return None

    def module(self, run: int) -> nn.Module:
        """Return a network with the weights of one run, on the CPU, in evaluation mode."""
        network = copy.deepcopy(self.template).cpu().eval()
        params, buffers = self.tensors_of(run)
        network.load_state_dict(params | buffers, strict=False)  # tied weights have one name here
        return network
