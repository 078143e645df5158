"""What the optimizers of `optimizers` share: a gradient rule in front of a `torch.optim` optimizer."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .errors import choose
from .rules import Grads

BN_UPDATES = ("both", "first")


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


class _Ruled(Optimizer):
    """Steps `base` with the direction that a gradient rule makes of several runs of the closure.

    Learning rate, weight decay and state are those of `base`, so schedulers take either. Clip what
    is stepped with in `base.register_step_pre_hook`; clipping inside the closure clips every pass.
    Sparse gradients are made dense for the rule and sparse again for `base`. Subclasses write
    `direction`.
    """

    first_sync = True

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
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor:
        """One update. Returns the loss at w, the first of the closure's calls."""
        if closure is None:
            name = type(self).__name__
            raise ValueError(
                f"{name}.step needs a closure: it evaluates the loss more than once. GradScaler gives "
                "none: train in bfloat16 (torch.autocast, no scaler), or in float32"
            )
        evaluate = torch.enable_grad()(closure)
        with contextlib.nullcontext() if self.first_sync else self.model.no_sync():
            loss = evaluate()
        every = [p for group in self.param_groups for p in group["params"]]
        named = {n: p for n, p in zip(self._names(every), every) if p.grad is not None}
        if not named:
            raise RuntimeError("no parameter has a gradient; the closure must call loss.backward()")
        start = {name: p.clone() for name, p in named.items()}
        sparse = {name: p.grad.sparse_dim() for name, p in named.items() if p.grad.is_sparse}

        def gradient(params: Grads, track: bool = True) -> Grads:
            if params is not start:  # there, the closure has been called already
                for name, p in named.items():
                    p.copy_(params[name])
                with _frozen_statistics(None if track else self.model):
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
        return loss

    def _sync_first(self, first_sync: bool) -> None:
        """Only for rules that use the first gradient to climb and for nothing else."""
        if not first_sync and not hasattr(self.model, "no_sync"):
            raise ValueError(
                "first_sync=False needs model=, the DistributedDataParallel of the run"
            )
        self.first_sync = first_sync

    def __getstate__(self) -> dict:
        """Everything: `Optimizer` alone would drop the base, and a copy would fail later."""
        return self.__dict__.copy()

    def state_dict(self) -> dict:
        """The base optimizer's state; the settings are arguments, not state."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore the base optimizer's state."""
        self.base.load_state_dict(state_dict)
        self.param_groups, self.state = self.base.param_groups, self.base.state
