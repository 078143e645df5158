"""What all optimizers here share: a gradient rule in front of a `torch.optim` optimizer."""

import contextlib
import inspect
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softadlib._validation import UserError, choose, real
from softadlib.functional.gradient_rules import BN_UPDATES, PERTURBED, Grads
from softadlib.functional.reduction import HALF

NoSync = Callable[[], contextlib.AbstractContextManager[None]]
Mark = tuple[weakref.ref[Tensor], int]  # an id may later be that of another tensor


class ClosureOptimizer(Optimizer):
    """Steps `base` with the combination that a gradient rule makes of several runs of the closure.

    Learning rate, weight decay and state are those of `base`, so schedulers take either. Clip what
    is stepped with in `base.register_step_pre_hook`; clipping inside the closure clips every pass.
    Sparse gradients are made dense for the rule and sparse again for `base`. Parameters of other
    optimizers get the gradients of every pass: zero them in the closure too. Subclasses write
    `combine`, and name in `rule_settings` what a stored state must agree with.
    """

    first_sync = True
    rule_settings: tuple[str, ...] = ()
    _last_gradients: Mapping[int, Mark] = MappingProxyType({})
    """Marks of the gradients that the last step left behind."""
    _zeroed = False

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        arguments = [*inspect.signature(cls.__init__).parameters.values()][1:]
        cls.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]

    def __new__(cls, *args: Any, **settings: Any) -> "ClosureOptimizer":
        """Refuse the arguments of other packages with what to write here; copies come without any."""
        known = inspect.signature(cls).parameters
        takes_any = any(a.kind is a.VAR_KEYWORD for a in known.values())
        unknown = set() if takes_any else set(settings) - set(known)
        name, base = cls.__name__, args[0] if args else settings.get("base")
        if unknown or ((args or settings) and not isinstance(base, Optimizer)):
            given = base.__name__ if isinstance(base, type) else type(base).__name__
            words = [f"it got {', '.join(sorted(unknown))}" if unknown else f"it got {given}"]
            if "adaptive" in unknown:
                words.append("for adaptive=True use ASAM")
            if "rho" in unknown:
                words.append("rho is radius here")
            raise TypeError(
                f"{name} takes an optimizer that has its own settings, "
                f"{name}(torch.optim.SGD(model.parameters(), lr=0.1), "
                f"{next(iter([*known][1:]), '')}=…); {'; '.join(words)}"
            )
        return super().__new__(cls)

    def __init__(self, base: Optimizer, bn_update: str, model: nn.Module | None):
        choose("bn_update", bn_update, BN_UPDATES)
        if bn_update == "first" and model is None:
            raise UserError("bn_update='first' needs model=, to find its batch norm layers")
        if model is not None and not isinstance(model, nn.Module):
            raise UserError(f"model= takes the network itself, got {type(model).__name__}")
        self._check_base(base)
        own = {id(p) for p in model.parameters()} if model is not None else set()
        params = [p for group in base.param_groups for p in group["params"]]
        if model is not None and not any(id(p) in own for p in params):
            raise UserError(
                "model= lacks every parameter of the optimizer; give the network itself"
            )
        self.base, self.bn_update, self.model = base, bn_update, model
        groups, state = base.param_groups, base.state
        super().__init__(groups, base.defaults)
        base.param_groups, base.state = groups, state  # in place of new ones

    def _check_base(self, base: Optimizer) -> None:
        """Raise UserError for a base that cannot be stepped with a gradient from elsewhere."""
        name, given = type(self).__name__, type(base).__name__
        if isinstance(getattr(base, "base", None), Optimizer):
            raise UserError(
                f"{name} cannot wrap {given}, which evaluates the loss itself; "
                f"wrap the optimizer inside: {name}(optimizer.base)"
            )
        closure = inspect.signature(base.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise UserError(
                f"{name} cannot wrap {given}, which evaluates the loss itself; "
                "take an optimizer whose step needs no closure, such as SGD or Adam"
            )
        for group in base.param_groups:
            self._check_group(group)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        """Raise UserError for a parameter group that is maximised or in half precision."""
        name = type(self).__name__
        if group.get("maximize"):
            raise UserError(
                f"{name} climbs up the loss, and an optimizer with maximize=True too: "
                "minimise the negative loss instead"
            )
        # In a stored state the parameters are numbers.
        half = {p.dtype for p in group["params"] if isinstance(p, Tensor) and p.dtype in HALF}
        if half:
            raise UserError(
                f"{name} takes no parameters in {str(min(half, key=str)).removeprefix('torch.')}, in "
                "which a perturbation is lost in rounding or overflows; use float32 parameters, under "
                "torch.autocast with bfloat16"
            )

    # One set of groups and one state, not two: `base.load_state_dict` puts others in their place.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of `base`."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> Any:
        """The state of `base`."""
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        self.base.state = state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to those of `base`; ValueError for one that the constructor refuses."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except UserError:
            self.param_groups.pop()
            raise

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        """Apply the gradient rule, by parameter name; the first `gradient` returns the step's loss."""
        raise NotImplementedError

    def _names(self, params: list[Tensor]) -> list[str]:
        return [str(i) for i in range(len(params))]

    def _named(self) -> Grads:
        """Return the parameters that can have gradients, by name."""
        every = [p for group in self.param_groups for p in group["params"]]
        named = zip(self._names(every), every)
        return {name: p for name, p in named if p.requires_grad or p.grad is not None}

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch's closures give floats; users' give tensors
        self, closure: Callable[[], Tensor] | None = None, *, scaler: Any = None
    ) -> Tensor:
        """Make one update. Return the loss of the first of the closure's calls.

        With a `torch.amp.GradScaler` the closure calls `scaler.scale(loss).backward()` and returns
        `loss`; give the scaler here, and leave out `scaler.step` and `scaler.update`. Each pass is
        unscaled, nothing is stepped where one overflows, and the scale is updated once. A closure
        that gives no gradient at all ends the step after one call, as in torch's optimizers.
        """
        if not callable(closure):
            raise UserError(
                f"{type(self).__name__}.step needs a closure that zeroes the gradients, calls backward() and returns "
                "the loss; SAM and ASAM have first_step too. With a GradScaler give both, step(closure, "
                "scaler=scaler); in Lightning use precision 'bf16-mixed', since '16-mixed' gives none. In Hugging "
                "Face's Trainer use softadlib.SAMTrainerMixin. For torch.distributed.checkpoint take optimizer.base"
            )
        if getattr(self, "_between_halves", None) is not None:
            raise RuntimeError("step was called between first_step and second_step")
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        if scaler is not None and not self.first_sync:
            raise UserError(
                "first_sync=False with a GradScaler: a process whose part overflows would leave out the "
                "step alone; leave out first_sync=False, or train in bfloat16 without a scaler"
            )
        named, evaluate = self._named(), torch.enable_grad()(closure)
        start = {name: p.clone() for name, p in named.items()}
        loss: list[Tensor] = []
        # kept until the update: a scaler knows optimizers by their id
        passes: list[_ScalerPass] = []
        # number of sparse dimensions of each gradient, 0 for a dense one
        sparse_dims: dict[str, int] = {}

        def gradient(params: Grads, track: bool = True) -> Grads:
            if params is not start:
                set_weights(named, params)
            if not loss:
                loss.append(self._first_pass(evaluate, list(named.values()), scaler is None))
            else:
                PERTURBED.add(self)
                with frozen_statistics(None if track else self.model):
                    evaluate()
            graded = {name: p.grad for name, p in named.items() if p.grad is not None}
            if not graded and not sparse_dims:
                raise _SkipStep
            if scaler is not None and graded:
                if any(id(o) in scaler._per_optimizer_states for o in (self, self.base)):
                    raise UserError(
                        "the closure unscales the gradients, and step(closure, scaler=scaler) does so "
                        "too: leave out scaler.unscale_, and clip in a step pre-hook of base"
                    )
                passes.append(_ScalerPass(list(named.values())))
                scaler.step(passes[-1])  # unscales in place
                if not passes[-1].finite:
                    raise _SkipStep
            sparse_dims.update((n, g.sparse_dim() if g.is_sparse else 0) for n, g in graded.items())
            return {name: take_gradient(p) for name, p in named.items()}

        combined: Grads | None = None
        try:
            combined = self.combine(gradient, start)
        except _SkipStep:
            pass
        except BaseException:
            for given_up in passes:  # a later pass may have its id
                scaler._per_optimizer_states.pop(id(given_up), None)
            raise
        finally:
            PERTURBED.discard(self)
            set_weights(named, start)  # a stored copy: subtracting would not restore the bits
        if combined is not None:
            for name, dim in sparse_dims.items():
                named[name].grad = combined[name].to_sparse(dim) if dim else combined[name]
        if combined is not None or not passes:
            self.base.step()
        if passes:
            scaler.update()
        self._last_gradients = mark_gradients(list(named.values()))
        return loss[0]

    def _first_pass(
        self, evaluate: Callable[[], Tensor], params: list[Tensor], unscaled: bool
    ) -> Tensor:
        """Call the closure for the first time; RuntimeError where it adds to gradients that were there.

        Gradients that the last step left are this optimizer's: they go, so that a closure which
        forgets `zero_grad` does not add to them.
        """
        name = type(self).__name__
        for p in params:
            if is_marked(p, self._last_gradients):
                p.grad = None
        earlier = [(p, p.grad) for p in params if p.grad is not None]
        self._zeroed = False
        with contextlib.nullcontext() if self.first_sync else self._no_sync()():
            if unscaled:
                with watched_scalers() as scaled:
                    loss = evaluate()
                if scaled:
                    raise UserError(
                        f"the closure scales its loss by a GradScaler that {name}.step does not have, and "
                        "would step with scaled gradients: call optimizer.step(closure, scaler=scaler)"
                    )
            else:
                loss = evaluate()
        if not self._zeroed and any(p.grad is grad for p, grad in earlier):
            raise RuntimeError(
                f"{name}.step found gradients of an earlier backward(), which the closure did not zero; "
                f"{name} needs the whole gradient at each pass: call optimizer.zero_grad() and every "
                "micro-batch's backward() in the closure (in Lightning accumulate_grad_batches=1)"
            )
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients, as every optimizer does."""
        self._zeroed = True
        super().zero_grad(set_to_none)
        if not set_to_none:  # zeros are no gradients of an earlier backward()
            every = [p for group in self.param_groups for p in group["params"]]
            self._last_gradients = mark_gradients(every)

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
        left_out = ("step", "_last_gradients", "_between_halves")
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in left_out and not re.fullmatch("_optimizer_.*_hooks", name)
        }

    def _rule(self) -> dict[str, Any]:
        """Return the rule and its settings, which a state is stored with."""
        return {"name": type(self).__name__} | {n: getattr(self, n) for n in self.rule_settings}

    def state_dict(self) -> dict[str, Any]:
        """Return the base optimizer's state with the radius of each group, and the rule's settings."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        hooks = self._optimizer_state_dict_post_hooks
        return self._changed_by(hooks, {**self.base.state_dict(), "rule": self._rule()})

    def _changed_by(
        self, hooks: Mapping[Any, Callable[..., Any]], state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the state after hooks that may each return another one in its place."""
        for hook in hooks.values():
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the base optimizer's state; ValueError for one of another rule or other settings."""
        hooks = self._optimizer_load_state_dict_pre_hooks
        state_dict = self._changed_by(hooks, state_dict.copy())
        stored = state_dict.pop("rule", self._rule())  # a bare optimizer's state has none
        if stored != self._rule():
            raise UserError(
                f"the state is of {stored}, this optimizer is {self._rule()}; make it with those "
                "settings, or drop state['rule'] to keep its own"
            )
        for group in state_dict["param_groups"]:
            self._check_group(group)
        self.base.load_state_dict(state_dict)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)


