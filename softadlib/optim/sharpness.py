"""Sharpness-aware optimizers: wrap a `torch.optim` optimizer behind `step(closure)`."""

from collections.abc import Callable
from typing import Any, overload

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from softadlib import functional as F
from softadlib._validation import choose, real
from softadlib.functional.gradient_rules import ASAM_VARIANTS, FD_SCHEMES, GNP_MIXINGS, Grads
from softadlib.optim.closure import ClosureOptimizer, accept_class


class SAM(ClosureOptimizer):
    """Sharpness-aware minimisation: steps `base` with the gradient taken at w + r·g(w)/‖g(w)‖.

    `step(closure)` runs the closure twice; it must zero the gradients, compute the loss, call
    `backward()` and return the loss. `radius` is the L2 length of the climb in weight space, over
    all parameters together (0 gives `base`). `bn_update="first"` keeps batch norm's running
    statistics of the first pass only and needs `model`; "both" is what the paper's code does.
    The learning rate, weight decay and state are those of `base`; clip in a step pre-hook of `base`.
    Under DDP both passes average gradients, as one process with the whole batch; `first_sync=False`
    with `model=` the DDP module lets every process climb by its own part, saving one exchange
    (m-sharpness). `SAM(torch.optim.SGD, model.parameters(), radius=0.05, lr=0.1)` makes the base itself.
    float16 with a GradScaler, which has no closures, is refused: use bfloat16, or a fixed scale that
    the closure multiplies the loss by and divides the gradients by.
    Raises ValueError for a radius below 0 and where `step` gets no closure, RuntimeError for a closure
    that adds to gradients of before or gives none. Foret et al. (2021).

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

    @overload
    def __init__(
        self,
        base: Optimizer,
        radius: float = 0.05,
        *,
        bn_update: str = "both",
        model: nn.Module | None = None,
        first_sync: bool = True,
    ): ...
    @overload
    def __init__(self, base: type[Optimizer], params: ParamsT, **settings: Any): ...
    @accept_class
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
        self.radius = real("radius", radius, low=0)

    def direction(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        return F.sam_gradient(gradient, params, self.radius, self.bn_update)


class ASAM(ClosureOptimizer):
    """Adaptive SAM: steps `base` with the gradient taken at w + r·T²g/‖Tg‖, T as large as |w|.

    `base` and `step(closure)` as for `SAM`, two calls. `variant="official"`: T = |w| + `eta` for parameters
    named *weight* in `model`, which it needs, and 1 for the others. "davda54": T = |w| for all. The
    authors take `radius`, which has no unit, 0.5 for CIFAR-10 and 1 for CIFAR-100. `eta` in weight
    space. Raises ValueError for numbers below 0, an unknown variant and "official" without `model`.
    Kwon et al. (2021).

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = ASAM(torch.optim.SGD([w], lr=0.1), radius=0.5, variant="davda54")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = w.sum()  # g = (1, 1) everywhere
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item(), w.data
    (7.0, tensor([2.9000, 3.9000]))
    """

    @overload
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
    ): ...
    @overload
    def __init__(self, base: type[Optimizer], params: ParamsT, **settings: Any): ...
    @accept_class
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
        self.radius, self.eta = real("radius", radius, low=0), real("eta", eta, low=0)
        self.variant = variant

    def _names(self, params: list[Tensor]) -> list[str]:
        if self.variant != "official":
            return super()._names(params)
        named = self.model.named_parameters() if self.model else ()
        names = {id(p): name for name, p in named}
        if not all(id(p) in names for p in params):
            raise ValueError(
                "model= lacks a parameter of the optimizer; variant='official' goes by name"
            )
        return [names[id(p)] for p in params]

    def direction(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        return F.asam_gradient(
            gradient, params, self.radius, self.bn_update, self.variant, self.eta
        )


class GNP(ClosureOptimizer):
    """Gradient norm penalty: steps `base` with (1−α)·g(w) + α·g(w + r·g/‖g‖), α = λ/r.

    `base` and `step(closure)` as for `SAM`, two calls. λ is the weight of ‖∇L‖ beside L; α = 0 gives `base`,
    α = 1 SAM. `mixing="official"` normalises the first g, as the authors' code does by default,
    against their formula. `radius` in weight space, α without a unit. Raises ValueError for numbers
    below 0 and an unknown mixing. Zhao et al. (2022).

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = GNP(torch.optim.SGD([w], lr=0.1), alpha=0.5, radius=0.5)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = w.square().sum() / 2  # g(w) = w, of norm 5
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item(), w.data  # w − 0.1·(0.5·w + 0.5·1.1·w) = 0.895·w
    (12.5, tensor([2.6850, 3.5800]))
    """

    @overload
    def __init__(
        self,
        base: Optimizer,
        alpha: float = 0.8,
        radius: float = 0.1,
        *,
        mixing: str = "paper",
        bn_update: str = "both",
        model: nn.Module | None = None,
    ): ...
    @overload
    def __init__(self, base: type[Optimizer], params: ParamsT, **settings: Any): ...
    @accept_class
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
        self.alpha, self.radius = real("alpha", alpha, low=0), real("radius", radius, low=0)
        self.mixing = mixing

    def direction(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        return F.gnp_gradient(
            gradient, params, self.alpha, self.bn_update, self.radius, self.mixing
        )


class FDGR(ClosureOptimizer):
    """Gradient regularisation by finite differences: steps `base` with g + λ·(g(w + a·g) − g)/a.

    `base` and `step(closure)` as for `SAM`, two calls; three with `scheme="centered"`, which puts
    (g(w + a·g) − g(w − a·g))/2a. λ = `strength` is the weight of ‖∇L‖²/2 beside L (0 gives `base`),
    a = `step_size` > 0 the step of the difference, both in units of a learning rate. Raises ValueError
    for numbers out of range and an unknown scheme. Karakida et al. (2023).

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = FDGR(torch.optim.SGD([w], lr=0.1), strength=0.5, step_size=0.5)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = w.square().sum() / 2  # g(w) = w
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item(), w.data  # w − 0.1·(w + 0.5·(1.5·w − w)/0.5) = 0.85·w
    (12.5, tensor([2.5500, 3.4000]))
    """

    @overload
    def __init__(
        self,
        base: Optimizer,
        strength: float,
        step_size: float = 0.01,
        *,
        scheme: str = "forward",
        bn_update: str = "both",
        model: nn.Module | None = None,
    ): ...
    @overload
    def __init__(self, base: type[Optimizer], params: ParamsT, **settings: Any): ...
    @accept_class
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
        self.strength = real("strength", strength, low=0)
        self.step_size = real("step_size", step_size, above=0)
        self.scheme = scheme

    def direction(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        return F.fdgr_gradient(
            gradient, params, self.strength, self.bn_update, self.step_size, self.scheme
        )
