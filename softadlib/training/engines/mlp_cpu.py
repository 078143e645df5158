"""Train one multilayer perceptron on a CPU, with gradients written by hand.

A network this small spends its time in matrix products and in waiting for memory. A run trained from
its first epoch to its last stays in the cache, and autograd's bookkeeping is saved. The engine
takes a single run, so no run shares a kernel with another and its numbers depend on no other run.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from softadlib.functional import WEIGHTS
from softadlib.functional.gradient_rules import Grads, plain_gradient
from softadlib.methods import Method, cross_entropy
from softadlib.training.engines.mlp_layers import (
    backward,
    forward,
    fuse_batchnorm,
    parse_mlp,
    weight_gradient,
)
from softadlib.training.engines.runs import RunBatch, TrainConfig
from softadlib.training.engines.vmap import VmapEngine

PACKED_BELOW = 2**14
"""Entries below which a parameter is packed with others for the optimizer."""

_NLL = torch.ops.aten.nll_loss_forward.default  # its 0 and -100: no reduction, nothing ignored
_NLL_BACK = torch.ops.aten.nll_loss_backward.default
_SOFTMAX_BACK = torch.ops.aten._log_softmax_backward_data.default


def logit_gradient(
    method: Method, logits: Tensor, y: Tensor, knob: Tensor, **settings: Any
) -> Tensor:
    """Return the gradient of the method's objective in the logits (n, C).

    For objectives of cross-entropy in closed form, through the kernels that autograd would call,
    where (losses, knob, **settings) ↦ n ∂objective/∂lossᵢ, (n,) → (n,), is known: from `WEIGHTS`, or
    as the objective's own attribute `weights`. Otherwise by autograd.
    """
    weights_of = getattr(method.objective, "weights", None) or WEIGHTS.get(method.objective)
    if weights_of is None or method.losses is not cross_entropy:
        logits.requires_grad_()
        with torch.enable_grad():
            losses = method.losses(logits, y, knob)
            value = method.objective(losses, knob, **settings)
        return torch.autograd.grad(value, logits)[0]
    logp = logits.log_softmax(1)
    losses, total = _NLL(logp, y, None, 0, -100)
    weights = weights_of(losses, knob, **settings) / len(y)
    of_logp = _NLL_BACK(weights, logp, y, None, 0, -100, total)
    gradient: Tensor = _SOFTMAX_BACK(of_logp, logp, 1, logp.dtype)
    return gradient


def partial_step(
    optimizer: torch.optim.Optimizer, decay: float = 0.0
) -> Callable[[list[Tensor], list[Tensor]], None]:
    """Return (parameters, gradients) ↦ the step that `optimizer` takes of these parameters alone.

    With `decay` λ every parameter is first multiplied by 1 − learning rate × λ.

    For Adam it calls the fused kernel itself: `Optimizer.step` costs 0.1 ms a call, and more where
    weights have pushed the interpreter's memory out of the cache.
    """

    def adam_step(parameters: list[Tensor], gradients: list[Tensor]) -> None:
        group, states = optimizer.param_groups[0], [optimizer.state[p] for p in parameters]
        for p, state in zip(parameters, states):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
            state["step"] += 1
        torch._fused_adam_(
            parameters,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def step(parameters: list[Tensor], gradients: list[Tensor]) -> None:
        for p, g in zip(parameters, gradients):
            p.grad = g
        optimizer.step()
        for p in parameters:
            p.grad = None

    plain = adam_step if type(optimizer) is torch.optim.Adam else step
    if not decay:
        return plain

    def decaying(parameters: list[Tensor], gradients: list[Tensor]) -> None:
        for p in parameters:
            p.mul_(1 - optimizer.param_groups[0]["lr"] * decay)
        plain(parameters, gradients)

    return decaying


class MLPEngine(VmapEngine):
    """Train one multilayer perceptron on a CPU. Raises ValueError for anything else."""

    @staticmethod
    def supports(network: nn.Module, device: torch.device, bf16: bool = False) -> bool:
        """Tell whether this engine trains networks like `network` on `device`."""
        return device.type == "cpu" and not bf16 and parse_mlp(network) is not None

    def __init__(self, batch: RunBatch):
        super().__init__(batch)
        layers = parse_mlp(self.template)
        if layers is None:
            raise ValueError("MLPEngine takes Linear, BatchNorm1d, ReLU in a row; use VmapEngine")
        self.layers = layers
        self._pack()

    def _pack(self) -> None:
        """Put the small parameters side by side, so that the optimizer sees few tensors.

        For the paper's network, W1 … W3 (500, 500) stay as they are:

            packed (9,002,)  = [ W0 | γ0 | β0 | γ1 | β1 | … | W4 | b4 ]
            params["W0"]     =   view of the first 1,000 entries, (1, 500, 2); and so on
            optimizer        = [ W1, W2, W3, packed ] in place of 14 tensors
        """
        small = {k: p for k, p in self.params.items() if p[0].numel() < PACKED_BELOW}
        self.small, self.large = list(small), [k for k in self.params if k not in small]
        if not small:
            return
        ends = list(itertools.accumulate(p.numel() for p in small.values()))
        self.packed = torch.cat([p.flatten() for p in small.values()])
        pieces = self.packed.tensor_split(ends[:-1])
        self.params |= {k: piece.view_as(small[k]) for k, piece in zip(small, pieces)}

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        return fuse_batchnorm(self.layers, *self.state(run))

    def _weight_gradient(self, evaluation: int, name: str, g: Tensor, x: Tensor) -> Tensor | None:
        """Return gᵀx, the gradient of a weight in this evaluation of a step; None if it was stepped.

        Gradients of large weights are written over earlier ones, whose memory is in the cache. Where
        the rule is the gradient itself, a large weight is stepped at once, while it is in the cache.
        """
        if name not in self.large_params:
            return weight_gradient(g, x)
        weight, at_once = self.large_params[name], self.method.rule is plain_gradient
        buffer = weight.shape if at_once else (evaluation, name)
        if buffer not in self.gradient_buffers:
            self.gradient_buffers[buffer] = torch.empty_like(weight)
        gradient = weight_gradient(g, x, self.gradient_buffers[buffer])
        if not at_once:
            return gradient
        self.partial_step([weight], [gradient])
        return None

    def _direction(self) -> Callable[..., Grads]:
        """Return (x, y, **samples) ↦ the direction of the method's rule on one batch.

        Weights that `_weight_gradient` has stepped are missing in it.
        """
        params, buffers = self.state(0)
        knob, layers, method = self.knob[0], self.layers, self.method
        per_run = {name: value[0] for name, value in self.per_run.items()}
        objective, rule = self._split_settings(per_run)

        def direction(x: Tensor, y: Tensor, **samples: Tensor) -> Grads:
            evaluations = itertools.count()

            def gradient(params: Grads, track: bool = True) -> Grads:
                logits, tape = forward(layers, params, buffers, x, track)
                g = logit_gradient(method, logits, y, knob, **objective, **samples)
                gradient_of_weight = functools.partial(self._weight_gradient, next(evaluations))
                return backward(layers, params, tape, g, gradient_of_weight)

            if method.uses_momentum:
                rule["momentum"] = {k: v[0] for k, v in self.momentum().items()} or None
            return method.rule(gradient, params, knob, **rule)

        return direction

    def momentum(self) -> Grads:
        average = "momentum_buffer" if isinstance(self.optimizer, torch.optim.SGD) else "exp_avg"

        def of(parameter: Tensor) -> Tensor | None:
            value: Tensor | None = self.optimizer.state.get(parameter, {}).get(average)
            return value

        momentum = {name: of(self.large_params[name]) for name in self.large}
        packed = of(self.packed) if self.small else None
        if packed is not None:
            pieces = packed.split([self.params[name].numel() for name in self.small])
            momentum |= {k: v.view_as(self.params[k][0]) for k, v in zip(self.small, pieces)}
        return {name: value[None] for name, value in momentum.items() if value is not None}

    def begin(self, config: TrainConfig) -> Callable[[Iterable[Tensor]], None]:
        direction, trial, data = self._direction(), self.trials[0], self.splits
        self.large_params = {name: self.params[name][0] for name in self.large}
        self.gradient_buffers: dict[Hashable, Tensor] = {}
        packed = [self.packed] if self.small else []
        self.optimizer = config.build([*self.large_params.values(), *packed])
        decay = self.knob[0].item() if self.method.decays_weights else 0.0
        self.partial_step = partial_step(self.optimizer, decay)
        train, samples = data.train[trial], {k: v[0] for k, v in self.samples.items()}

        @torch.no_grad()
        def run_epoch(order: Iterable[Tensor]) -> None:
            for (positions,) in order:
                index = train[positions]
                x = data.inputs(data.x[index], "train", trial)
                batch_samples = {name: values[positions] for name, values in samples.items()}
                grads = direction(x, data.y[index], **batch_samples)
                left = [name for name in self.large if name in grads]
                directions = [grads[name] for name in left]
                if self.small:
                    directions.append(torch.cat([grads[name].flatten() for name in self.small]))
                parameters = [*(self.large_params[name] for name in left), *packed]
                self.partial_step(parameters, directions)

        return run_epoch
