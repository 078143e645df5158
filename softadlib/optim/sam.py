"""SAM and ASAM: step `base` with the gradient at nearby weights where the loss is higher."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from softadlib import functional as F
from softadlib._validation import UserError, choose, real
from softadlib.functional.gradient_rules import ASAM_VARIANTS, Grads
from softadlib.optim.passes import MovedWeights, all_finite, unscaled
from softadlib.optim.perturbed import end_perturbed, start_perturbed
from softadlib.optim.wrapper import Base, Closure, RadiusWrapper, takes_an_optimizer


class SAM(RadiusWrapper):
    """Sharpness-aware minimisation: steps `base` with the gradient at w + r·g(w)/‖g(w)‖.

    `step(closure)` runs the closure, `first_step()`, the closure again, `second_step()`: two gradients
    per step. Learning rate, weight decay and state are those of `base`. To clip the gradient that
    `base` steps with, call `register_step_pre_hook(lambda *_: clip_grad_norm_(params, 1.0))`. Each pass
    draws its own dropout masks. Under DDP both passes average gradients over the processes. Without
    batch norm and dropout the step is then that of one process with the whole batch.

    Args:
        base: optimizer that makes the update; or a list of optimizers with different parameters,
            which are perturbed together.
        radius: r, the L2 length of the perturbation in weight space, over all parameters together,
            at least 0; 0 steps like `base` alone, at twice the cost. It is stored in every parameter
            group.
        bn_update: "both" lets both passes update the running statistics of batch norm, as the paper's
            code does; "first" keeps those of the first pass and needs `model`.
        model: the network, for "first"; the DDP module for `first_sync=False`.
        first_sync: if False, `step(closure)` perturbs each DDP process by the gradient of its own part
            of the batch, which saves one exchange (m-sharpness). `first_step` does not read it.

    Raises:
        ValueError: for a radius below 0 or different radii in the groups, parameters in half
            precision or of FullyShardedDataParallel, `maximize=True`, a base that needs a closure,
            and a `step` without one.
        RuntimeError: for a closure that adds to earlier gradients, and for `first_step`, `second_step`
            and `step` in another order.

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

    @takes_an_optimizer
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
        if not first_sync and not hasattr(model, "no_sync"):
            raise UserError("first_sync=False needs model=, the DistributedDataParallel of the run")
        self.first_sync = first_sync
        self._moved: MovedWeights | None = None
        """The weights before `first_step`; None unless `second_step` is still to come."""
        self._scaler: Any = None
        """The GradScaler of `first_step`; None without one, and if it is disabled."""

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, scaler: Any = None) -> Tensor:  # type: ignore[override]
        """Run the closure, `first_step`, the closure again, `second_step`. Return the first loss.

        Args:
            closure: zeroes the gradients, computes the loss, calls `backward()` and returns the loss.
            scaler: the `torch.amp.GradScaler` with which the closure calls
                `scaler.scale(loss).backward()`. Do not call its `unscale_`, `step` or `update`: a step
                in which a pass overflows is skipped, and the scale is updated once.
        """
        self._check_call(closure, scaler)
        # Keep the last gradients through the first pass: freed before it, their memory would go back to
        # the system, and be asked for again.
        last_gradients = [p.grad for p in self._every_param()]
        with self._first_exchange():
            loss = self._run(closure)
        del last_gradients
        if self.first_step(zero_grad=True, scaler=scaler):
            try:
                self._run(closure)
            except BaseException:
                self._come_back()
                raise
        self.second_step(scaler=scaler)
        return loss

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False, *, scaler: Any = None) -> bool:
        """Move to the perturbed weights, by the gradients that `backward()` has left.

        For a loop without a closure::

            criterion(model(inputs), targets).backward()
            optimizer.first_step(zero_grad=True)
            criterion(model(inputs), targets).backward()
            optimizer.second_step(zero_grad=True)

        With micro-batches, accumulate all of them before each of the two calls. A checkpoint that is
        saved between the two holds the perturbed weights. Lightning counts `step(closure)` in
        `global_step` and `max_steps`, but not these two.

        Args:
            zero_grad: reset the gradients, to which the second `backward()` would add.
            scaler: the `torch.amp.GradScaler` that scaled the loss; give it to `second_step`, too.

        Returns:
            Whether the weights moved. Without gradients they stay, with a warning. They also stay if
            the scaled gradients overflowed; these are then not reset, and `second_step` skips the step.

        Raises:
            RuntimeError: if the weights are already perturbed.
        """
        self._check_order()
        params = {name: p for name, p in self._params().items() if p.grad is not None}
        grads = unscaled(params, scaler)
        if not grads:
            self._warn_without_gradients()
        scaler = _enabled(scaler)
        moves = bool(grads) and (scaler is None or all_finite(grads))
        perturbed = self.perturbed(params, grads) if moves else {}
        if zero_grad and moves:
            self.zero_grad()
        grads.clear()  # after zero_grad the last references: the copy of the weights takes their memory
        self._moved = MovedWeights(params, perturbed, self._statistics())
        self._scaler = scaler
        start_perturbed(self)
        return moves

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False, *, scaler: Any = None) -> None:
        """Come back to the weights before `first_step` and step `base` with the gradients at hand.

        Args:
            zero_grad: reset the gradients after the step.
            scaler: that of `first_step`. It is updated here; do not call its `unscale_`.

        Raises:
            RuntimeError: without `first_step`.
            ValueError: for another `scaler` than that of `first_step`; the weights stay perturbed.
        """
        if self._moved is None:
            raise RuntimeError("second_step needs first_step before it")
        if _enabled(scaler) is not self._scaler:
            raise UserError("give first_step and second_step the same scaler=, or none to both")
        self._come_back()
        self._step_base(scaler)
        if zero_grad:
            self.zero_grad()

    def perturbed(self, params: Grads, grads: Grads) -> Grads:
        """Return the weights at which the second gradient is taken, by name."""
        return F.perturb(params, grads, self.radius)

    def _come_back(self) -> None:
        assert self._moved is not None
        self._moved.come_back()
        self._moved = self._scaler = None
        end_perturbed(self)

    def _first_exchange(self) -> contextlib.AbstractContextManager[None]:
        """Keep DDP from averaging the first gradient, with `first_sync=False`."""
        model: Any = self.model
        return contextlib.nullcontext() if self.first_sync else model.no_sync()

    def _check_call(self, closure: object, scaler: Any) -> None:
        super()._check_call(closure, scaler)
        self._check_order()
        if _enabled(scaler) is not None and not self.first_sync:
            raise UserError(
                "with first_sync=False and a GradScaler one process alone may skip the step; "
                "leave out first_sync=False, or train in bfloat16 without a scaler"
            )

    def _check_order(self) -> None:
        """Raise RuntimeError between `first_step` and `second_step`."""
        if self._moved is not None:
            raise RuntimeError(
                "the weights are perturbed since an earlier first_step; call second_step in between"
            )


