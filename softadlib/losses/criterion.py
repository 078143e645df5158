"""What all criteria share: a base loss with one value per sample, weights of samples, and hooks."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from softadlib import functional as F
from softadlib._validation import UserError, choose, warn
from softadlib.functional.reduction import Weights, is_hidden
from softadlib.losses.base import Base, resolve_base
from softadlib.optim.perturbed import in_perturbed_pass

LossesHook = Callable[[Tensor, Weights, float | Tensor | None], None]
"""Takes losses (n,), how much each counts (n,) or None, and θ: one, one for each loss, or None."""
OF_THE_BASE = ("weight", "ignore_index", "label_smoothing")


class TorchOptions:
    """Refuses options of torch's losses, and says where they go: `weight=` belongs to the base."""

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        for name in OF_THE_BASE:
            if name in settings:
                raise UserError(
                    f"{name}= belongs to the base: {cls.__name__}(…, base=nn.CrossEntropyLoss({name}=…))"
                )
        return super().__new__(cls)


class Criterion(TorchOptions, nn.Module):
    """A scalar criterion over per-sample losses: the base class of all, and of your own.

    A subclass defines `reduce(losses, weights=None, reduction="mean")` of losses (n,). Where the value is
    a weighted mean of f(ℓᵢ), it does so for all three reductions. Where it is not, "mean" is enough, and
    it sets `additive = False`. `settings` names the attributes that `repr` shows. Hooks get the
    attribute `theta`, or None.

    If `additive` is true, the values of equal parts average to the value of the whole batch. For
    unequal parts, and with weights, add up sums and divide by all weights. The mean of an empty batch
    is NaN, as torch's.

    Args:
        base: callable (input, target) → per-sample losses of any shape, each of which is a sample:
            each pixel, each token, each element for `nn.MSELoss` or `nn.BCEWithLogitsLoss`. Default:
            `nn.CrossEntropyLoss()`. A torch loss is copied with `reduction="none"`: settings that you
            change on it afterwards, such as `label_smoothing`, have no effect here.
        reduction: "mean" gives Σ w·f(ℓ)/Σ w, "sum" Σ w·f(ℓ), "none" w·f(ℓ) in the shape of the
            losses: the target's, and (n,) of class probabilities (n, C). The weights w are 0 for
            ignored targets, w_y for class weights, 1 otherwise.

    Raises:
        ValueError: for a base that cannot be called, that gives a single value, or that has parameters
            and reduces; for class weights together with label smoothing or class probabilities; for
            another `reduction`, and for a `sample_weight` of another shape or below 0.
        UserWarning: at the first batch, unless compiled, where the arguments look swapped, logits look
            like probabilities, float targets do not sum to 1, or logits (B, T, T) leave open which axis
            holds the classes.

    `state_dict` holds the θ of Flooding, IFlood, SoftAD and AdaFlood, class weights, and what a base of
    your own holds. All other settings (σ, γ, β, t, radius, label smoothing) come from the constructor,
    as in torch's losses. A checkpoint of a module that holds a criterion has its θ: load it into a
    module without one by `strict=False`.

    Example:
        >>> from softadlib import Criterion, functional
        >>> class Squared(Criterion):
        ...     def reduce(self, losses, weights=None, reduction="mean"):
        ...         return functional.erm(losses**2, sample_weight=weights, reduction=reduction)
        >>> Squared(base=nn.L1Loss())(torch.tensor([1.0, 3.0]), torch.zeros(2))  # (1 + 9)/2
        tensor(5.)
        >>> class SquaredMean(Criterion):  # of the whole batch
        ...     additive = False
        ...     def reduce(self, losses, weights=None, reduction="mean"):
        ...         return functional.erm(losses, sample_weight=weights) ** 2
        >>> twice = torch.tensor([1.0, 2.0])  # the second sample counts twice: ((1 + 3 + 3)/3)²
        >>> SquaredMean(base=nn.L1Loss())(torch.tensor([1.0, 3.0]), torch.zeros(2), sample_weight=twice)
        tensor(5.4444)
    """

    settings: tuple[str, ...] = ()
    """Names of the attributes that `repr` shows."""
    additive = True
    """Whether the value is a weighted mean of f(ℓᵢ) over samples."""

    def __init__(self, base: Base | None = None, *, reduction: str = "mean"):
        super().__init__()
        choose("reduction", reduction, F.REDUCTIONS)
        if reduction == "mean" and getattr(base, "reduction", "") == "sum":
            way_out = "; give it reduction='sum', too" if self.additive else ""
            warn(f"{base!r} sums and {type(self).__name__} takes the mean{way_out}")
        self.base = resolve_base(base)
        self.reduction = reduction
        self._is_first_batch = True
        self._losses_hooks: OrderedDict[int, LossesHook] = OrderedDict()

    def forward(self, input: Any, target: Any, sample_weight: Weights = None) -> Tensor:
        """Map (n, C) logits and (n,) targets to (), or whatever shapes `base` takes.

        `sample_weight` in the shape of the per-sample losses, at least 0, says how much each sample
        counts, beside class weights and ignored targets: the mean is Σ w·f(ℓ)/Σ w. A target of weight
        0 may be NaN.
        """
        return self._value(input, target, sample_weight, self.reduction)

    def per_sample(self, input: Any, target: Any, sample_weight: Weights = None) -> Tensor:
        """Return w·f(ℓ) in the shape of the per-sample losses, whatever `reduction` is.

        >>> from softadlib import Focal
        >>> Focal(gamma=2).per_sample(torch.zeros(2, 2), torch.tensor([0, 1]))  # ¼·ln 2 each
        tensor([0.1733, 0.1733])
        """
        return self._value(input, target, sample_weight, "none")

    def _value(self, input: Any, target: Any, sample_weight: Weights, reduction: str) -> Tensor:
        self._check_reduction(reduction)
        losses, weights = self._losses(input, target, sample_weight)
        if self._losses_hooks:
            self._notify(losses, weights, getattr(self, "theta", None))
        flat_weights = None if weights is None else weights.flatten()
        value = self.reduce(losses.flatten(), flat_weights, reduction)
        return value.reshape(losses.shape) if reduction == "none" else value

    def _check_reduction(self, reduction: str) -> None:
        """Raise UserError for a sum or values per sample of a criterion of the whole batch."""
        if reduction != "mean" and not self.additive:
            raise UserError(
                f"{type(self).__name__} has no value per sample: it is a function of the whole batch; "
                "SoftAD and IFlood have one"
            )

    def _losses(self, input: Any, target: Any, sample_weight: Weights) -> tuple[Tensor, Weights]:
        """Return per-sample losses, and how much each counts; check the first batch, unless compiled."""
        losses, weights = self.base(input, target, sample_weight)
        if self._is_first_batch and not torch.compiler.is_compiling():
            self._is_first_batch = False
            self._check_first_batch(input, target, sample_weight)
        return losses, weights

    def _check_first_batch(self, input: Any, target: Any, sample_weight: Weights) -> None:
        """Warn of what only a batch shows; waits for the device once at most."""
        self.base.check_first_batch(input, target, sample_weight)

    def reduce(self, losses: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
        """Reduce per-sample losses (n,) and how much each counts (n,) to (), or w·f(ℓ) (n,) for "none"."""
        raise NotImplementedError

    def derivative(self, losses: Tensor) -> Tensor:
        """Return f′ of losses (m,), by automatic differentiation of `reduce`.

        Raises:
            ValueError: for a criterion of the whole batch, and AdaFlood.

        >>> from softadlib import IFlood
        >>> IFlood(0.5).derivative(torch.tensor([0.1, 2.0]))
        tensor([-1.,  1.])
        """
        if not self.additive:
            raise UserError(
                f"{type(self).__name__} has no f′, and so no class probabilities in closed form: how much "
                "a sample counts depends on the other losses of its batch; for a trained network fit a temperature "
                "(softadlib.fit_temperature)"
            )
        slope: Tensor = torch.func.grad(functools.partial(self.reduce, reduction="sum"))(losses)
        return slope

    def gradient_weights(self, losses: Tensor, weights: Weights = None) -> Tensor:
        """Return what multiplies the gradient of each sample, n·∂value/∂ℓᵢ: 1 for ERM. (n,) → (n,).

        `weights` (n,) say how much each sample counts. What is returned is per unit of weight: a sample
        of weight 2 has the value that each of two equal samples of weight 1 has.
        """
        if self.additive:
            return self.derivative(losses)
        slope: Tensor = torch.func.grad(self.reduce)(losses, weights)
        if weights is None:
            return slope * len(losses)
        return torch.where(weights > 0, slope * weights.sum() / weights, 0)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the class probabilities p that logits of a network trained with this criterion stand for.

        p_k ∝ q_k / f′(−ln q_k), with q the softmax and f(ℓ) the criterion's value for a loss ℓ: see
        `functional.class_probabilities`. For ERM p is q. Class weights, label smoothing, `weight` and
        `pos_weight` of the base are undone, too; `sample_weight=` of the call is not. Class weights w
        given there are undone by p / w, divided by the sum over classes. A class of weight 0 in the base
        has p = 0: the network learned nothing of it.

        Args:
            logits: (n, C, …), as the criterion takes them; log-probabilities where the base is NLLLoss.
                Of any shape where it is BCEWithLogitsLoss: p is then the probability of a 1.

        Raises:
            ValueError: for a criterion whose p has no closed form, and for a base that is not torch's
                cross-entropy, NLL or BCEWithLogitsLoss.

        Example:
            >>> from softadlib import SoftAD
            >>> SoftAD(theta=0.0).probabilities(torch.tensor([[0.75, 0.25]]).log())
            tensor([[0.8980, 0.1020]])
        """
        return self.base.probabilities(logits, self.derivative)

    def temperature(self, p: float = 0.9) -> float:
        """Return the T for which this criterion asks for the logits of cross-entropy, divided by T.

        Of two classes, of which one has probability `p`: see `functional.temperature_asked`. 1 for ERM
        without label smoothing, above 1 with it. About 2 for SoftAD with σ = 1 and a small θ, ∞ where no
        logits have the right order (θ ≥ ln 2). Weights of the base are left out.

        Raises:
            ValueError: as `probabilities`, and for a `p` that is not above ½ and below 1.

        Example:
            >>> from softadlib import SoftAD
            >>> round(SoftAD(theta=0.0).temperature(), 2)
            1.98
        """
        self.base.check_closed_form()
        return F.temperature_asked(self.derivative, p, self.base.label_smoothing)

    def register_losses_hook(self, hook: LossesHook) -> RemovableHandle:
        """Call `hook(losses, weights, theta)` at every training batch, without a second forward pass.

        `losses` (n,) are those of the base, detached. `weights` (n,) say how much each counts, None
        where all count 1. θ is a float, (n,) or None. Calls without gradients and empty batches are
        left out. So are calls under `torch.func`, and the later passes of SAM, which run at perturbed
        weights. Call the criterion outside of checkpointed functions: inside, a batch may be seen a
        second time, when the function is computed anew. `handle.remove()` ends it.

        >>> from softadlib import SoftAD
        >>> criterion, seen = SoftAD(0.1), []
        >>> handle = criterion.register_losses_hook(lambda losses, weights, theta: seen.append(losses))
        >>> loss = criterion(torch.zeros(2, 2, requires_grad=True), torch.tensor([0, 1]))
        >>> seen
        [tensor([0.6931, 0.6931])]
        """
        handle = RemovableHandle(self._losses_hooks)
        self._losses_hooks[handle.id] = hook
        return handle

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _notify(self, losses: Tensor, weights: Weights, theta: float | Tensor | None) -> None:
        """Call the hooks, once for a batch that is trained on: not in a pass that SAM marks as perturbed.

        Under `torch.func` losses cannot be kept, so hooks are not called there.
        """
        if is_hidden(losses):
            return
        if losses.requires_grad and losses.numel() and not in_perturbed_pass():
            flat_weights = None if weights is None else weights.flatten()
            for hook in self._losses_hooks.values():
                hook(losses.detach().flatten(), flat_weights, theta)

    def extra_repr(self) -> str:
        shown = {name: getattr(self, name) for name in self.settings}
        if self.reduction != "mean":
            shown["reduction"] = self.reduction
        return ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value!r}"
            for name, value in shown.items()
        )
