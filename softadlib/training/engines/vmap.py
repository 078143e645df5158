"""R networks of one architecture, stacked and trained together.

The update is written for one run and `vmap` makes R of it: a gradient norm, a threshold or a batch
statistic is per run by construction. No number crosses from one run to another, so a run that
diverges leaves the others as they were.
"""

import copy
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnF
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from softadlib.data.splits import PARTS
from softadlib.functional.gradient_rules import Grads
from softadlib.results.schema import MEASURES
from softadlib.training.checkpoint import State
from softadlib.training.engines.base import Engine, Row, RunBatch, TrainConfig, restore
from softadlib.training.engines.cuda_graph import GraphedStep
from softadlib.training.evaluation import as_rows, evaluate, model_norm, sums
from softadlib.training.memory import activations

CPU_CHUNK = 1000
"""Samples per forward pass in evaluation on a CPU: what stays in its cache."""
GPU_BYTES = 2**31
"""Activations of one forward pass in evaluation elsewhere, of all runs together."""


class VmapEngine(Engine):
    """Train R networks of one architecture side by side, each with its own weights, data and knob."""

    def __init__(self, batch: RunBatch):
        self.device, settings = batch.device, batch.settings
        self.method, self.splits, self.bf16 = batch.method, batch.splits, batch.bf16
        self.trial = torch.as_tensor(batch.trial, device=self.device)
        self._gather(batch.networks)
        dtype = next(iter(self.params.values())).dtype
        self.knob = torch.as_tensor(batch.knob, dtype=dtype, device=self.device)
        self.per_run = {k: v.to(self.device) for k, v in settings.items() if isinstance(v, Tensor)}
        self.shared = {k: v for k, v in settings.items() if not isinstance(v, Tensor)}
        self.samples = {k: batch.samples[k].to(self.device, dtype) for k in batch.method.samples}
        together = len(self) > 1
        self._update: Callable[..., Grads] = vmap(self._gradient) if together else self._alone

    def _gather(self, networks: Sequence[nn.Module]) -> None:
        """Copy the values of all networks into stacked tensors."""
        self.params: Grads = {}
        self.buffers: Grads = {}
        for run, network in enumerate(networks):
            if not run:
                self.skeleton = copy.deepcopy(network).to("meta")
            for kept, found in (
                (self.params, network.named_parameters()),
                (self.buffers, network.named_buffers()),
            ):
                for name, value in found:
                    if not run:
                        shape = (len(self), *value.shape)
                        kept[name] = torch.empty(shape, dtype=value.dtype, device=self.device)
                    kept[name][run] = value.detach()

    def __len__(self) -> int:
        return len(self.trial)

    def _sorted(self, per_run: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings of the objective and settings of the gradient rule."""
        settings = {**self.shared, **per_run}
        objective = (*self.method.settings_for("objective"), *self.method.samples)
        rule = self.method.settings_for("rule")
        return (
            {k: v for k, v in settings.items() if k in objective},
            {k: v for k, v in settings.items() if k in rule},
        )

    def _call(self, state: tuple[Grads, Grads], x: Tensor) -> Tensor:
        if not self.bf16:
            return functional_call(self.skeleton, state, (x,))
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            return functional_call(self.skeleton, state, (x,))

    def _gradient(
        self,
        params: Grads,
        buffers: Grads,
        x: Tensor,
        y: Tensor,
        knob: Tensor,
        per_run: dict[str, Tensor],
    ) -> Grads:
        """One run's direction. Buffers change in place, as `nn.BatchNorm` does."""
        objective, rule = self._sorted(per_run)

        def loss(params: Grads, buffers: Grads) -> Tensor:
            logits = self._call((params, buffers), x).to(knob.dtype)
            losses = nnF.cross_entropy(logits, y, reduction="none")
            return self.method.objective(losses, knob, **objective)

        def gradient(params: Grads, track: bool = True) -> Grads:
            return grad(loss)(
                params, buffers if track else {k: b.clone() for k, b in buffers.items()}
            )

        return self.method.rule(gradient, params, knob, **rule)

    def _alone(self, *stacked: Any) -> Grads:
        """`_gradient` of a single run, by its ordinary kernels: what lanes are made of."""
        only = tree_map(lambda v: v[0], stacked)
        return {name: g[None] for name, g in self._gradient(*only).items()}

    def step(self, optimizer: torch.optim.Optimizer, positions: Tensor) -> None:
        """One step of all runs on the samples at `positions` (T, b) of their trial's training part."""
        data = self.splits
        index = data.train.gather(1, positions)[self.trial]
        x = data.inputs(data.x[index], "train", self.trial)
        own = {k: v.gather(1, positions)[self.trial] for k, v in self.samples.items()}
        own |= self.per_run
        optimizer.zero_grad()  # the last gradients make room for these
        grads = self._update(self.params, self.buffers, x, data.y[index], self.knob, own)
        for name, p in self.params.items():
            p.grad = grads[name]
        optimizer.step()

    def stepper(self, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], None]:
        """`step` for one optimizer; on CUDA captured as a graph and replayed."""
        step = functools.partial(self.step, optimizer)
        if self.device.type != "cuda":
            return step
        return GraphedStep(step, [*self.params.values(), *self.buffers.values()], optimizer)

    def state(self, run: int) -> tuple[Grads, Grads]:
        """Parameters and buffers of one run, views of the stacked ones."""
        both = (self.params, self.buffers)
        params, buffers = ({name: v[run] for name, v in part.items()} for part in both)
        return params, buffers

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        """x ↦ logits of one run, batch norm by its running statistics."""
        state = self.state(run)
        return lambda x: self._call(state, x).to(self.knob.dtype)

    def measure(self, runs: Collection[int]) -> Row:
        """Loss and accuracy on train, val and test, and the model norm, one value per run asked."""
        self.skeleton.eval()
        apart = self.device.type == "cpu"  # there side by side costs up to half as much again
        return self.evaluate_sequential(runs) if apart else self.evaluate_batched(runs)

    def evaluate_sequential(self, runs: Collection[int]) -> Row:
        """`measure`, one run after another."""
        out = {name: np.full(len(runs), np.nan) for name in MEASURES}
        data = self.splits
        for i, run in enumerate(runs):
            network, trial = self.network(run), int(self.trial[run])
            for part in PARTS:
                index = getattr(data, part)[trial]  # gathered chunk by chunk, never whole
                forward = lambda some: network(data.inputs(data.x[some], part, trial))  # noqa: B023, E731
                loss, accuracy = evaluate(forward, index, data.y[index], CPU_CHUNK).tolist()
                out[f"loss_{part}"][i], out[f"acc_{part}"][i] = loss, accuracy
            out["model_norm"][i] = model_norm(self.state(run)[0]).item()
        return out

    @torch.no_grad()
    def evaluate_batched(self, runs: Collection[int]) -> Row:
        """`measure`, all runs side by side; one transfer to the host."""
        some = torch.as_tensor(list(runs), device=self.device)
        both = (self.params, self.buffers)
        params, buffers = ({k: v[some] for k, v in part.items()} for part in both)
        trial, data, found = self.trial[some], self.splits, {}
        bytes_each = activations(self.skeleton, data.shape) * self.knob.element_size()
        chunk = max(1, GPU_BYTES // max(1, len(some) * bytes_each))
        together = vmap(lambda params, buffers, x: self._call((params, buffers), x))
        for part in PARTS:
            total = torch.zeros(())
            for index in getattr(data, part).split(chunk, dim=1):
                index = index[trial]
                logits = together(params, buffers, data.inputs(data.x[index], part, trial))
                total = total + sums(logits.to(self.knob.dtype), data.y[index])
            n = getattr(data, part).shape[1]
            found[f"loss_{part}"], found[f"acc_{part}"] = (total / n).unbind(-1)
        found["model_norm"] = vmap(model_norm)(params)
        return as_rows(found)

    def begin(self, recipe: TrainConfig) -> Callable[[Iterable[Tensor]], None]:
        self.optimizer = recipe.build(list(self.params.values()))
        step = self.stepper(self.optimizer)

        def epoch(order: Iterable[Tensor]) -> None:
            self.skeleton.train()
            for positions in order:
                step(positions)

        return epoch

    def state_dict(self) -> State:
        optimizer = self.optimizer.state_dict()
        return {"params": self.params, "buffers": self.buffers, "optimizer": optimizer}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        for own, found in ((self.params, state["params"]), (self.buffers, state["buffers"])):
            for name, value in own.items():
                value.copy_(found[name])
        restore(self.optimizer, state["optimizer"])
