"""SAM, ASAM, GNP and FD-GR: each wraps a `torch.optim` optimizer behind `step(closure)`."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.optim import Optimizer

from softadlib import functional as F
from softadlib._validation import UserError, choose, real
from softadlib.functional.gradient_rules import ASAM_VARIANTS, FD_SCHEMES, GNP_MIXINGS, Grads
from softadlib.optim.arguments import accept_class
from softadlib.optim.closure import ClosureOptimizer, RadiusOptimizer


class SAM(RadiusOptimizer):
    """Sharpness-aware minimisation: steps `base` with the gradient taken at w + r·g(w)/‖g(w)‖.

    `step(closure)` runs the closure twice. It must zero the gradients, compute the loss, call
    `backward()` and return the loss. The learning rate, weight decay and state are those of `base`;
    clip in a step pre-hook of `base`. Under DDP both passes average gradients, so the step
    is that of one process with the whole batch. float16 with a GradScaler, which has no closures,
    is refused: use bfloat16 autocast, or a fixed scale that the closure multiplies the loss by and
    divides the gradients by.

    Args:
        base: optimizer that steps. Also a class and its settings: `SAM(SGD, params, lr=0.1)`, or in
            the order and words of other packages, `SAM(params, SGD, rho=0.05, lr=0.1)`.
        radius: L2 length of the perturbation in weight space, over all parameters together, at
            least 0; 0 gives `base`. It stands in `param_groups`, the same in each.
        bn_update: "both" lets each pass move batch norm's running statistics, as the paper's code
            does; "first" keeps those of the first pass and needs `model`.
        model: the network, for "first"; the DDP module for `first_sync=False`.
        first_sync: False lets every DDP process perturb by its own part of the batch, which saves an
            exchange (m-sharpness).

    Raises:
        ValueError: for a radius below 0, for float16 parameters, `maximize=True`, a base that needs
            a closure, and where `step` gets none.
        RuntimeError: for a closure that adds to gradients of before, or gives none.

    Foret et al. (2021).

    Example:
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
        super().__init__(base, radius, bn_update, model)
        self._set_first_sync(first_sync)

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        return F.sam_gradient(gradient, params, self.radius, self.bn_update)


class ASAM(RadiusOptimizer):
    """Adaptive SAM: steps `base` with the gradient taken at w + r·T²g/‖Tg‖, T as large as |w|.

    `step(closure)` runs the closure twice, as for `SAM`.

    Args:
        base: optimizer that steps, or a class and its settings, as for `SAM`.
        radius: size of the perturbation without a unit, at least 0; 0 gives `base`. The authors take
            0.5 for CIFAR-10 and 1 for CIFAR-100. It stands in `param_groups`.
        variant: "official" has T = |w| + `eta` for parameters named *weight* in `model` and 1 for the
            others; "davda54" has T = |w| for all and needs no names. Default: "official" where
            `model` is given, "davda54" without.
        eta: added to |w| by "official", in weight space, at least 0.
        bn_update, model, first_sync: as for `SAM`. "official" needs `model`.

    Raises:
        ValueError: for numbers below 0, an unknown variant, "official" without `model` or with a
            model that lacks a parameter of `base`, and as `SAM`.

    Kwon et al. (2021).

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = ASAM(torch.optim.SGD([w], lr=0.1), radius=0.5)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = w.sum()  # g = (1, 1) everywhere
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).item(), w.data
        (7.0, tensor([2.9000, 3.9000]))
    """

    @accept_class
    def __init__(
        self,
        base: Optimizer,
        radius: float = 0.5,
        *,
        variant: str | None = None,
        eta: float = 0.01,
        bn_update: str = "both",
        model: nn.Module | None = None,
        first_sync: bool = True,
    ):
        super().__init__(base, radius, bn_update, model)
        self._set_first_sync(first_sync)
        if variant is None:
            variant = "davda54" if model is None else "official"
        choose("variant", variant, ASAM_VARIANTS)
        if variant == "official" and model is None:
            raise UserError("variant='official' needs model=, to know which parameters are weights")
        self.variant, self.eta = variant, real("eta", eta, low=0)
        self._names([p for group in self.param_groups for p in group["params"]])

    def _names(self, params: list[Tensor]) -> list[str]:
        if self.variant != "official":
            return super()._names(params)
        names = {id(p): name for name, p in self.model.named_parameters()} if self.model else {}
        if not all(id(p) in names for p in params):
            raise UserError(
                "model= lacks a parameter of the optimizer; variant='official' goes by name"
            )
        return [names[id(p)] for p in params]

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        return F.asam_gradient(
            gradient, params, self.radius, self.bn_update, self.variant, self.eta
        )


class GNP(RadiusOptimizer):
    """Gradient norm penalty: steps `base` with (1−α)·g(w) + α·g(w + r·g/‖g‖), α = λ/r.

    `step(closure)` runs the closure twice, as for `SAM`.

    Args:
        base: optimizer that steps, or a class and its settings, as for `SAM`.
        alpha: λ/r without a unit, at least 0, where λ is the weight of ‖∇L‖ beside L; 1 gives SAM, 0
            gives `base` ("official": with the gradient at length 1).
        radius: length of the perturbation in weight space, at least 0. It stands in `param_groups`.
        mixing: "official" normalises the first g, as the authors' code does by default; "paper" is
            their formula.
        bn_update, model: as for `SAM`.

    Raises:
        ValueError: for numbers below 0, an unknown mixing, and as `SAM`.

    Zhao et al. (2022).

    Example:
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
        super().__init__(base, radius, bn_update, model)
        choose("mixing", mixing, GNP_MIXINGS)
        self.alpha, self.mixing = real("alpha", alpha, low=0), mixing

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        return F.gnp_gradient(
            gradient, params, self.alpha, self.bn_update, self.radius, self.mixing
        )


class FDGR(ClosureOptimizer):
    """Gradient regularisation by finite differences: steps `base` with g + λ·(g(w + a·g) − g)/a.

    `step(closure)` runs the closure twice, as for `SAM`; three times with `scheme="centered"`.

    Args:
        base: optimizer that steps, or a class and its settings, as for `SAM`.
        strength: λ, the weight of ‖∇L‖²/2 beside L, at least 0; 0 gives `base`.
        step_size: a, the step of the difference, above 0. Both have the unit of a learning rate.
        scheme: "forward", or "centered", which takes (g(w + a·g) − g(w − a·g))/2a.
        bn_update, model: as for `SAM`.

    Raises:
        ValueError: for numbers out of range, an unknown scheme, and as `SAM`.

    Karakida et al. (2023).

    Example:
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
        self.scheme = scheme
        self.strength = real("strength", strength, low=0)
        self.step_size = real("step_size", step_size, above=0)

    def combine(self, gradient: Callable[..., Grads], params: Grads) -> Grads:
        return F.fdgr_gradient(
            gradient, params, self.strength, self.bn_update, self.step_size, self.scheme
        )
