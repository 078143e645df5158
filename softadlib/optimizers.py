"""Sharpness-aware optimizers: wrap a `torch.optim` optimizer behind `step(closure)`."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import functional as F
from .errors import choose
from .losses import _number
from .rules import ASAM_VARIANTS, FD_SCHEMES, GNP_MIXINGS, Grads

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

    Learning rate, weight decay and state are those of `base`. Subclasses write `direction`.
    """

    def __init__(self, base: Optimizer, bn_update: str, model: nn.Module | None):
        if not isinstance(base, Optimizer):
            raise TypeError(f"base must be a torch.optim optimizer, got {type(base).__name__}")
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
            raise ValueError(f"{name}.step needs a closure: it evaluates the loss more than once")
        evaluate = torch.enable_grad()(closure)
        loss = evaluate()
        every = [p for group in self.param_groups for p in group["params"]]
        named = {n: p for n, p in zip(self._names(every), every) if p.grad is not None}
        if not named:
            raise RuntimeError("no parameter has a gradient; the closure must call loss.backward()")
        start = {name: p.clone() for name, p in named.items()}

        def gradient(params: Grads, track: bool = True) -> Grads:
            if params is not start:  # there, the closure has been called already
                for name, p in named.items():
                    p.copy_(params[name])
                with _frozen_statistics(None if track else self.model):
                    evaluate()
            grads = {}
            for name, p in named.items():
                grads[name] = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad = None  # taken, so that the next pass cannot write into it
            return grads

        try:
            direction = self.direction(gradient, start)
        finally:
            for name, p in named.items():
                p.copy_(start[name])  # a stored copy: subtracting would not restore the bits
        for name, p in named.items():
            p.grad = direction[name]
        self.base.step()
        return loss

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


class SAM(_Ruled):
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
        super().__init__(base, bn_update, model)
        self.radius = _number("radius", radius, low=0)

    def direction(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        return F.sam_gradient(gradient, params, self.radius, self.bn_update)


class ASAM(_Ruled):
    """Adaptive SAM: steps `base` with the gradient taken at w + r·T²g/‖Tg‖, T as large as |w|.

    `step(closure)` as for `SAM`, two calls. `variant="official"`: T = |w| + `eta` for parameters
    named *weight* in `model`, which it needs, and 1 for the others. "davda54": T = |w| for all. The
    authors take `radius` 0.5 for CIFAR-10 and 1 for CIFAR-100. Kwon et al. (2021).
    """

    def __init__(
        self,
        base: Optimizer,
        radius: float = 0.5,
        *,
        variant: str = "official",
        eta: float = 0.01,
        bn_update: str = "both",
        model: nn.Module | None = None,
    ):
        super().__init__(base, bn_update, model)
        choose("variant", variant, ASAM_VARIANTS)
        if variant == "official" and model is None:
            raise ValueError(
                "variant='official' needs model=, to know which parameters are weights"
            )
        self.radius, self.eta = _number("radius", radius, low=0), _number("eta", eta, low=0)
        self.variant = variant

    def _names(self, params: list[Tensor]) -> list[str]:
        if self.variant != "official":
            return super()._names(params)
        names = {id(p): name for name, p in self.model.named_parameters()}
        if not all(id(p) in names for p in params):
            raise ValueError(
                "model= lacks a parameter of the optimizer; variant='official' goes by name"
            )
        return [names[id(p)] for p in params]

    def direction(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        settings = {"variant": self.variant, "eta": self.eta}
        return F.asam_gradient(gradient, params, self.radius, self.bn_update, **settings)


class GNP(_Ruled):
    """Gradient norm penalty: steps `base` with (1−α)·g(w) + α·g(w + r·g/‖g‖), α = λ/r.

    `step(closure)` as for `SAM`, two calls. λ is the weight of ‖∇L‖ beside L; α = 0 gives `base`,
    α = 1 SAM. `mixing="official"` normalises the first g, as the authors' code does by default,
    against their formula. Zhao et al. (2022).
    """

    def __init__(
        self,
        base: Optimizer,
        alpha: float = 0.8,
        radius: float = 0.1,
        *,
        mixing: str = "paper",
        bn_update: str = "both",
        model: nn.Module | None = None,
    ):
        super().__init__(base, bn_update, model)
        choose("mixing", mixing, GNP_MIXINGS)
        self.alpha, self.radius = _number("alpha", alpha, low=0), _number("radius", radius, low=0)
        self.mixing = mixing

    def direction(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        settings = {"radius": self.radius, "mixing": self.mixing}
        return F.gnp_gradient(gradient, params, self.alpha, self.bn_update, **settings)


class FDGR(_Ruled):
    """Gradient regularisation by finite differences: steps `base` with g + λ·(g(w + a·g) − g)/a.

    `step(closure)` as for `SAM`, two calls; three with `scheme="centered"`, which puts
    (g(w + a·g) − g(w − a·g))/2a. λ = `strength` is the weight of ‖∇L‖²/2 beside L (0 gives `base`),
    a = `step_size` > 0 the step of the difference. Karakida et al. (2023).
    """

    def __init__(
        self,
        base: Optimizer,
        strength: float,
        step_size: float = 0.01,
        *,
        scheme: str = "forward",
        bn_update: str = "both",
        model: nn.Module | None = None,
    ):
        super().__init__(base, bn_update, model)
        choose("scheme", scheme, FD_SCHEMES)
        self.strength = _number("strength", strength, low=0)
        self.step_size = _number("step_size", step_size, positive=True)
        self.scheme = scheme

    def direction(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        settings = {"step_size": self.step_size, "scheme": self.scheme}
        return F.fdgr_gradient(gradient, params, self.strength, self.bn_update, **settings)
