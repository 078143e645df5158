"""MSAM, GNP and FD-GR: step `base` with a gradient that a rule of `softadlib.functional` makes."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softadlib import functional as F
from softadlib._validation import UserError, choose, real
from softadlib.functional.gradient_rules import FD_SCHEMES, GNP_MIXINGS, Grads
from softadlib.optim.passes import MovedWeights, unscaled
from softadlib.optim.perturbed import perturbed_pass
from softadlib.optim.wrapper import (
    Base,
    Closure,
    OptimizerWrapper,
    RadiusWrapper,
    takes_an_optimizer,
)


class RuleOptimizer(OptimizerWrapper):
    """Steps `base` with the gradient that `combine` makes of several passes of the closure."""

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        """Return the gradients to step with, by name.

        Args:
            gradient: `gradient(weights, track=True)` gives the gradients at these weights, by name,
                see `Passes.gradient`.
            params: the parameters by name.
        """
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, scaler: Any = None) -> Tensor:  # type: ignore[override]
        self._check_call(closure, scaler)
        passes = Passes(self, closure, scaler)
        passes.put_gradients(self.combine(passes.gradient, passes.params))
        self._step_base(scaler)
        return passes.losses[0]


class Passes:
    """The passes of one step: the closure at several weights, and the gradients it leaves there."""

    def __init__(self, optimizer: OptimizerWrapper, closure: Any, scaler: Any):
        self.optimizer = optimizer
        self.closure = closure
        self.scaler = scaler
        self.params = optimizer._params()
        self.losses: list[Tensor] = []
        """What the closure returned, one per pass."""
        self.with_gradient: set[str] = set()
        """Names of the parameters that had a gradient in any pass."""
        self.last: Grads | None = None
        """The gradients of a pass after which there is no other: it left none, or one overflowed."""

    def gradient(self, at: Grads, track: bool = True) -> Grads:
        """Run the closure at the weights `at`, come back, and return the gradients there, by name.

        `at` is emptied, unless it is `params` itself. `track=False` also restores the running
        statistics of batch norm.
        """
        if self.last is not None:
            return self.last
        point = {} if at is self.params else at
        buffers = [] if track else self.optimizer._statistics()
        mark = perturbed_pass() if self.losses else contextlib.nullcontext()
        with MovedWeights(self.params, point, buffers), mark:
            self.losses.append(self.optimizer._run(self.closure))
        with_gradient = {name for name, p in self.params.items() if p.grad is not None}
        self.with_gradient |= with_gradient
        grads = unscaled(self.params, self.scaler)
        for name, p in self.params.items():
            grads[name] = grads[name].clone()  # it may lie in a bucket of DDP, which is used again
            p.grad = None
        if not self.optimizer._are_usable(
            {name: grads[name] for name in with_gradient}, self.scaler
        ):
            self.last = (
                grads  # after an overflow no rule makes finite gradients of it: the step is skipped
            )
        return grads

    def put_gradients(self, grads: Grads) -> None:
        """Give each parameter its gradient; none to those that had none in any pass."""
        scale = 1.0 if self.scaler is None else self.scaler.get_scale()
        for name in self.with_gradient:
            self.params[name].grad = grads[name] if scale == 1.0 else grads[name] * scale


class MSAM(RuleOptimizer, RadiusWrapper):
    """Momentum-SAM: steps `base` with the gradient taken at w − r·m/‖m‖, m the momentum of `base`.

    `step(closure)` runs the closure once, at the perturbed weights; it returns the loss there. So a
    step costs what one of `base` does. The first step is that of `base`, which has no momentum yet.

    Args:
        base: SGD with momentum, or Adam and its kin, whose first moment is taken.
        radius: L2 length of the perturbation in weight space, over all parameters together, at
            least 0; 0 gives `base`. It stands in `param_groups`.

    Raises:
        ValueError: for a base without momentum, and as `SAM`.

    Becker et al. (2024).

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = MSAM(torch.optim.SGD([w], lr=0.1, momentum=0.9), radius=0.5)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = w.square().sum() / 2  # g(w) = w
        ...     loss.backward()
        ...     return loss
        >>> [round(optimizer.step(closure).item(), 3) for _ in range(2)]  # at w, then at 0.9·w − 0.1·w
        [12.5, 8.0]
        >>> w.data  # 0.9·w − 0.1·(0.9·w + 0.8·w)
        tensor([2.1900, 2.9200])
    """

    @takes_an_optimizer
    def __init__(self, base: Base, radius: float = 0.5):
        super().__init__(base, radius)
        if not any("betas" in group or group.get("momentum") for group in self.param_groups):
            raise UserError(
                f"MSAM needs momentum, and {type(base).__name__} has none: take Adam, or "
                "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
            )
        if hasattr(self.base, "consolidate_state_dict"):
            raise UserError(
                "MSAM over ZeroRedundancyOptimizer would see the momentum of one shard; take SAM, or "
                "shard with torch.distributed.fsdp.fully_shard"
            )

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        momentum = {}
        for name, p in params.items():
            state = self.state.get(p, {})
            buffer = state.get("momentum_buffer", state.get("exp_avg"))
            if buffer is not None:
                momentum[name] = buffer
        if not momentum and any(self.state.values()):
            raise UserError(
                f"{type(self.base).__name__} keeps neither momentum_buffer nor exp_avg, which MSAM takes; "
                "take torch.optim.SGD with momentum, or Adam"
            )
        return F.msam_gradient(gradient, params, self.radius, momentum=momentum)


class GNP(RuleOptimizer, RadiusWrapper):
    """Gradient norm penalty: steps `base` with (1−α)·g(w) + α·g(w + r·g/‖g‖), α = λ/r.

    `step(closure)` runs the closure twice, as for `SAM`.

    Args:
        base: optimizer that steps, as for `SAM`.
        alpha: λ/r without a unit, at least 0, where λ is the weight of ‖∇L‖ beside L; 1 gives SAM, 0
            gives `base` ("official": with the gradient at length 1).
        radius: length of the perturbation in weight space, at least 0. It stands in `param_groups`.
        mixing: "official" normalises the first g, as the authors' code does by default; "paper" is
            their formula.
        bn_update, model: as for `SAM`.

    Raises:
        ValueError: for numbers below 0, an unknown mixing, and as `SAM`.

    Zhao et al. (2022).

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = GNP(torch.optim.SGD([w], lr=0.1), alpha=0.5, radius=0.5)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = w.square().sum() / 2  # g(w) = w, of norm 5
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).item(), w.data  # w − 0.1·(0.5·w + 0.5·1.1·w) = 0.895·w
        (12.5, tensor([2.6850, 3.5800]))
    """

    @takes_an_optimizer
    def __init__(
        self,
        base: Base,
        alpha: float = 0.8,
        radius: float = 0.1,
        *,
        mixing: str = "paper",
        bn_update: str = "both",
        model: nn.Module | None = None,
    ):
        super().__init__(base, radius, bn_update, model)
        choose("mixing", mixing, GNP_MIXINGS)
        self.alpha = real("alpha", alpha, low=0)
        self.mixing = mixing

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        alpha = real("alpha", self.alpha, low=0)  # it may have been assigned since
        return F.gnp_gradient(gradient, params, alpha, self.bn_update, self.radius, self.mixing)


class FDGR(RuleOptimizer):
    """Gradient regularisation by finite differences: steps `base` with g + λ·(g(w + a·g) − g)/a.

    `step(closure)` runs the closure twice, as for `SAM`; three times with `scheme="centered"`.

    Args:
        base: optimizer that steps, as for `SAM`.
        strength: λ, the weight of ‖∇L‖²/2 beside L, at least 0; 0 gives `base`.
        step_size: a, the step of the difference, above 0. Both have the unit of a learning rate.
        scheme: "forward", or "centered", which takes (g(w + a·g) − g(w − a·g))/2a.
        bn_update, model: as for `SAM`.

    Raises:
        ValueError: for numbers out of range, an unknown scheme, and as `SAM`.

    Karakida et al. (2023).

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = FDGR(torch.optim.SGD([w], lr=0.1), strength=0.5, step_size=0.5)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = w.square().sum() / 2  # g(w) = w
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).item(), w.data  # w − 0.1·(w + 0.5·(1.5·w − w)/0.5) = 0.85·w
        (12.5, tensor([2.5500, 3.4000]))
    """

    @takes_an_optimizer
    def __init__(
        self,
        base: Base,
        strength: float,
        step_size: float = 0.01,
        *,
        scheme: str = "forward",
        bn_update: str = "both",
        model: nn.Module | None = None,
    ):
        super().__init__(base, bn_update, model)
        choose("scheme", scheme, FD_SCHEMES)
        self.scheme = scheme
        self.strength = real("strength", strength, low=0)
        self.step_size = real("step_size", step_size, above=0)

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        strength = real("strength", self.strength, low=0)  # it may have been assigned since
        return F.fdgr_gradient(
            gradient, params, strength, self.bn_update, self.step_size, self.scheme
        )
