"""SAM, ASAM, MSAM, GNP and FD-GR: each wraps a `torch.optim` optimizer behind `step(closure)`."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softadlib import functional as F
from softadlib._validation import UserError, choose, real
from softadlib.functional.gradient_rules import ASAM_VARIANTS, FD_SCHEMES, GNP_MIXINGS, Grads
from softadlib.optim.closure import (
    Base,
    ClosureOptimizer,
    MovedWeights,
    RadiusOptimizer,
    dense_gradient,
)
from softadlib.optim.perturbed import end_perturbed, start_perturbed


class SAM(RadiusOptimizer):
    """Sharpness-aware minimisation: steps `base` with the gradient taken at w + r·g(w)/‖g(w)‖.

    `step(closure)` runs the closure twice. It must zero the gradients, compute the loss, call
    `backward()` and return the loss. The learning rate, weight decay and state are those of `base`;
    clip in a step pre-hook of `base`. Each pass draws dropout masks of its own. Under DDP both passes
    average gradients, so the step is that of one process with the whole batch. With a GradScaler the
    closure calls `scaler.scale(loss).backward()` and the step is `step(closure, scaler=scaler)`.
    Without a closure, call `first_step` and `second_step`.

    Args:
        base: optimizer that steps, with its own settings; or a list of optimizers with different
            parameters, which are perturbed together.
        radius: L2 length of the perturbation in weight space, over all parameters together, at
            least 0; 0 gives `base`. It stands in `param_groups`, the same in each.
        bn_update: "both" lets each pass move batch norm's running statistics, as the paper's code
            does; "first" keeps those of the first pass and needs `model`.
        model: the network, for "first"; the DDP module for `first_sync=False`.
        first_sync: False lets every DDP process perturb by its own part of the batch, which saves an
            exchange (m-sharpness).

    Raises:
        ValueError: for a radius below 0 or different radii in the groups, parameters in half
            precision or of FullyShardedDataParallel, `maximize=True`, a base that needs a closure,
            and a `step` without one.
        RuntimeError: for a closure that adds to gradients of before.

    Foret et al. (2021).

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = SAM(torch.optim.SGD([w], lr=0.1), radius=0.5)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = w.square().sum() / 2  # g(w) = w, of norm 5
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).item()
        12.5
        >>> w.data  # w − 0.1·(w + 0.5·w/5) = 0.89·w
        tensor([2.6700, 3.5600])
    """

    _moved: MovedWeights | None = None
    """The weights between the two halves."""

    def __init__(
        self,
        base: Base,
        radius: float = 0.05,
        *,
        bn_update: str = "both",
        model: nn.Module | None = None,
        first_sync: bool = True,
    ):
        super().__init__(base, radius, bn_update, model)
        self.first_sync = first_sync
        if not first_sync and not hasattr(model, "no_sync"):
            raise UserError("first_sync=False needs model=, the DistributedDataParallel of the run")

    def perturbed(self, params: Grads, grads: Grads) -> Grads:
        """Return the weights at which the second gradient is taken."""
        return F.perturb(params, grads, self.radius)

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        model: Any = self.model
        with contextlib.nullcontext() if self.first_sync else model.no_sync():
            point = self.perturbed(params, gradient(params))
        track = self.bn_update == "both"
        return gradient(point, track=track)

    def _check_call(self, closure: object, scaler: object) -> None:
        super()._check_call(closure, scaler)
        if self._moved is not None:
            raise RuntimeError("step was called after first_step; call second_step in between")
        if scaler is not None and not self.first_sync:
            raise UserError(
                "with first_sync=False and a GradScaler one process alone may skip the step; "
                "leave out first_sync=False, or train in bfloat16 without a scaler"
            )

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        """Move to the perturbed weights, by the gradients that `backward()` has left.

        For loops that cannot hand over a closure: call `first_step`, compute the loss and call
        `backward()` at the moved weights, then call `second_step`. The result is that of
        `step(closure)`, to the bit. With micro-batches, accumulate all before each half. With a
        GradScaler use `step(closure, scaler=scaler)`: the halves step with scaled gradients.
        A checkpoint that is saved between the halves holds the perturbed weights.

        Args:
            zero_grad: reset the gradients, to which the second `backward()` would add.

        Raises:
            RuntimeError: for a second `first_step` without `second_step` in between.
        """
        if self._moved is not None:
            raise RuntimeError("first_step was called twice; call second_step in between")
        params = self._params()
        grads = {name: dense_gradient(p) for name, p in params.items()}
        point = self.perturbed(params, grads)
        self._moved = MovedWeights(params, self.model if self.bn_update == "first" else None)
        self._moved.move_to(point)
        start_perturbed(self)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        """Go back to the weights before `first_step` and step `base` with the gradients there.

        Args:
            zero_grad: reset the gradients after the step.

        Raises:
            RuntimeError: without `first_step`.
        """
        if self._moved is None:
            raise RuntimeError("second_step needs first_step before it")
        self._moved.come_back()
        self._moved = None
        end_perturbed(self)
        self._opt_called = True  # schedulers of torch warn where they see no step
        self.base.step()
        if zero_grad:
            self.zero_grad()


class ASAM(SAM):
    """Adaptive SAM: steps `base` with the gradient taken at w + r·T²g/‖Tg‖, T as large as |w|.

    `step(closure)` runs the closure twice, as for `SAM`.

    Args:
        base: optimizer that steps, as for `SAM`.
        radius: size of the perturbation without a unit, at least 0; 0 gives `base`. The authors take
            0.5 for CIFAR-10 and 1 for CIFAR-100. It stands in `param_groups`.
        variant: "official" has T = |w| + `eta` for parameters named *weight* in `model` and 1 for the
            others; "davda54" has T = |w| for all and needs no names. Default: "official" where
            `model` is given, "davda54" without.
        eta: added to |w| by "official", in weight space, at least 0.
        bn_update, model, first_sync: as for `SAM`. "official" needs `model`.

    Raises:
        ValueError: for numbers below 0, an unknown variant, "official" without `model` or with a
            model that lacks a parameter of `base`, and as `SAM`.

    Kwon et al. (2021).

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = ASAM(torch.optim.SGD([w], lr=0.1), radius=0.5)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = w.sum()  # g = (1, 1) everywhere
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).item(), w.data
        (7.0, tensor([2.9000, 3.9000]))
    """

    def __init__(
        self,
        base: Base,
        radius: float = 0.5,
        *,
        variant: str | None = None,
        eta: float = 0.01,
        bn_update: str = "both",
        model: nn.Module | None = None,
        first_sync: bool = True,
    ):
        super().__init__(base, radius, bn_update=bn_update, model=model, first_sync=first_sync)
        if variant is None:
            variant = "davda54" if model is None else "official"
        choose("variant", variant, ASAM_VARIANTS)
        if variant == "official" and model is None:
            raise UserError("variant='official' needs model=, to know which parameters are weights")
        self.variant = variant
        self.eta = real("eta", eta, low=0)
        self._params()  # takes the names, which may lack

    def _check_groups(self) -> None:
        super()._check_groups()
        if any(p.is_complex() for group in self.param_groups for p in group["params"]):
            raise UserError("ASAM is not defined for complex parameters; use SAM")

    def _names(self, params: list[Tensor]) -> list[str]:
        if self.variant != "official":
            return super()._names(params)
        assert self.model is not None
        names = {id(p): name for name, p in self.model.named_parameters()}
        if not all(id(p) in names for p in params):
            raise UserError(
                "model= lacks a parameter of the optimizer; variant='official' goes by name"
            )
        return [names[id(p)] for p in params]

    def perturbed(self, params: Grads, grads: Grads) -> Grads:
        return F.asam_perturb(params, grads, self.radius, self.variant, self.eta)


class MSAM(RadiusOptimizer):
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


class GNP(RadiusOptimizer):
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


class FDGR(ClosureOptimizer):
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
