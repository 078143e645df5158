"""What all optimizers here share: a gradient rule in front of a `torch.optim` optimizer."""

import contextlib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softadlib._validation import UserError, choose, real
from softadlib.functional.gradient_rules import BN_UPDATES, Grads
from softadlib.optim.base_checks import check_base, check_group
from softadlib.optim.passes import (
    Mark,
    frozen_statistics,
    is_marked,
    mark_gradients,
    set_weights,
    take_gradient,
    without_scaler,
)

NoSync = Callable[[], contextlib.AbstractContextManager[None]]


class ClosureOptimizer(Optimizer):
    """Steps `base` with the combination that a gradient rule makes of several runs of the closure.

    Learning rate, weight decay and state are those of `base`, so schedulers take either. Clip what
    is stepped with in `base.register_step_pre_hook`; clipping inside the closure clips every pass.
    Sparse gradients are made dense for the rule and sparse again for `base`. Subclasses write
    `combine`.
    """

    first_sync = True
    _left: Mapping[int, Mark] = MappingProxyType({})
    """Marks of the gradients that the last step left behind."""
    _zeroed = False
    _before_base: dict[str, Any]
    """What `Optimizer` sets before there is a base."""

    def __init__(self, base: Optimizer, bn_update: str, model: nn.Module | None):
        if not isinstance(base, Optimizer):
            name = type(self).__name__
            raise TypeError(
                f"base must be a torch.optim optimizer, such as {name}(SGD(parameters, lr=0.1)), "
                f"got {base.__name__ if isinstance(base, type) else type(base).__name__}"
            )
        choose("bn_update", bn_update, BN_UPDATES)
        if bn_update == "first" and model is None:
            raise UserError("bn_update='first' needs model=, to find its batch norm layers")
        check_base(base, type(self).__name__)
        super().__init__(base.param_groups, base.defaults)
        self.base, self.bn_update, self.model = base, bn_update, model
        del self._before_base

    # One set of groups and one state, not two: `base.load_state_dict` puts others in their place.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of `base`."""
        return (
            self.base.param_groups if "base" in self.__dict__ else self._before_base["param_groups"]
        )

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._set_shared("param_groups", groups)

    @property
    def state(self) -> Any:
        """The state of `base`."""
        return self.base.state if "base" in self.__dict__ else self._before_base["state"]

    @state.setter
    def state(self, state: Any) -> None:
        self._set_shared("state", state)

    def _set_shared(self, name: str, value: Any) -> None:
        """Set an attribute of `base`; while `Optimizer` is being made there is none yet."""
        if "base" in self.__dict__:
            setattr(self.base, name, value)
        else:
            self.__dict__.setdefault("_before_base", {})[name] = value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to those of `base`; ValueError for one that the constructor refuses."""
        super().add_param_group(param_group)
        try:
            check_group(self.param_groups[-1], type(self).__name__)
        except UserError:
            self.param_groups.pop()
            raise

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        """Apply the gradient rule, by parameter name; the first `gradient` it asks for is at `params`."""
        raise NotImplementedError

    def _names(self, params: list[Tensor]) -> list[str]:
        return [str(i) for i in range(len(params))]

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch's closures give floats; users' give tensors
        self, closure: Callable[[], Tensor] | None = None
    ) -> Tensor:
        """Make one update. Return the loss at w, the first of the closure's calls."""
        if closure is None:
            name = type(self).__name__
            raise UserError(
                f"{name}.step needs a closure: it evaluates the loss more than once. GradScaler gives "
                "none: train in bfloat16 (torch.autocast, no scaler), or in float32. Hugging Face's "
                "Trainer gives none either: use a loop of your own, or Lightning. Functions of "
                "torch.distributed.checkpoint take optimizer.base"
            )
        every = [p for group in self.param_groups for p in group["params"]]
        evaluate = torch.enable_grad()(closure)
        with contextlib.nullcontext() if self.first_sync else self._no_sync()():
            loss = self._first_pass(evaluate, every)
        names = self._names(every)
        named = {n: p for n, p in zip(names, every) if p.requires_grad or p.grad is not None}
        if all(p.grad is None for p in named.values()):
            raise RuntimeError("no parameter has a gradient; the closure must call loss.backward()")
        start = {name: p.clone() for name, p in named.items()}
        # of the parameters that any pass gives a gradient; 0 where it is dense
        sparse_dims: dict[str, int] = {}

        def gradient(params: Grads, track: bool = True) -> Grads:
            if params is not start:  # at the start the closure has been called already
                set_weights(named, params)
                with frozen_statistics(None if track else self.model), without_scaler():
                    evaluate()
            sparse_dims.update(
                (name, p.grad.sparse_dim() if p.grad.is_sparse else 0)
                for name, p in named.items()
                if p.grad is not None
            )
            return {name: take_gradient(p) for name, p in named.items()}

        try:
            combined = self.combine(gradient, start)
        finally:
            set_weights(named, start)  # a stored copy: subtracting would not restore the bits
        for name, dim in sparse_dims.items():
            named[name].grad = combined[name].to_sparse(dim) if dim else combined[name]
        self.base.step()
        self._left = mark_gradients(every)
        return loss

    def _first_pass(self, evaluate: Callable[[], Tensor], params: list[Tensor]) -> Tensor:
        """Call the closure for the first time; RuntimeError where it adds to gradients that were there.

        Gradients that the last step left are this optimizer's: they go, so that a closure which
        forgets `zero_grad` does not add to them.
        """
        for p in params:
            if is_marked(p, self._left):
                p.grad = None
        earlier = [(p, p.grad) for p in params if p.grad is not None]
        self._zeroed = False
        loss = evaluate()
        if not self._zeroed and any(p.grad is grad for p, grad in earlier):
            name = type(self).__name__
            raise RuntimeError(
                f"{name}.step found gradients of an earlier backward(), and the closure added to them; "
                f"{name} needs the whole gradient at each pass: call optimizer.zero_grad() and every "
                "micro-batch's backward() in the closure (in Lightning accumulate_grad_batches=1)"
            )
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients, as every optimizer does."""
        self._zeroed = True
        super().zero_grad(set_to_none)

    def _set_first_sync(self, first_sync: bool) -> None:
        """Set `first_sync`, for rules that perturb by the first gradient and use it for nothing else."""
        self.first_sync = first_sync
        if not first_sync:
            self._no_sync()

    def _no_sync(self) -> NoSync:
        """Return DDP's context without an exchange of gradients; `UserError` without a DDP model."""
        no_sync: NoSync | None = getattr(self.model, "no_sync", None)
        if no_sync is None:
            raise UserError("first_sync=False needs model=, the DistributedDataParallel of the run")
        return no_sync

    def __getstate__(self) -> dict[str, Any]:
        """Return everything: `Optimizer` alone would drop the base, and a copy would fail later.

        But `step`, which a scheduler replaces by one that steps the original, marks of gradients, and
        hooks, which `Optimizer` leaves out too.
        """
        left_out = ("step", "_left")
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in left_out and not re.fullmatch("_optimizer_.*_hooks", name)
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the base optimizer's state, and the radius of each group; other settings are arguments."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        hooks = self._optimizer_state_dict_post_hooks
        return self._changed_by(hooks, self.base.state_dict())

    def _changed_by(
        self, hooks: Mapping[Any, Callable[..., Any]], state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the state after hooks that may each return another one in its place."""
        for hook in hooks.values():
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the base optimizer's state; ValueError for settings that the constructor refuses."""
        hooks = self._optimizer_load_state_dict_pre_hooks
        state_dict = self._changed_by(hooks, state_dict.copy())  # the caller's stays as it is
        for group in state_dict["param_groups"]:
            check_group(group, type(self).__name__)
        self.base.load_state_dict(state_dict)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)


class RadiusOptimizer(ClosureOptimizer):
    """A rule that perturbs the weights by a radius, which every parameter group shows."""

    def __init__(self, base: Optimizer, radius: float, bn_update: str, model: nn.Module | None):
        super().__init__(base, bn_update, model)
        self.radius = radius

    @property
    def radius(self) -> float:
        """Length of the perturbation, in every group, where schedules, logs and checkpoints see it."""
        default = self.defaults["radius"]
        values = {group.setdefault("radius", default) for group in self.param_groups}
        if len(values) > 1:
            raise UserError(
                f"parameter groups have the radii {sorted(values)}; {type(self).__name__} perturbs "
                "all parameters together: give every group the same"
            )
        return real("radius", values.pop(), low=0)

    @radius.setter
    def radius(self, value: float) -> None:
        self.defaults["radius"] = real("radius", value, low=0)
        for group in self.param_groups:
            group["radius"] = self.defaults["radius"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the base optimizer's state, and the radius, that of groups to come too."""
        super().load_state_dict(state_dict)
        self.defaults["radius"] = self.radius
