"""What the optimizers here share: the passes of a step, and `base`, the optimizer that steps.

A step is: call the closure at w, move to other weights, call it there, move back, `base.step()`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softadlib._validation import UserError, choose, real
from softadlib.functional.gradient_rules import BN_UPDATES, Grads
from softadlib.functional.reduction import HALF
from softadlib.optim.joint import JointOptimizer
from softadlib.optim.perturbed import perturbed_pass

Base = Optimizer | Sequence[Optimizer]
"""The optimizer that steps, or several of them."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of batch norm and instance norm that a pass in training mode moves."""


class ClosureOptimizer(Optimizer):
    """Steps `base` with the gradient that a rule makes of several passes of the closure.

    Parameter groups, state and hooks are those of `base`, so schedulers and checkpoints take
    either. Subclasses write `combine`.
    """

    def __init__(self, base: Base, bn_update: str = "both", model: nn.Module | None = None):
        # Optimizer.__init__ is not called on purpose: it would make groups and a state of its own.
        choose("bn_update", bn_update, BN_UPDATES)
        if bn_update == "first" and model is None:
            raise UserError("bn_update='first' needs model=, to find its batch norm layers")
        self.base = self._checked_base(base)
        self.bn_update = bn_update
        self.model = model
        self._check_groups()

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        """Return the gradients to step with, by name.

        Args:
            gradient: `gradient(weights)` runs the closure there, see `Passes.gradient`.
            params: the parameters by name.
        """
        raise NotImplementedError

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch's closures give floats; users' give tensors
        self, closure: Callable[[], Tensor] | None = None, *, scaler: Any = None
    ) -> Tensor:
        """Make one update. Return the loss of the closure's first call.

        Args:
            closure: zeroes the gradients, computes the loss, calls `backward()` and returns the
                loss. It is called once per pass.
            scaler: the `torch.amp.GradScaler` by which the closure scales: it calls
                `scaler.scale(loss).backward()` and returns `loss`. Leave out `scaler.unscale_`,
                `scaler.step` and `scaler.update`: a step in which a pass overflows is skipped, and
                the scale is updated once.
        """
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        self._check_call(closure, scaler)
        passes = Passes(self, closure, scaler)
        # Where a pass overflows, scaler.step finds it, too, and skips.
        with contextlib.suppress(NothingToStepWith):
            passes.put_gradients(self.combine(passes.gradient, passes.params))
        if scaler is None or not passes.with_gradient:
            self.base.step()
        else:
            scaler.unscale_(self.base)  # before the step, so that hooks of `base` can clip
            scaler.step(self.base)
            scaler.update()
        return passes.losses[0]

    # All else that an Optimizer has is that of `base`.

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups of `base`."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of `base`."""
        return self.base.state

    def __getattr__(self, name: str) -> Any:
        """Return what is not here from `base`: its defaults, its hooks, its `train` and `eval`."""
        if name == "base":  # not set yet, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self.base, name)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to `base`; ValueError for parameters that the constructor refuses."""
        self.base.add_param_group(param_group)
        self._check_groups()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients."""
        self.base.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `base`."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of `base`."""
        self.base.load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: all but the `step` that a scheduler has put in place of ours."""
        return {name: value for name, value in vars(self).items() if name != "step"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    # Parameters, and what is refused

    def _params(self) -> Grads:
        """Return the parameters that can have a gradient, by name."""
        every = [p for group in self.param_groups for p in group["params"]]
        named = zip(self._names(every), every)
        return {name: p for name, p in named if p.requires_grad or p.grad is not None}

    def _names(self, params: list[Tensor]) -> list[str]:
        return [str(i) for i in range(len(params))]

    def _checked_base(self, base: Base) -> Optimizer:
        """Return the optimizer to step; several are joined. UserError for what cannot be one."""
        name = type(self).__name__
        bases: list[Any] = list(base) if isinstance(base, (list, tuple)) else [base]
        if not bases:
            raise UserError(f"{name} takes one optimizer or several, got an empty list")
        for one in bases:
            given = type(one).__name__
            if not isinstance(one, Optimizer):
                raise UserError(
                    f"{name} takes an optimizer, such as SGD(model.parameters(), lr=0.1), got {given}"
                )
            calls_closure = isinstance(one, (ClosureOptimizer, torch.optim.LBFGS))
            if calls_closure or hasattr(one, "first_step"):  # as in SAM of other packages
                raise UserError(
                    f"{name} cannot wrap {given}, which calls the closure itself; take SGD or Adam"
                )
        return bases[0] if len(bases) == 1 else JointOptimizer(bases)

    def _check_groups(self) -> None:
        """Raise UserError for groups and parameters that cannot be perturbed by their gradient."""
        name = type(self).__name__
        for group in self.param_groups:
            if group.get("maximize"):
                raise UserError(
                    f"{name} cannot step with maximize=True: minimise the negative loss instead"
                )
            for p in group["params"]:
                if p.dtype in HALF:
                    raise UserError(
                        f"{name} takes no parameters in {p.dtype}, which rounds a perturbation away; "
                        "use float32 parameters, under torch.autocast with bfloat16"
                    )
                # FSDP1 sets this, also with use_orig_params=True. There is no public way to ask.
                if getattr(p, "_fsdp_flattened", False):
                    raise UserError(
                        f"{name} under FullyShardedDataParallel would climb by the gradient of one "
                        "shard; shard with torch.distributed.fsdp.fully_shard"
                    )

    def _check_call(self, closure: object, scaler: object) -> None:
        """Raise UserError where `step` cannot be made like this."""
        if not callable(closure):
            raise UserError(
                f"{type(self).__name__}.step needs a closure, and with a GradScaler "
                "step(closure, scaler=scaler); in Lightning use precision 'bf16-mixed', since "
                "'16-mixed' gives none; in Hugging Face's Trainer use softadlib.SAMTrainerMixin; "
                "torch.distributed.checkpoint takes optimizer.base"
            )


class NothingToStepWith(Exception):
    """A pass left no gradients, or gradients that are not finite. They stay where they are."""


class Passes:
    """The passes of one step: the closure at one point and another, and the gradients it leaves there."""

    def __init__(self, optimizer: ClosureOptimizer, closure: Any, scaler: Any):
        self.optimizer = optimizer
        self.closure: Callable[[], Tensor] = torch.enable_grad()(closure)
        self.scaler = scaler
        self.scale = 1.0 if scaler is None else scaler.get_scale()
        self.params = optimizer._params()
        self.losses: list[Tensor] = []
        """What the closure returned, one per pass."""
        self.with_gradient: set[str] = set()
        """Names of the parameters that had a gradient in any pass."""

    def gradient(self, at: Grads, track: bool = True) -> Grads:
        """Run the closure at the weights `at`. Return the gradients there, by name.

        Afterwards the parameters have their old values. `at` is emptied, unless it is `params`
        itself. `track=False` also restores batch norm's running statistics.
        """
        if at is self.params:
            self._call_closure()
        else:
            weights = MovedWeights(self.params, None if track else self.optimizer.model)
            with weights.moved_to(at):
                self._call_closure()
        return self._take_gradients()

    def put_gradients(self, grads: Grads) -> None:
        """Give each parameter its gradient; none to those that had none in any pass."""
        if self.scaler is not None:
            # Nothing is left to unscale. The call raises if the closure has unscaled already.
            self.scaler.unscale_(self.optimizer)
        for name in self.with_gradient:
            grad = grads[name]
            self.params[name].grad = grad if self.scaler is None else grad * self.scale

    def _call_closure(self) -> None:
        """Call the closure; RuntimeError where it adds to gradients of before."""
        earlier = [(p, p.grad) for p in self.params.values() if p.grad is not None]
        with perturbed_pass() if self.losses else contextlib.nullcontext():
            self.losses.append(self.closure())
        if any(p.grad is grad for p, grad in earlier):
            name = type(self.optimizer).__name__
            raise RuntimeError(
                f"{name}.step found gradients of an earlier backward(): in the closure call "
                "optimizer.zero_grad(), which sets them to None, and every micro-batch's backward() "
                "(in Lightning accumulate_grad_batches=1)"
            )

    def _take_gradients(self) -> Grads:
        """Take the gradients off the parameters, so that the next pass cannot add to them."""
        self.with_gradient |= {name for name, p in self.params.items() if p.grad is not None}
        if not self.with_gradient:
            raise NothingToStepWith
        grads = {name: dense_gradient(p) for name, p in self.params.items()}
        if self.scaler is not None and not all_finite(grads):
            raise NothingToStepWith
        for name, grad in grads.items():
            if self.scaler is not None:
                grads[name] = grad / self.scale
            elif grad._is_view():  # into a bucket of DDP, which the next pass overwrites
                grads[name] = grad.clone()
            self.params[name].grad = None
        return grads


class MovedWeights:
    """Parameters that move to other values and come back to the bit. Keeps one copy of them."""

    def __init__(self, params: Grads, frozen: nn.Module | None = None):
        self.params = params
        self.statistics = running_statistics(frozen) if frozen is not None else []
        self.kept: list[tuple[Tensor, Tensor]] = []

    def move_to(self, point: Grads) -> None:
        """Copy `point` into the parameters, and empty it, so that there is no second copy."""
        for buffer in self.statistics:
            self.kept.append((buffer, buffer.clone()))
        for name, p in self.params.items():
            self.kept.append((p, p.clone()))
            p.copy_(point.pop(name))
        torch.clear_autocast_cache()  # which holds the weights in half precision

    def come_back(self) -> None:
        """Restore from the copies: subtracting the perturbation would round."""
        for tensor, before in self.kept:
            tensor.copy_(before)
        self.kept.clear()
        torch.clear_autocast_cache()

    @contextlib.contextmanager
    def moved_to(self, point: Grads) -> Iterator[None]:
        """Move to `point`, and come back at the end of the context."""
        try:
            self.move_to(point)
            yield
        finally:
            self.come_back()


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the running statistics of the normalisation layers of `model`."""
    return [b for name, b in model.named_buffers() if name.rpartition(".")[2] in STATISTICS]


