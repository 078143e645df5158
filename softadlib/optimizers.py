"""Sharpness-aware optimizers: wrap a `torch.optim` optimizer behind `step(closure)`."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.optim import Optimizer

from . import functional as F
from .errors import choose
from .losses import _number
from .ruled import BN_UPDATES as BN_UPDATES
from .ruled import _Ruled, or_class
from .rules import ASAM_VARIANTS, FD_SCHEMES, GNP_MIXINGS, Grads


class SAM(_Ruled):
    """Sharpness-aware minimisation: steps `base` with the gradient taken at w + r·g(w)/‖g(w)‖.

    `step(closure)` runs the closure twice; it must zero the gradients, compute the loss, call
    `backward()` and return the loss. `radius` is the L2 length of the climb in weight space, over
    all parameters together (0 gives `base`). `bn_update="first"` keeps batch norm's running
    statistics of the first pass only and needs `model`; "both" is what the paper's code does.
    The learning rate, weight decay and state are those of `base`; clip in a step pre-hook of `base`.
    Under DDP both passes average gradients, as one process with the whole batch; `first_sync=False`
    with `model=` the DDP module lets every process climb by its own part, saving one exchange
    (m-sharpness). Not for GradScaler, which has no closures: use bfloat16. Foret et al. (2021).

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), radius=0.05)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = model(torch.ones(3, 2)).square().mean()
    ...     loss.backward()
    ...     return loss
    >>> loss = optimizer.step(closure)
    """

    @or_class
    def __init__(
        self,
        base: Optimizer,
        radius: float = 0.05,
        *,
        bn_update: str = "both",
        model: nn.Module | None = None,
        first_sync: bool = True,
    ):
        super().__init__(base, bn_update, model)
        self._sync_first(first_sync)
        self.radius = _number("radius", radius, low=0)

    def direction(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        return F.sam_gradient(gradient, params, self.radius, self.bn_update)


class ASAM(_Ruled):
    """Adaptive SAM: steps `base` with the gradient taken at w + r·T²g/‖Tg‖, T as large as |w|.

    `step(closure)` as for `SAM`, two calls. `variant="official"`: T = |w| + `eta` for parameters
    named *weight* in `model`, which it needs, and 1 for the others. "davda54": T = |w| for all. The
    authors take `radius` 0.5 for CIFAR-10 and 1 for CIFAR-100. Kwon et al. (2021).
    """

    @or_class
    def __init__(
        self,
        base: Optimizer,
        radius: float = 0.5,
        *,
        variant: str = "official",
        eta: float = 0.01,
        bn_update: str = "both",
        model: nn.Module | None = None,
        first_sync: bool = True,
    ):
        super().__init__(base, bn_update, model)
        self._sync_first(first_sync)
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

    @or_class
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

    @or_class
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
