"""R networks of one architecture, stacked and stepped together.

The step is written for one run, and `vmap` makes R of it; convolutional networks take their steps one
by one, on a GPU each in a stream of its own. So a gradient norm, a threshold or a batch
statistic is per run by construction. No number crosses from one run to another: a run that diverges
leaves the others as they were.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from softadlib.functional.gradient_rules import Grads
from softadlib.trainer.engines.base import Engine, RunGroup
from softadlib.trainer.engines.captured import CapturedStep
from softadlib.trainer.engines.layers import fuse_batchnorm, parse_perceptron
from softadlib.trainer.recipe import Recipe


def is_convolutional(network: nn.Module) -> bool:
    """Tell whether any layer of `network` is a convolution."""
    return any(isinstance(m, nn.modules.conv._ConvNd) for m in network.modules())


class AutogradEngine(Engine):
    """Trains R networks of any architecture side by side, by autograd."""

    def __init__(self, group: RunGroup):
        super().__init__(group)
        self.captured: CapturedStep | None = None
        convolutional = is_convolutional(self.template)
        self.one_by_one = len(group) == 1 or convolutional
        """Whether each run has ordinary kernels, without vmap, which is slow with convolutions."""
        self.channels_last = convolutional and self.device.type == "cuda"
        side_by_side = self.channels_last and len(group) > 1
        self.streams = [torch.cuda.Stream() for _ in group.trial] if side_by_side else []
        """One for each run; empty where a run is alone, under vmap and on a CPU."""
        if self.channels_last:  # cuDNN would transpose each input
            self.params = _channels_last(self.params)
            self.buffers = _channels_last(self.buffers)
        if self.bf16:
            _widen_batchnorm(self.template)

    def start(self, recipe: Recipe) -> None:
        super().start(recipe)
        # A CUDA graph freezes the learning rate, and needs momentum to exist when it is captured.
        plain = recipe.lr_schedule == "constant" and not self.method.uses_momentum
        if self.device.type == "cuda" and plain:
            self.captured = CapturedStep(list(self.weights().values()), self.optimizer)

    def step(self, positions: Tensor) -> None:
        if self.captured is None:
            self._step(positions)
        else:
            self.captured.replay(self._step, positions)

    def _step(self, positions: Tensor) -> None:
        x, y = self.batch_at(positions)
        momentum = self.momentum() if self.method.uses_momentum else {}
        stacked = (self.params, self.buffers, x, y, self.hyperparameter, self.per_run, momentum)
        self.apply_gradients(self._directions(*stacked))

    def _directions(self, *stacked: Any) -> Grads:
        """Return the directions of all runs.

        `vmap(self._direction)` must not be kept on self: a bound method there is a reference cycle,
        and the memory of a dropped engine would wait for the garbage collector.
        """
        if not self.one_by_one:
            return vmap(self._direction)(*stacked)
        if len(self) == 1:
            single = tree_map(lambda value: value[0], stacked)
            return {name: g[None] for name, g in self._direction(*single).items()}
        directions = {name: torch.empty_like(p) for name, p in self.params.items()}
        for run in range(len(self)):
            with self._stream_of(run):
                single = tree_map(lambda value, run=run: value[run], stacked)
                for name, g in self._direction(*single).items():
                    directions[name][run] = g
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)
        return directions

    def _stream_of(self, run: int) -> AbstractContextManager[Any]:
        """Put kernels into a stream of the run, so that those of several runs fill a GPU together.

        A captured step holds the streams as branches of its graph. On a CPU this does nothing.
        """
        if not self.streams:
            return nullcontext()
        self.streams[run].wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.streams[run])

    def _direction(
        self,
        params: Grads,
        buffers: Grads,
        x: Tensor,
        y: Tensor,
        hyperparameter: Tensor,
        own: dict[str, Tensor],
        momentum: Grads,
    ) -> Grads:
        """Return the direction of one run. Buffers change in place, as in `nn.BatchNorm1d`."""
        of_objective, of_rule = self.arguments(own)
        if self.method.uses_momentum:
            of_rule["momentum"] = momentum or None

        def loss(params: Grads, buffers: Grads) -> Tensor:
            logits = self._logits((params, buffers), x).to(hyperparameter.dtype)
            losses = self.method.losses(logits, y, hyperparameter)
            return self.method.value(losses, hyperparameter, **of_objective)

        def gradient(params: Grads, track: bool = True) -> Grads:
            statistics = buffers if track else {name: b.clone() for name, b in buffers.items()}
            gradients: Grads = grad(loss)(params, statistics)
            return gradients

        return self.method.rule(gradient, params, hyperparameter, **of_rule)

    def _logits(self, state: tuple[Grads, Grads], x: Tensor) -> Tensor:
        """Return the logits of one run in the precision of the forward pass."""
        if self.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        if not self.bf16:
            logits: Tensor = functional_call(self.template, state, (x,))
            return logits
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            logits = functional_call(self.template, state, (x,))
        return logits

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        state = self.tensors_of(run)
        return lambda x: self._logits(state, x).to(self.hyperparameter.dtype)

    def stacked_network(self) -> Callable[[Tensor], Tensor] | None:
        """Return the network of all runs on a GPU, batch norm folded in perceptrons.

        On a CPU, runs side by side would cost up to half as much again.
        """
        if self.device.type == "cpu" or self.one_by_one:
            return None
        layers = None if self.bf16 else parse_perceptron(self.template)
        if layers is not None:
            return fuse_batchnorm(layers, self.params, self.buffers)
        call = vmap(lambda params, buffers, x: self._logits((params, buffers), x))
        return lambda x: call(self.params, self.buffers, x).to(self.hyperparameter.dtype)


def _channels_last(stacked: Grads) -> Grads:
    """Return values (R, …) in which those of convolutions lie as (R, out, H, W, in)."""
    laid = dict(stacked)
    for name, value in stacked.items():
        if value.ndim == 5:
            laid[name] = value.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    return laid


def _widen_batchnorm(network: nn.Module) -> None:
    """Give batch norm float32 input: under vmap it takes no bfloat16 beside float32 statistics."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.register_forward_pre_hook(lambda module, args: (args[0].float(),))
