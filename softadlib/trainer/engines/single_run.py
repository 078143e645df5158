"""One run on a CPU: its step. A subclass says how it finds the gradients of one batch."""

from typing import Any

import torch
from torch import Tensor

from softadlib.functional.gradient_rules import Grads
from softadlib.methods import Method, cross_entropy
from softadlib.trainer.engines.base import Engine, RunGroup

_NLL = torch.ops.aten.nll_loss_forward.default
_NLL_BACK = torch.ops.aten.nll_loss_backward.default
_SOFTMAX_BACK = torch.ops.aten._log_softmax_backward_data.default
_NO_REDUCTION = 0
_NOTHING_IGNORED = -100


class SingleRunEngine(Engine):
    """Trains one run on a CPU; no kernel is shared with another run. Subclasses have `gradients`."""

    def __init__(self, group: RunGroup):
        super().__init__(group)
        self.own_settings = {name: value[0] for name, value in self.per_run.items()}

    def gradients(
        self, params: Grads, x: Tensor, y: Tensor, settings: dict[str, Any], track: bool
    ) -> Grads:
        """Return the gradients of the method's objective at `params` on one batch.

        `settings` are arguments of the objective; `track` moves batch norm's running statistics.
        """
        raise NotImplementedError

    @torch.no_grad()
    def step(self, positions: Tensor) -> None:
        x, y = self.batch_at(positions)
        of_objective, of_rule = self.arguments(self.own_settings)

        def gradient(params: Grads, track: bool = True) -> Grads:
            return self.gradients(params, x[0], y[0], of_objective, track)

        if self.method.uses_momentum:
            average = {name: value[0] for name, value in self.momentum().items()}
            of_rule["momentum"] = average or None
        params = {name: value[0] for name, value in self.params.items()}
        direction = self.method.rule(gradient, params, self.hyperparameter[0], **of_rule)
        self.apply_gradients({name: g[None] for name, g in direction.items()})


def logit_gradient(
    method: Method, logits: Tensor, y: Tensor, hyperparameter: Tensor, **settings: Any
) -> Tensor:
    """Return the gradient of the method's objective in the logits (n, C).

    For objectives of cross-entropy in closed form, through the kernels that autograd would call,
    where the method's `gradient_weights` are known. Otherwise by autograd, with which a step of mlp4x500
    would take 1.05 and one of mlp1x1000 1.03 times as long (outputs/bench).
    """
    weights_of = method.gradient_weights
    if weights_of is None or method.losses is not cross_entropy:
        logits.requires_grad_()
        with torch.enable_grad():
            losses = method.losses(logits, y, hyperparameter)
            value = method.value(losses, hyperparameter, **settings)
        return torch.autograd.grad(value, logits)[0]
    logp = logits.log_softmax(1)
    losses, total = _NLL(logp, y, None, _NO_REDUCTION, _NOTHING_IGNORED)
    weights = weights_of(losses, hyperparameter, **settings) / len(y)
    of_logp = _NLL_BACK(weights, logp, y, None, _NO_REDUCTION, _NOTHING_IGNORED, total)
    gradient: Tensor = _SOFTMAX_BACK(of_logp, logp, 1, logp.dtype)
    return gradient
