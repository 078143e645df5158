"""What the optimizers here share: groups, state and hooks of `base`, the radius, and what is refused."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softadlib._validation import UserError, choose, real, warn
from softadlib.functional.gradient_rules import BN_UPDATES, Grads
from softadlib.functional.reduction import HALF
from softadlib.optim.joint import JointOptimizer
from softadlib.optim.passes import run_closure, running_statistics

Base = Optimizer | Sequence[Optimizer]
"""The optimizer that makes the update, or several of them."""
Closure = Callable[[], Tensor]
"""Zeroes the gradients, computes the loss, calls `backward()` and returns the loss."""
Init = TypeVar("Init", bound=Callable[..., None])


def takes_an_optimizer(init: Init) -> Init:
    """Make a constructor say what to write if it gets parameters, as those of other packages do."""

    @functools.wraps(init)
    def checked(self: Any, base: Any, *args: Any, **settings: Any) -> None:
        bases = base if isinstance(base, (list, tuple)) else [base]
        if not bases or not all(isinstance(one, Optimizer) for one in bases):
            name = type(self).__name__
            raise UserError(
                f"{name} takes an optimizer, or a list of them: write "
                f"{name}(SGD(model.parameters(), lr=0.1), radius=0.05)"
            )
        init(self, base, *args, **settings)

    return cast(Init, checked)


class OptimizerWrapper(Optimizer):
    """Steps `base` with gradients taken at other weights.

    Parameter groups, state and hooks are those of `base`, so schedulers and checkpoints take either.
    """

    @takes_an_optimizer
    def __init__(self, base: Base, bn_update: str = "both", model: nn.Module | None = None):
        # Optimizer.__init__ is not called: it would make groups and a state of its own.
        choose("bn_update", bn_update, BN_UPDATES)
        if bn_update == "first" and model is None:
            raise UserError("bn_update='first' needs model=, to find its batch norm layers")
        bases = [base] if isinstance(base, Optimizer) else list(base)
        for one in bases:
            calls_closure = isinstance(one, (OptimizerWrapper, torch.optim.LBFGS))
            if calls_closure or hasattr(one, "first_step"):  # as SAM of other packages has
                raise UserError(
                    f"{type(self).__name__} cannot wrap {type(one).__name__}, which calls the closure "
                    "itself; take SGD or Adam"
                )
        self.base = bases[0] if len(bases) == 1 else JointOptimizer(bases)
        self.bn_update = bn_update
        self.model = model
        self._check_groups()

    def step(self, closure: Closure | None = None, *, scaler: Any = None) -> Tensor:  # type: ignore[override]
        """Make one update. Return the loss of the closure's first call.

        Args:
            closure: zeroes the gradients, computes the loss, calls `backward()` and returns the loss.
                It is called once per gradient.
            scaler: the `torch.amp.GradScaler` with which the closure calls
                `scaler.scale(loss).backward()`. Do not call its `unscale_`, `step` or `update`: a step
                in which a pass overflows is skipped, and the scale is updated once.
        """
        raise NotImplementedError

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

    # For subclasses

    def _params(self) -> Grads:
        """Return the parameters that can have a gradient, by name."""
        every = list(self._every_param())
        named = zip(self._names(every), every)
        return {name: p for name, p in named if p.requires_grad or p.grad is not None}

    def _every_param(self) -> Iterator[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def _names(self, params: list[Tensor]) -> list[str]:
        return [str(i) for i in range(len(params))]

    def _run(self, closure: Any) -> Tensor:
        return run_closure(closure, self._every_param(), type(self).__name__)

    def _statistics(self) -> list[Tensor]:
        """Return the buffers that later passes must not change."""
        if self.bn_update == "both":
            return []
        assert self.model is not None
        return running_statistics(self.model)

    def _step_base(self, scaler: Any) -> None:
        """Step `base` with the gradients at hand; a GradScaler skips the step if they overflowed."""
        self._opt_called = True  # schedulers of torch warn if they see no call of `step`
        params = [p for p in self._every_param() if p.grad is not None]
        if scaler is None or not params:
            self.base.step()
            return
        grads = [p.grad for p in params]
        for p in params:
            p.grad = None
        try:
            # There is nothing to unscale; it raises if the caller has done it already.
            scaler.unscale_(self)
        finally:
            for p, grad in zip(params, grads):
                p.grad = grad
        scaler.unscale_(self.base)  # before the step, so that hooks of `base` can clip
        scaler.step(self.base)
        scaler.update()

    def _warn_without_gradients(self) -> None:
        warn(
            f"{type(self).__name__} found no gradients, so the weights stay where they are; "
            "call loss.backward() in the closure, or before first_step"
        )

    def _check_call(self, closure: object, scaler: Any) -> None:
        """Raise UserError if `step` cannot be made like this."""
        if not callable(closure):
            raise UserError(
                f"{type(self).__name__}.step needs a closure, and with a GradScaler "
                "step(closure, scaler=scaler); in Lightning use precision 'bf16-mixed', since "
                "'16-mixed' gives none; in Hugging Face's Trainer use softadlib.SAMTrainerMixin; "
                "torch.distributed.checkpoint takes optimizer.base"
            )

    def _check_groups(self) -> None:
        """Raise UserError for parameters whose perturbation would go wrong without a word."""
        name = type(self).__name__
        if any(group.get("maximize") for group in self.param_groups):
            raise UserError(
                f"{name} cannot step with maximize=True: minimise the negative loss instead"
            )
        for p in self._every_param():
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


class RadiusWrapper(OptimizerWrapper):
    """A wrapper that perturbs the weights by a radius, which every parameter group stores."""

    adaptive = False
    """Whether the perturbation is relative to the size of the weights, as in ASAM."""

    def __init__(
        self, base: Base, radius: float, bn_update: str = "both", model: nn.Module | None = None
    ):
        super().__init__(base, bn_update, model)
        radius = real("radius", radius, low=0)
        other = self._stored_radii() - {radius}
        if other:
            raise UserError(
                f"radius={radius:g}, but parameter groups of the base hold radius={other.pop():g}, from "
                "an earlier wrapper or a checkpoint; give the same, or delete it from the groups"
            )
        self.radius = radius

    @property
    def radius(self) -> float:
        """Size of the perturbation, which schedules may change in the parameter groups."""
        radii = self._stored_radii()
        if len(radii) > 1:
            raise UserError(
                f"parameter groups have the radii {sorted(radii)}; give every group the same"
            )
        # A group that was added to `base`, or a state of a plain optimizer, has none.
        self.radius = radii.pop() if radii else self._radius
        return self._radius

    @radius.setter
    def radius(self, value: float) -> None:
        self._radius = real("radius", value, low=0)
        for group in self.param_groups:
            group["radius"] = self._radius

    def _stored_radii(self) -> set[float]:
        return {group["radius"] for group in self.param_groups if "radius" in group}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to `base`, with the radius of the others."""
        super().add_param_group({"radius": self.radius, **param_group})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of `base`, and the radius if the state has one.

        The state may be that of SAM in another package, whose groups call the radius `rho`. Such a state
        has nothing of the base, such as momentum.

        Raises:
            ValueError: for `adaptive=True` in those groups if this is not ASAM, and the other way round.
        """
        if "rho" not in self.param_groups[0]:  # Adadelta has a rho of its own
            state_dict = self._with_radius_for_rho(state_dict)
        super().load_state_dict(state_dict)

    def _with_radius_for_rho(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        groups = [dict(group) for group in state_dict.get("param_groups", ())]
        if not any("rho" in group for group in groups):
            return state_dict
        for group in groups:
            if "rho" not in group:
                continue  # it takes the radius of the others
            group["radius"] = group.pop("rho")
            if group.pop("adaptive", False) != self.adaptive:
                other = "SAM(base)" if self.adaptive else "ASAM(base, variant='davda54')"
                raise UserError(f"the state has adaptive={not self.adaptive}; load it into {other}")
        states = {}  # of the parameters, without the weights before the last climb
        for number, state in state_dict["state"].items():
            states[number] = {key: value for key, value in state.items() if key != "old_p"}
        return {"state": states, "param_groups": groups}
