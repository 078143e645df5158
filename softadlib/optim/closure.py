"""What the optimizers of `optimizers` share: a gradient rule in front of a `torch.optim` optimizer."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softadlib._validation import choose
from softadlib.functional.gradient_rules import BN_UPDATES, Grads


@contextlib.contextmanager
def _frozen_statistics(model: nn.Module | None) -> Iterator[None]:
    """Batch and instance norm still normalise by the batch, but leave their running buffers alone."""
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


@contextlib.contextmanager
def _without_scaler() -> Iterator[None]:
    """Torch refuses to unscale twice before an update: the second pass says what to do instead."""
    try:
        yield
    except RuntimeError as error:
        if "unscale_()" not in str(error):
            raise
        raise ValueError(
            "GradScaler unscales once a step, and the closure runs more than once: train in bfloat16 "
            "(torch.autocast, no scaler), or divide the gradients by a fixed scale in the closure"
        ) from error


def _marks(params: list[Tensor]) -> dict[int, tuple[int, int]]:
    """Which gradients are there, and how often they have been written to, by parameter."""
    return {id(p): (id(p.grad), p.grad._version) for p in params if p.grad is not None}


def accept_class(init: Callable[..., None]) -> Callable[..., None]:
    """Lets `base` be a class too: SAM(SGD, parameters, radius=0.05, lr=0.1) makes the SGD itself.

    A setting whose name both know is the wrapper's. TypeError for a class without parameters.
    """
    ours = set(inspect.signature(init).parameters)

    @functools.wraps(init)
    def either(self: Optimizer, base: Any, *values: Any, **settings: Any) -> None:
        args = list(values)
        if isinstance(base, type) and issubclass(base, Optimizer):
            if not args and "params" not in settings:
                name, given = type(self).__name__, base.__name__
                raise TypeError(
                    f"{name}({given}) needs what to optimize: "
                    f"{name}({given}, model.parameters(), lr=0.1) or {name}({given}(…))"
                )
            params, *args = args or [settings.pop("params")]
            base = base(params, **{k: settings.pop(k) for k in set(settings) - ours})
        init(self, base, *args, **settings)

    return either


class ClosureOptimizer(Optimizer):
    """Steps `base` with the direction that a gradient rule makes of several runs of the closure.

    Learning rate, weight decay and state are those of `base`, so schedulers take either. Clip what
    is stepped with in `base.register_step_pre_hook`; clipping inside the closure clips every pass.
    Sparse gradients are made dense for the rule and sparse again for `base`. Subclasses write
    `direction`.
    """

    first_sync = True
    _left: Mapping[int, tuple[int, int]] = MappingProxyType({})
    _zeroed = False

    def __init__(self, base: Optimizer, bn_update: str, model: nn.Module | None):
        if not isinstance(base, Optimizer):
            name = type(self).__name__
            raise TypeError(
                f"base must be a torch.optim optimizer, such as {name}(SGD(parameters, lr=0.1)), "
                f"got {base.__name__ if isinstance(base, type) else type(base).__name__}"
            )
        choose("bn_update", bn_update, BN_UPDATES)
        if bn_update == "first" and model is None:
            raise ValueError("bn_update='first' needs model=, to find its batch norm layers")
        self.base, self.bn_update, self.model = base, bn_update, model
        super().__init__(base.param_groups, base.defaults)
        self.param_groups, self.state = base.param_groups, base.state  # one set, not two

    def direction(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        """The gradient rule, by parameter name; the first `gradient` it asks for is at `params`."""
        raise NotImplementedError

    def _names(self, params: list[Tensor]) -> list[str]:
        return [str(i) for i in range(len(params))]

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch has closures give float; theirs give tensors
        self, closure: Callable[[], Tensor] | None = None
    ) -> Tensor:
        """One update. Returns the loss at w, the first of the closure's calls."""
        if closure is None:
            name = type(self).__name__
            raise ValueError(
                f"{name}.step needs a closure: it evaluates the loss more than once. GradScaler gives "
                "none: train in bfloat16 (torch.autocast, no scaler), or in float32. Hugging Face's "
                "Trainer gives none either: use a loop of your own, or Lightning"
            )
        every = [p for group in self.param_groups for p in group["params"]]
        evaluate = torch.enable_grad()(closure)
        with contextlib.nullcontext() if self.first_sync else self._no_sync()():
            loss = self._first(evaluate, every)
        named = {n: p for n, p in zip(self._names(every), every) if p.grad is not None}
        if not named:
            raise RuntimeError("no parameter has a gradient; the closure must call loss.backward()")
        start = {name: p.clone() for name, p in named.items()}
        sparse = {name: p.grad.sparse_dim() for name, p in named.items() if p.grad.is_sparse}

        def gradient(params: Grads, track: bool = True) -> Grads:
            if params is not start:  # there, the closure has been called already
                for name, p in named.items():
                    p.copy_(params[name])
                with _frozen_statistics(None if track else self.model), _without_scaler():
                    evaluate()
            grads = {}
            for name, p in named.items():
                taken, p.grad = p.grad, None  # so that the next pass cannot write into it
                if taken is None:
                    taken = torch.zeros_like(p)
                elif taken.is_sparse:
                    taken = taken.to_dense()
                elif (
                    taken._is_view()
                ):  # into a bucket of DDP's, which the next pass does write into
                    taken = taken.clone()
                grads[name] = taken
            return grads

        try:
            direction = self.direction(gradient, start)
        finally:
            for name, p in named.items():
                p.copy_(start[name])  # a stored copy: subtracting would not restore the bits
        for name, p in named.items():
            final = direction[name]
            p.grad = final.to_sparse(sparse[name]) if name in sparse else final
        self.base.step()
        self._left = _marks(every)
        return loss

    def _first(self, evaluate: Callable[[], Tensor], params: list[Tensor]) -> Tensor:
        """The closure's first call; RuntimeError where it adds to gradients that were there."""
        marks, self._zeroed = _marks(params), False
        others = [
            (p, p.grad) for p in params if id(p) in marks and self._left.get(id(p)) != marks[id(p)]
        ]
        loss = evaluate()
        if not self._zeroed and any(p.grad is grad for p, grad in others):
            name = type(self).__name__
            raise RuntimeError(
                f"{name}.step found gradients of an earlier backward(), and the closure added to them; "
                f"{name} needs the whole gradient at each pass: call optimizer.zero_grad() and every "
                "micro-batch's backward() in the closure (in Lightning accumulate_grad_batches=1)"
            )
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zeroes the gradients, as every optimizer does."""
        self._zeroed = True
        super().zero_grad(set_to_none)

    def _sync_first(self, first_sync: bool) -> None:
        """Only for rules that use the first gradient to climb and for nothing else."""
        self.first_sync = first_sync
        if not first_sync:
            self._no_sync()

    def _no_sync(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        found = getattr(self.model, "no_sync", None)
        if found is None:
            raise ValueError(
                "first_sync=False needs model=, the DistributedDataParallel of the run"
            )
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Everything: `Optimizer` alone would drop the base, and a copy would fail later."""
        return self.__dict__.copy()

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state; the settings are arguments, not state."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the base optimizer's state."""
        self.base.load_state_dict(state_dict)
        self.param_groups, self.state = self.base.param_groups, self.base.state
