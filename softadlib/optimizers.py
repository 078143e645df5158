"""Sharpness-aware optimizers: wrap a `torch.optim` optimizer behind `step(closure)`."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .functional import climb
from .losses import _number

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


class SAM(Optimizer):
    """Sharpness-aware minimisation: steps `base` with the gradient taken at w + r·g(w)/‖g(w)‖.

    `step(closure)` runs the closure twice; it must zero the gradients, compute the loss, call
    `backward()` and return the loss. `radius` is the L2 length of the climb in weight space, over
    all parameters together (0 gives `base`). `bn_update="first"` keeps batch norm's running
    statistics of the first pass only and needs `model`; "both" is what the paper's code does.
    The learning rate, weight decay and state are those of `base`. Foret et al. (2021).

    >>> model = nn.Linear(2, 1)
    >>> optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), radius=0.05)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = model(torch.ones(3, 2)).square().mean()
    ...     loss.backward()
    ...     return loss
    >>> loss = optimizer.step(closure)
    """

    def __init__(
        self,
        base: Optimizer,
        radius: float = 0.05,
        *,
        bn_update: str = "both",
        model: nn.Module | None = None,
    ):
        if not isinstance(base, Optimizer):
            raise TypeError(f"base must be a torch.optim optimizer, got {type(base).__name__}")
        if bn_update not in BN_UPDATES:
            raise ValueError(
                f"bn_update {bn_update!r} unknown; choose from {', '.join(BN_UPDATES)}"
            )
        if bn_update == "first" and model is None:
            raise ValueError("bn_update='first' needs model=, to find its batch norm layers")
        self.radius = _number("radius", radius)
        if self.radius < 0:
            raise ValueError(f"radius must be at least 0, got {radius!r}")
        self.base, self.bn_update, self.model = base, bn_update, model
        super().__init__(base.param_groups, base.defaults)
        self.param_groups, self.state = base.param_groups, base.state  # one set, not two

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor:
        """One update. Returns the loss at w, the first of the closure's two calls."""
        if closure is None:
            raise ValueError("SAM.step needs a closure: it evaluates the loss twice")
        evaluate = torch.enable_grad()(closure)
        loss = evaluate()
        params = {
            str(i): p
            for i, p in enumerate(p for group in self.param_groups for p in group["params"])
            if p.grad is not None
        }
        if not params:
            raise RuntimeError("no parameter has a gradient; the closure must call loss.backward()")
        climbed = climb(params, {name: p.grad for name, p in params.items()}, self.radius)
        start = {name: p.clone() for name, p in params.items()}
        frozen = _frozen_statistics(self.model if self.bn_update == "first" else None)
        try:
            for name, p in params.items():
                p.copy_(climbed[name])
            with frozen:
                evaluate()
        finally:
            for name, p in params.items():
                p.copy_(start[name])  # a stored copy: subtracting would not restore the bits
        self.base.step()
        return loss

    def __getstate__(self) -> dict:
        """Everything: `Optimizer` alone would drop the base, and a copy would fail later."""
        return self.__dict__.copy()

    def state_dict(self) -> dict:
        """The base optimizer's state; the radius is an argument, not state."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore the base optimizer's state."""
        self.base.load_state_dict(state_dict)
        self.param_groups, self.state = self.base.param_groups, self.base.state