def _enabled(scaler: Any) -> Any:
    """Return the GradScaler; None if it is disabled."""
    return scaler if scaler is not None and scaler.is_enabled() else None


class ASAM(SAM):
    """Adaptive SAM: steps `base` with the gradient at w + r·T²g/‖Tg‖, T as large as |w|.

    Args:
        base: optimizer that makes the update, as for `SAM`.
        radius: r, the size of the perturbation, without a unit, at least 0; 0 steps like `base` alone,
            at twice the cost. The authors take 0.5 for CIFAR-10 and 1 for CIFAR-100. It is stored in
            every parameter group.
        variant: "official", the authors' code, has T = |w| + `eta` for parameters of `model` whose name
            contains "weight", and T = 1 for the others. "davda54", after the user of GitHub who
            published it, has T = |w| for all. Default: "official" with `model=`, "davda54" without.
        eta: added to |w| by "official", in weight space, at least 0.
        bn_update, first_sync: as for `SAM`.
        model: as for `SAM`; it also gives "official" the names, and so changes the default of `variant`.

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
        ...     loss = (w.square() / torch.tensor([6.0, 8.0])).sum()  # g(w) = w/(3, 4)
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).item()
        3.5
        >>> w.data  # T²g = (9, 16), ‖Tg‖ = 5: w − 0.1·g(3.9, 5.6); SGD gives (2.9, 3.9)
        tensor([2.8700, 3.8600])
    """

    adaptive = True

    @takes_an_optimizer
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
        self._params()  # raises for a model that lacks one

    def perturbed(self, params: Grads, grads: Grads) -> Grads:
        return F.asam_perturb(params, grads, self.radius, self.variant, self.eta)

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