class RadiusOptimizer(ClosureOptimizer):
    """A rule that perturbs the weights by a radius, which every parameter group shows."""

    def __init__(self, base: Optimizer, radius: float, bn_update: str, model: nn.Module | None):
        super().__init__(base, bn_update, model)
        for group in base.param_groups:
            own = [key for key in ("radius", "rho") if key in group and key not in base.defaults]
            if any(group[key] != radius for key in own):
                raise UserError(
                    f"a parameter group of {type(base).__name__} has {own[0]}={group[own[0]]!r}, and "
                    f"{type(self).__name__} perturbs all parameters together: take it out of the group "
                    f"and give {type(self).__name__}(…, radius=…)"
                )
        self.radius = radius

    @property
    def radius(self) -> float:
        """Length of the perturbation, in every group, where schedules, logs and checkpoints see it."""
        default = self._radius
        values = {group.setdefault("radius", default) for group in self.param_groups}
        if len(values) > 1:
            raise UserError(
                f"parameter groups have the radii {sorted(values)}; {type(self).__name__} perturbs "
                "all parameters together: give every group the same"
            )
        return real("radius", values.pop(), low=0)

    @radius.setter
    def radius(self, value: float) -> None:
        self._radius = real("radius", value, low=0)
        for group in self.param_groups:
            group["radius"] = self._radius

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with the radius of the others unless it has one."""
        super().add_param_group(param_group)
        if "_radius" in self.__dict__:  # not while the groups of `base` are taken over
            self.param_groups[-1].setdefault("radius", self._radius)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the base optimizer's state, and the radius, also for groups that are added later."""
        super().load_state_dict(state_dict)
        self._radius = self.radius


