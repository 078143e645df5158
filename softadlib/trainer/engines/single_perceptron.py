"""One multilayer perceptron on a CPU, with gradients written by hand.

A network this small spends its time in matrix products and in waiting for memory. A run trained from
its first epoch to its last stays in the cache, and autograd's bookkeeping is saved. The engine
takes a single run, so no run shares a kernel with another and its numbers depend on no other run.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softadlib.functional import WEIGHTS
from softadlib.functional.gradient_rules import Grads
from softadlib.methods import Method, cross_entropy
from softadlib.trainer.engines.base import Engine, RunGroup
from softadlib.trainer.engines.layers import backward, forward, fuse_batchnorm, parse_perceptron

_NLL = torch.ops.aten.nll_loss_forward.default
_NLL_BACK = torch.ops.aten.nll_loss_backward.default
_SOFTMAX_BACK = torch.ops.aten._log_softmax_backward_data.default
_NO_REDUCTION = 0
_NOTHING_IGNORED = -100


class PerceptronEngine(Engine):
    """Trains one multilayer perceptron on a CPU. Raises ValueError for anything else."""

    @staticmethod
    def supports(network: nn.Module, device: torch.device, bf16: bool = False) -> bool:
        """Tell whether this engine trains networks like `network` on `device`."""
        return device.type == "cpu" and not bf16 and parse_perceptron(network) is not None

    def __init__(self, group: RunGroup):
        super().__init__(group)
        layers = parse_perceptron(self.template)
        if layers is None or len(group) != 1:
            raise ValueError(
                "PerceptronEngine takes one network of Linear, BatchNorm1d, ReLU in a row; use AutogradEngine"
            )
        self.layers = layers
        self.own_settings = {name: value[0] for name, value in self.per_run.items()}
        self.views = self.tensors_of(0)

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        return fuse_batchnorm(self.layers, *self.tensors_of(run))

    @torch.no_grad()
    def step(self, positions: Tensor) -> None:
        inputs, targets = self.batch_at(positions)
        x, y = inputs[0], targets[0]
        of_objective, of_rule = self.arguments(self.own_settings)
        params, buffers = self.views
        knob = self.knob[0]

        def gradient(params: Grads, track: bool = True) -> Grads:
            logits, tape = forward(self.layers, params, buffers, x, track)
            g = logit_gradient(self.method, logits, y, knob, **of_objective)
            return backward(self.layers, params, tape, g)

        if self.method.uses_momentum:
            average = {name: value[0] for name, value in self.momentum().items()}
            of_rule["momentum"] = average or None
        direction = self.method.rule(gradient, params, knob, **of_rule)
        self.apply_gradients({name: g[None] for name, g in direction.items()})


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
            value = method.value(losses, knob, **settings)
        return torch.autograd.grad(value, logits)[0]
    logp = logits.log_softmax(1)
    losses, total = _NLL(logp, y, None, _NO_REDUCTION, _NOTHING_IGNORED)
    weights = weights_of(losses, knob, **settings) / len(y)
    of_logp = _NLL_BACK(weights, logp, y, None, _NO_REDUCTION, _NOTHING_IGNORED, total)
    gradient: Tensor = _SOFTMAX_BACK(of_logp, logp, 1, logp.dtype)
    return gradient
