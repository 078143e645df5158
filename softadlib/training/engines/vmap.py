"""R networks of one architecture, stacked and trained together.

The update is written for one run, and `vmap` makes R of it. So a gradient norm, a threshold or a batch
statistic is per run by construction. No number crosses from one run to another: a run that diverges
leaves the others as they were.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from softadlib.data.splits import PARTS
from softadlib.functional.gradient_rules import Grads
from softadlib.training.checkpoint import Checkpoint, State
from softadlib.training.engines.captured import CapturedStep
from softadlib.training.engines.mlp_layers import fuse_batchnorm, parse_mlp
from softadlib.training.engines.runs import Row, RunBatch, TrainConfig, batches
from softadlib.training.evaluation import (
    as_rows,
    evaluate,
    linked_measures,
    loss_summary,
    model_norm,
)

CPU_CHUNK = 1000
"""Samples per forward pass in evaluation on a CPU: what stays in its cache."""
GPU_BYTES = 2**31
"""Bytes of activations per forward pass in evaluation elsewhere, of all runs together."""


def is_convolutional(network: nn.Module) -> bool:
    """Tell whether any layer of `network` is a convolution."""
    return any(isinstance(m, nn.modules.conv._ConvNd) for m in network.modules())


def _widen_batchnorm(network: nn.Module) -> None:
    """Give batch norm float32 input: under vmap it takes no bfloat16 beside float32 statistics."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.register_forward_pre_hook(lambda module, args: (args[0].float(),))


