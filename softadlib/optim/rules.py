"""MSAM, GNP and FD-GR: step `base` with a gradient that a rule of `softadlib.functional` makes."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softadlib import functional as F
from softadlib._validation import UserError, choose, real
from softadlib.functional.gradient_rules import FD_SCHEMES, GNP_MIXINGS, Grads
from softadlib.optim.passes import MovedWeights, all_finite, dense, unscaled
from softadlib.optim.perturbed import perturbed_pass
from softadlib.optim.wrapper import (
    Base,
    Closure,
    OptimizerWrapper,
    RadiusWrapper,
    takes_an_optimizer,
)


class MSAM(RadiusWrapper):
    """Momentum-SAM: steps `base` with the gradient taken at w − r·m/‖m‖, m the momentum of `base`.

    `step(closure)` runs the closure once, at the perturbed weights; it returns the loss there. So a
    step costs what one of `base` does. The first step is that of `base`, which has no momentum yet.

    Args:
        base: SGD with momentum, or Adam and its kin, whose first moment is taken.
        radius: L2 length of the perturbation in weight space, over all parameters together, at
            least 0; 0 steps like `base` alone. It is stored in every parameter group.

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

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, scaler: Any = None) -> Tensor:  # type: ignore[override]
        """Move against the momentum, run the closure there, come back and step `base`."""
        self._check_call(closure, scaler)
        radius = self.radius
        params = self._params()
        momentum = self._momentum(params)
        moving = {name: params[name] for name in momentum}
        point = F.perturb(moving, momentum, -radius) if momentum else {}
        with MovedWeights(params, point):
            loss = self._run(closure)
        if all(p.grad is None for p in params.values()):
            self._warn_without_gradients()
        self._step_base(scaler)
        return loss

    def _momentum(self, params: Grads) -> Grads:
        """Return the momentum of the parameters that have one; of none before the first step."""
        momentum = {}
        for name, p in params.items():
            state = self.state.get(p, {})
            buffer = state.get("momentum_buffer", state.get("exp_avg"))
            if buffer is not None:
                momentum[name] = dense(buffer)
        if not momentum and any(self.state.values()):
            raise UserError(
                f"{type(self.base).__name__} keeps neither momentum_buffer nor exp_avg, which MSAM takes; "
                "take torch.optim.SGD with momentum, or Adam"
            )
        return momentum


class RuleOptimizer(OptimizerWrapper):
    """Steps `base` with the gradient that `combine` makes of several passes of the closure."""

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        """Return the gradients to step with, by name.

        Args:
            gradient: `gradient(weights, track=True)` runs the closure at these weights and gives the
                gradients there, by name. It empties `weights`, unless they are `params`. With
                `track=False` it restores the running statistics of batch norm.
            params: the parameters by name.
        """
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, scaler: Any = None) -> Tensor:  # type: ignore[override]
        """Run the closure where the rule asks for a gradient, and step `base` with what it makes of them."""
        self._check_call(closure, scaler)
        params = self._params()
        losses: list[Tensor] = []
        with_gradient: set[str] = set()
        last: Grads = {}  # of a pass that overflowed or left no gradients: there is no other after it

        def gradient(at: Grads, track: bool = True) -> Grads:
            if last:
                return last
            point = {} if at is params else at
            mark = perturbed_pass() if losses else contextlib.nullcontext()
            with MovedWeights(params, point, [] if track else self._statistics()), mark:
                losses.append(self._run(closure))
            with_gradient.update(name for name, p in params.items() if p.grad is not None)
            grads = unscaled(params, scaler)
            for name, p in params.items():
                # It may lie in a bucket of DDP, which the next pass overwrites.
                grads[name] = grads[name].clone()
                p.grad = None
            if not with_gradient or (scaler is not None and not all_finite(grads)):
                last.update(grads)
            return grads

        combined = self.combine(gradient, params)
        scale = 1.0 if scaler is None else scaler.get_scale()
        for name in with_gradient:  # a parameter without gradients is left out, as torch does
            params[name].grad = combined[name] * scale
        if not with_gradient:
            self._warn_without_gradients()
        self._step_base(scaler)  # after an overflow `combined` is not finite, and the scaler skips
        return losses[0]


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