# Passes of a closure: what is around them, and the weights and gradients of each.


class _SkipStep(Exception):
    """Ends a step: the closure gave no gradient, or the gradient of a pass overflowed."""


class _ScalerPass(Optimizer):
    """Stands for one pass before a GradScaler, which steps it where all its gradients are finite."""

    finite = False

    def __init__(self, params: list[Tensor]):
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.finite = True


@contextlib.contextmanager
def watched_scalers() -> Iterator[list[object]]:
    """Yield a list of the enabled GradScalers that this thread scales a loss by, inside the context."""
    cls, seen, here = torch.amp.GradScaler, [], threading.get_ident()
    scale = cls.scale

    def watched(self: Any, outputs: Any) -> Any:
        if self.is_enabled() and threading.get_ident() == here:
            seen.append(self)
        return scale(self, outputs)

    cls.scale = watched  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        cls.scale = scale  # type: ignore[method-assign]


@contextlib.contextmanager
def frozen_statistics(model: nn.Module | None) -> Iterator[None]:
    """Let batch and instance norm normalise by the batch, but leave their running buffers alone."""
    layers = [
        m
        for m in (model.modules() if model else ())
        if isinstance(m, nn.modules.batchnorm._NormBase)
    ]
    tracked = [m.track_running_stats for m in layers]
    buffers = [(m.running_mean, m.running_var) for m in layers]
    for m in layers:
        if m.training:
            m.track_running_stats, m.running_mean, m.running_var = False, None, None
    try:
        yield
    finally:
        for m, track, (mean, var) in zip(layers, tracked, buffers):
            m.track_running_stats, m.running_mean, m.running_var = track, mean, var


def mark_gradients(params: list[Tensor]) -> dict[int, Mark]:
    """Return which gradients are there, and how often they were written to, by parameter."""
    return {id(p): (weakref.ref(p.grad), p.grad._version) for p in params if p.grad is not None}


def is_marked(p: Tensor, marks: Mapping[int, Mark]) -> bool:
    """Tell whether the gradient of `p` is that of its mark, and nothing was added to it."""
    mark, grad = marks.get(id(p)), p.grad
    return bool(mark and grad is not None and mark[0]() is grad and mark[1] == grad._version)


def set_weights(named: Grads, weights: Grads) -> None:
    """Copy weights into parameters; autocast forgets the copies in half precision that it keeps."""
    for name, p in named.items():
        p.copy_(weights[name])
    torch.clear_autocast_cache()


def take_gradient(p: Tensor) -> Tensor:
    """Take the dense gradient off `p`, so that the next pass cannot write into it."""
    grad, p.grad = p.grad, None
    if grad is None:
        return torch.zeros_like(p)
    if grad.is_sparse:
        return grad.to_dense()
    # A view lies in a bucket of DDP's, which the next pass does write into.
    return grad.clone() if grad._is_view() else grad