def activations(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Count the floats that the layers of `network` put out for one sample of `shape`."""
    sizes: list[int] = []
    network = copy.deepcopy(network).eval()
    for module in network.modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(lambda m, args, out: sizes.append(out[0].numel()))
    with torch.no_grad():
        network(torch.zeros(2, *shape, dtype=next(network.parameters()).dtype))
    return sum(sizes)


def _empty_stack(runs: int, value: Tensor, channels_last: bool, device: torch.device) -> Tensor:
    """Return an empty (runs, *value.shape); slices of 4-d values are channels-last if asked."""
    if channels_last and value.ndim == 4:
        out, channels, height, width = value.shape
        shape = (runs, out, height, width, channels)
        stacked = torch.empty(shape, dtype=value.dtype, device=device)
        return stacked.permute(0, 1, 4, 2, 3)
    return torch.empty((runs, *value.shape), dtype=value.dtype, device=device)


class VmapEngine:
    """Train R networks of one architecture side by side, each with its own weights, data and knob."""

    def __init__(self, batch: RunBatch):
        self.splits, self.device, self.trials = batch.splits, batch.device, list(batch.trial)
        self.shuffled = sorted(set(self.trials))
        self.method, self.bf16, device = batch.method, batch.bf16, self.device
        self.trial = torch.as_tensor(self.trials, device=device)
        rows = [self.shuffled.index(trial) for trial in self.trials]
        self.row = torch.as_tensor(rows, device=device)  # of each run's trial in the orders
        self.train_index = self.splits.train[self.shuffled]
        self._stack(batch.networks)
        dtype = next(iter(self.params.values())).dtype
        self.knob = torch.as_tensor(batch.knob, dtype=dtype, device=device)
        settings = batch.settings
        self.per_run = {k: v.to(device) for k, v in settings.items() if isinstance(v, Tensor)}
        self.shared = {k: v for k, v in settings.items() if not isinstance(v, Tensor)}
        samples = {name: batch.samples[name][self.shuffled] for name in batch.method.samples}
        self.samples = {name: values.to(device, dtype) for name, values in samples.items()}

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.trials)

    def _stack(self, networks: Sequence[nn.Module]) -> None:
        """Copy the values of all networks into stacked tensors; keep the first as a template."""
        self.template = copy.deepcopy(networks[0])
        # Else cuDNN transposes each (n, C, H, W); vmap knows no memory formats.
        alone = len(self) == 1 and self.device.type == "cuda"
        self.channels_last = alone and is_convolutional(self.template)
        if self.bf16:
            _widen_batchnorm(self.template)
        self.params: Grads = {}
        self.buffers: Grads = {}
        for run, network in enumerate(networks):
            parts = (network.named_parameters(), network.named_buffers())
            for stacked, values in zip((self.params, self.buffers), parts):
                for name, value in values:
                    if not run:
                        like = (value, self.channels_last, self.device)
                        stacked[name] = _empty_stack(len(self), *like)
                    stacked[name][run] = value.detach()

    def _split_settings(self, per_run: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings of the objective and those of the gradient rule."""
        settings = {**self.shared, **per_run}
        of_objective = (*self.method.settings_for("objective"), *self.method.samples)
        of_rule = self.method.settings_for("rule")
        objective = {k: v for k, v in settings.items() if k in of_objective}
        rule = {k: v for k, v in settings.items() if k in of_rule}
        return objective, rule

    def _call(self, state: tuple[Grads, Grads], x: Tensor) -> Tensor:
        """Return the logits of one run in the precision of the forward pass."""
        if self.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        if not self.bf16:
            logits: Tensor = functional_call(self.template, state, (x,))
            return logits
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            logits = functional_call(self.template, state, (x,))
        return logits

    def _gradient(
        self,
        params: Grads,
        buffers: Grads,
        x: Tensor,
        y: Tensor,
        knob: Tensor,
        per_run: dict[str, Tensor],
        momentum: Grads,
    ) -> Grads:
        """Return one run's direction. Buffers change in place, as in `nn.BatchNorm`."""
        objective, rule = self._split_settings(per_run)
        if self.method.uses_momentum:
            rule["momentum"] = momentum or None

        def loss(params: Grads, buffers: Grads) -> Tensor:
            logits = self._call((params, buffers), x).to(knob.dtype)
            losses = self.method.losses(logits, y, knob)
            return self.method.objective(losses, knob, **objective)

        def gradient(params: Grads, track: bool = True) -> Grads:
            statistics = buffers if track else {k: b.clone() for k, b in buffers.items()}
            direction: Grads = grad(loss)(params, statistics)
            return direction

        return self.method.rule(gradient, params, knob, **rule)

    def _update(self, *stacked: Any) -> Grads:
        """Return the directions of all runs; of a single run by its ordinary kernels, without vmap.

        `vmap(self._gradient)` must not be kept on self: a bound method there is a reference cycle,
        and the memory of a dropped engine would wait for the garbage collector.
        """
        if len(self) > 1:
            return vmap(self._gradient)(*stacked)
        single = tree_map(lambda v: v[0], stacked)
        return {name: g[None] for name, g in self._gradient(*single).items()}

    def step(self, optimizer: torch.optim.Optimizer, positions: Tensor) -> None:
        """Step all runs on the samples at `positions` (T', b) of the trials in `shuffled`."""
        data = self.splits
        index = self.train_index.gather(1, positions)[self.row]
        x = data.inputs(data.x[index], "train", self.trial)
        per_run = {k: v.gather(1, positions)[self.row] for k, v in self.samples.items()}
        per_run |= self.per_run
        optimizer.zero_grad()  # frees the last gradients before these are made
        momentum = self.momentum() if self.method.uses_momentum else {}
        grads = self._update(
            self.params, self.buffers, x, data.y[index], self.knob, per_run, momentum
        )
        if self.method.decays_weights:
            rate = optimizer.param_groups[0]["lr"]
            for p in self.params.values():
                p.mul_(1 - rate * self.knob.view(-1, *[1] * (p.ndim - 1)))
        for name, p in self.params.items():
            g = grads[name]  # fused optimizers need the strides of the parameter
            p.grad = g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
        optimizer.step()

    def momentum(self) -> Grads:
        """Return the optimizer's moving average of gradients by name; empty before the first step."""
        states = {name: self.optimizer.state.get(p, {}) for name, p in self.params.items()}
        key = "momentum_buffer" if isinstance(self.optimizer, torch.optim.SGD) else "exp_avg"
        return {name: state[key] for name, state in states.items() if state.get(key) is not None}

    def weights(self) -> State:
        """Return the parameters and buffers of all runs, (R, …) each, as tensors that training changes."""
        return self.params | self.buffers

    def state(self, run: int) -> tuple[Grads, Grads]:
        """Return parameters and buffers of one run, views of the stacked ones."""
        both = (self.params, self.buffers)
        params, buffers = ({name: v[run] for name, v in part.items()} for part in both)
        return params, buffers

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        """Return x ↦ logits of one run, batch norm by its running statistics."""
        state = self.state(run)
        return lambda x: self._call(state, x).to(self.knob.dtype)

    def stacked_network(self) -> Callable[[Tensor], Tensor]:
        """Return (R, n, …) ↦ (R, n, C), logits of all runs; batch norm folded in perceptrons."""
        layers = None if self.bf16 else parse_mlp(self.template)
        if layers is not None:
            return fuse_batchnorm(layers, self.params, self.buffers)
        call = vmap(lambda params, buffers, x: self._call((params, buffers), x))
        return lambda x: call(self.params, self.buffers, x).to(self.knob.dtype)

    @functools.cached_property
    def _activation_bytes(self) -> int:
        """Bytes that the layers put out for one sample; found once, it costs a forward pass."""
        return activations(self.template, self.splits.shape) * self.knob.element_size()

    @property
    def _chunk(self) -> int:
        """Samples per forward pass of one run in evaluation."""
        on_cpu = self.device.type == "cpu"
        return CPU_CHUNK if on_cpu else max(1, GPU_BYTES // self._activation_bytes)

    @torch.no_grad()
    def logits(self, run: int, part: str) -> Tensor:
        """Return the logits of one run on a part of its trial's data, (n, C), in evaluation mode."""
        self.template.eval()
        data, trial, network = self.splits, self.trials[run], self.network(run)
        chunks = getattr(data, part)[trial].split(self._chunk)
        return torch.cat([network(data.inputs(data.x[c], part, trial)) for c in chunks])

    def measure(self) -> Row:
        """Return loss and accuracy on train, val and test, and the model norm, (R,) each."""
        measures = self._evaluate_runs(PARTS)
        norms = [model_norm(self.state(run)[0]) for run in range(len(self))]
        return as_rows({**measures, "model_norm": torch.stack(norms)})

    def measure_losses(self, calibrated: bool, linked: bool = False) -> Row:
        """Summarise the losses of single samples: {column: (R, 3, …)}, a row per part.

        `linked`: also of the class probabilities in closed form.
        """
        rows = []
        for run in range(len(self)):
            logits, labels = self._logits_and_labels(run, PARTS)
            closed_form = self.log_probabilities(run) if linked else None
            rows.append(loss_summary(logits, labels, calibrated, closed_form))
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def log_probabilities(self, run: int) -> Callable[[Tensor], Tensor]:
        """Return logits (n, C) of one run ↦ ln p (n, C), class probabilities in closed form."""
        closed_form = self.method.log_probabilities
        assert closed_form is not None
        per_run = {name: value[run].cpu() for name, value in self.per_run.items()}
        objective, _ = self._split_settings(per_run)
        knob = self.knob[run].cpu()
        return lambda logits: closed_form(logits, knob, **objective)

    def measure_linked(self, parts: Sequence[str]) -> Row:
        """Return loss and calibration error of the class probabilities in closed form, (R, parts) each."""
        rows = [
            linked_measures(*self._logits_and_labels(run, parts), self.log_probabilities(run))
            for run in range(len(self))
        ]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def _logits_and_labels(
        self, run: int, parts: Sequence[str]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return logits (n, C) of one run on each part, and labels (n,)."""
        logits = [self.logits(run, part) for part in parts]
        labels = [self.splits.y[getattr(self.splits, part)[self.trials[run]]] for part in parts]
        return logits, labels

    def linked_validation_losses(self) -> np.ndarray:
        """Return the validation loss of the class probabilities in closed form of every run, (R,)."""
        losses: np.ndarray = self.measure_linked(("val",))["loss"][:, 0]
        return losses

    def validation_losses(self) -> np.ndarray:
        """Return the mean validation loss of every run, (R,)."""
        losses = self._evaluate_runs(("val",))["loss_val"]
        return np.asarray(losses.cpu().double())

    @torch.no_grad()
    def _evaluate_runs(self, parts: Sequence[str]) -> dict[str, Tensor]:
        """Return loss and accuracy on `parts`, (R,) each; on a CPU one run after another.

        Runs side by side cost up to half as much again there.
        """
        self.template.eval()
        if self.device.type != "cpu" and len(self) > 1:
            chunk = max(1, GPU_BYTES // max(1, len(self) * self._activation_bytes))
            return self._evaluate(self.stacked_network(), self.trial, chunk, parts)
        rows = [
            self._evaluate(self.network(run), trial, self._chunk, parts)
            for run, trial in enumerate(self.trials)
        ]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _evaluate(
        self,
        network: Callable[[Tensor], Tensor],
        trial: int | Tensor,
        chunk: int,
        parts: Sequence[str],
    ) -> dict[str, Tensor]:
        """Return loss and accuracy on each part: () for one trial, (R,) for R of them."""
        data, measures = self.splits, {}
        for part in parts:

            def logits(index: Tensor, part: str = part) -> Tensor:
                return network(data.inputs(data.x[index], part, trial))

            index = getattr(data, part)[trial]
            both = evaluate(logits, index, data.y, chunk)
            measures[f"loss_{part}"], measures[f"acc_{part}"] = both.unbind(-1)
        return measures

    def begin(self, config: TrainConfig) -> Callable[[Iterable[Tensor]], None]:
        """Make the optimizer. Return what trains one epoch on batches of positions (T', b).

        Row i of the positions belongs to trial `shuffled[i]`.
        """
        self.optimizer = config.build(list(self.params.values()))
        step: Callable[[Tensor], None] = functools.partial(self.step, self.optimizer)
        # A captured step keeps its learning rate, and has no buffers before the first step.
        plain = config.lr_schedule == "constant" and not self.method.uses_momentum
        if self.device.type == "cuda" and plain:
            step = CapturedStep(step, list(self.weights().values()), self.optimizer)

        def run_epoch(order: Iterable[Tensor]) -> None:
            self.template.train()
            for positions in order:
                step(positions)

        return run_epoch

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next epoch; needs `begin`."""
        self.optimizer.param_groups[0]["lr"] = lr

    def state_dict(self) -> State:
        """Return parameters, buffers and the optimizer's state; needs `begin`."""
        optimizer = self.optimizer.state_dict()
        return {"params": self.params, "buffers": self.buffers, "optimizer": optimizer}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Resume from `state`: copy its values into the tensors that `begin` has seen."""
        for name, value in (self.params | self.buffers).items():
            saved = state["params"] if name in self.params else state["buffers"]
            value.copy_(saved[name])
        self.optimizer.load_state_dict(state["optimizer"])

    def train(
        self,
        config: TrainConfig,
        seeds: Sequence[int],
        eval_epochs: Collection[int],
        *,
        loss_epochs: Collection[int] = (),
        best_epoch: bool = False,
        linked: bool = False,
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
            linked: with `best_epoch`, also measure the class probabilities of a method that has them in
                closed form: `schema.LINKED`.
            checkpoint: may hold an earlier state, and is given new ones.

        Returns a table a measurement: {measure: (R,)}, and `epoch` (R,).
        """
        checkpoint = checkpoint or Checkpoint(None, {})
        run_epoch, first = self.begin(config), 0
        n, order_seeds = self.splits.train.shape[1], [seeds[trial] for trial in self.shuffled]
        measured: list[Row] = []
        best = BestWeights(self, self.validation_losses) if best_epoch else None
        linked = linked and best_epoch and self.method.log_probabilities is not None
        best_linked = BestWeights(self, self.linked_validation_losses) if linked else None
        if earlier := checkpoint.load():
            self.load_state_dict(earlier["state"])
            measured = [tree_map(Tensor.numpy, row) for row in earlier["measured"]]
            first = earlier["epoch"] + 1
            if best:
                best.load_state_dict(earlier["best"])
            if best_linked:
                best_linked.load_state_dict(earlier["best_linked"])
        for epoch in range(first, config.epochs + 1):
            if epoch:
                if config.lr_schedule != "constant":
                    self.set_lr(config.lr_at(epoch))
                run_epoch(batches(order_seeds, epoch, n, config.batch_size, self.device))
            if epoch in eval_epochs:
                row = {"epoch": np.full(len(self), epoch), **self.measure()}
                if epoch in loss_epochs:
                    last = epoch == config.epochs
                    row |= self.measure_losses(last, linked=last and linked)
                measured.append(row)
            if best and epoch:
                best.update(epoch)
            if best_linked and epoch:
                best_linked.update(epoch)
            if epoch < config.epochs and checkpoint.due(epoch):
                state = {"epoch": epoch, "state": self.state_dict()}
                state["measured"] = [tree_map(torch.from_numpy, row) for row in measured]
                state |= {"best": best.state_dict()} if best else {}
                state |= {"best_linked": best_linked.state_dict()} if best_linked else {}
                checkpoint.save(state)
        if best_linked:
            measured[-1] |= best_linked.measure_linked()
        if best:
            measured.insert(0, best.measure(linked))
        return measured


class BestWeights:
    """The weights of every run at the epoch of its lowest validation loss.

    `validation_losses`: () ↦ (R,), of the engine's weights as they are.
    """

    def __init__(self, engine: VmapEngine, validation_losses: Callable[[], np.ndarray]):
        self.engine, self.validation_losses = engine, validation_losses
        self.weights = tree_map(Tensor.clone, engine.weights())
        self.loss = np.full(len(engine), np.inf)
        self.epoch = np.zeros(len(engine), dtype=np.int64)

    def update(self, epoch: int) -> None:
        """Keep the weights of the runs whose validation loss is lower than ever."""
        loss = self.validation_losses()
        better = np.flatnonzero(loss < self.loss)
        if len(better):
            self.loss[better], self.epoch[better] = loss[better], epoch
            index = torch.from_numpy(better).to(self.engine.device)
            for kept, now in zip(self.weights.values(), self.engine.weights().values()):
                kept[index] = now[index]

    def measure(self, linked: bool = False) -> Row:
        """Measure the kept weights; the engine's own stay as they are. Epoch 0 marks a run without any."""
        with self._in_engine():
            row = {"epoch": self.epoch, **self.engine.measure()}
            return row | self.engine.measure_losses(calibrated=True, linked=linked)

    def measure_linked(self) -> Row:
        """Return the columns `linked_best_…`, (R, 3) each; NaN of a run without any kept weights."""
        with self._in_engine():
            measured = self.engine.measure_linked(PARTS)
        epochs = np.where(self.epoch > 0, self.epoch, np.nan)[:, None]
        row = {"linked_best_epoch": np.broadcast_to(epochs, measured["loss"].shape)}
        for name, values in measured.items():
            row[f"linked_best_{name}"] = np.where(epochs > 0, values, np.nan)
        return row

    @contextlib.contextmanager
    def _in_engine(self) -> Iterator[None]:
        """Give the engine the kept weights for a while."""
        current = self.engine.weights()
        last = tree_map(Tensor.clone, current)
        for name, value in current.items():
            value.copy_(self.weights[name])
        yield
        for name, value in current.items():
            value.copy_(last[name])

    def state_dict(self) -> State:
        """Return what a checkpoint holds."""
        numbers = {"loss": torch.from_numpy(self.loss), "epoch": torch.from_numpy(self.epoch)}
        return {"weights": self.weights, **numbers}

    def load_state_dict(self, state: State) -> None:
        """Go on from a checkpoint."""
        self.weights = {k: v.to(self.engine.device) for k, v in state["weights"].items()}
        self.loss, self.epoch = state["loss"].numpy(), state["epoch"].numpy()