def all_finite(grads: Grads) -> bool:
    """Tell whether no gradient overflowed. Waits for the device once."""
    finite = [grad.isfinite().all() for grad in grads.values()]
    return bool(torch.stack([one.to(finite[0].device) for one in finite]).all())


def dense_gradient(p: Tensor) -> Tensor:
    """Return the gradient of `p` as a dense tensor; zeros where there is none."""
    if p.grad is None:
        return torch.zeros_like(p)
    return p.grad.to_dense() if p.grad.is_sparse else p.grad


class RadiusOptimizer(ClosureOptimizer):
    """A rule that perturbs the weights by a radius, which stands in every parameter group."""

    def __init__(
        self, base: Base, radius: float, bn_update: str = "both", model: nn.Module | None = None
    ):
        super().__init__(base, bn_update, model)
        radius = real("radius", radius, low=0)
        held = {group["radius"] for group in self.param_groups if "radius" in group}
        self._check_radii(held)
        if held and held != {radius}:
            raise UserError(
                f"radius={radius:g}, but parameter groups of the base hold radius={held.pop():g}, from an "
                "earlier wrapper or a checkpoint; give the same, or delete it from the groups"
            )
        self.radius = radius

    @property
    def radius(self) -> float:
        """Size of the perturbation. Schedules, logs and checkpoints see it in the groups."""
        radii = {group["radius"] for group in self.param_groups if "radius" in group}
        self._check_radii(radii)
        self.radius = radii.pop() if radii else self._radius  # a plain optimizer's state has none
        return self._radius

    @radius.setter
    def radius(self, value: float) -> None:
        self._radius = real("radius", value, low=0)
        for group in self.param_groups:
            group["radius"] = self._radius

    def _check_radii(self, radii: set[float]) -> None:
        if len(radii) > 1:
            raise UserError(
                f"parameter groups have the radii {sorted(radii)}; give every group the same"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to `base`, with the radius of the others."""
        super().add_param_group({"radius": self.radius, **param_group})
