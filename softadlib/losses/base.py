"""What all criteria share: a base loss with one value per sample, and how much each sample counts."""

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from softadlib import functional as F
from softadlib._validation import UserError, choose, real
from softadlib.functional.reduction import HALF, is_traced

Base = Callable[[Tensor, Tensor], Tensor]


class DistributionWarning(UserWarning):
    """The criterion is a function of the whole batch, and this process sees a part of it.

    Given by Flooding, CVaR, ChiSquareDRO and Tilted in a process group of several processes.
    """


class _SummedPerSample(nn.Module):
    """Σ of a loss over all but the first dimension: what `reduction="batchmean"` is the mean of."""

    def __init__(self, elementwise: nn.Module):
        super().__init__()
        self.elementwise = elementwise

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        losses: Tensor = self.elementwise(input, target)
        return losses.flatten(1).sum(1)


def per_sample(base: Base | None, wanted: str = "mean") -> Base:
    """Return the base with `reduction="none"`: cross-entropy for None, a copy where it reduced.

    `wanted` is the criterion's own reduction; a base that sums under a mean is warned of.
    """
    base = nn.CrossEntropyLoss(reduction="none") if base is None else base
    if not callable(base) or isinstance(base, type):
        raise UserError(f"base must be a callable (input, target) → losses, got {base!r}")
    if (
        is_classification(base)
        and base.weight is not None
        and getattr(base, "label_smoothing", False)
    ):
        raise UserError(_mixed_weights("label_smoothing="))
    reduction = getattr(base, "reduction", "none")
    if reduction == "none":
        return base
    if isinstance(base, nn.Module) and next(base.parameters(), None) is not None:
        raise UserError(
            f"base {base!r} has parameters and reduction={reduction!r}; a criterion would copy it, and "
            "the copy's parameters would be no optimizer's: make it with reduction='none'"
        )
    if reduction == "sum" and wanted == "mean":
        warnings.warn(
            f"{base!r} has reduction='sum', and a criterion takes the mean of its losses unless "
            "it gets reduction='sum' itself; give reduction= to the criterion",
            stacklevel=5,
        )
    copied: Any = copy.deepcopy(base)  # a shallow copy would share the user's buffers
    copied.reduction = "none"
    return _SummedPerSample(copied) if reduction == "batchmean" else copied


def is_classification(base: object) -> TypeGuard[nn.CrossEntropyLoss | nn.NLLLoss]:
    """Tell whether `base` is torch's own cross-entropy or NLL, whose options are known here."""
    forward = getattr(type(base), "forward", None)
    return forward is nn.CrossEntropyLoss.forward or forward is nn.NLLLoss.forward


def _mixed_weights(option: str) -> str:
    return (
        f"{option} with class weights: torch weighs the classes inside each sample, which leaves no "
        "loss in nats and no weight of the sample; leave out weight=, or give base= a callable"
    )


def per_sample_losses(base: Base, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return per-sample losses in the shape of the target, and their weights, None where all count 1.

    ============================  ============================  ===================================
    base                          targets that do not count     weight of a sample
    ============================  ============================  ===================================
    torch's cross-entropy, NLL    those of its `ignore_index`   w_y with `weight=`, else 1; the loss
                                                                is without the weight, in nats
    callable with `ignore_index`  those equal to it, where      1
                                  each target has one loss
    any other callable            none: its zeros are losses    1
    ============================  ============================  ===================================

    Every torch loss of half-precision input is computed in float32. Raises ValueError for a single
    value, for what is no tensor, and for class probabilities with class weights.
    """
    is_from_torch = isinstance(base, (nn.modules.loss._Loss, _SummedPerSample))
    if is_from_torch and (input.dtype in HALF or target.dtype in HALF):
        input, target = (v.float() if v.dtype in HALF else v for v in (input, target))
    if not is_classification(base):
        return _losses_of_callable(base, input, target)
    ignored, weight = base.ignore_index, base.weight
    if isinstance(base, nn.CrossEntropyLoss):
        losses = nn.functional.cross_entropy(
            input,
            target,
            ignore_index=ignored,
            reduction="none",
            label_smoothing=base.label_smoothing,
        )
    else:
        losses = nn.functional.nll_loss(input, target, ignore_index=ignored, reduction="none")
    if target.is_floating_point():  # class probabilities: none can be ignored
        if weight is not None:
            raise UserError(_mixed_weights("class probabilities"))
        return losses, None
    if weight is None:
        return losses, None if _all_count(target, ignored) else target != ignored
    classes = input.shape[1] if input.ndim > 1 else input.shape[0]
    if weight.shape != (classes,):
        raise UserError(
            f"the base's class weights must have shape ({classes},), one per class of the logits, "
            f"got {tuple(weight.shape)}"
        )
    counted = target != ignored
    index = torch.where(counted, target, 0).long()  # uint8 would be a mask
    return losses, weight.to(losses.dtype)[index] * counted


def _losses_of_callable(base: Base, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return `per_sample_losses` of a loss whose options are not known."""
    losses = base(input, target)
    if not isinstance(losses, Tensor):
        raise UserError(
            f"base {base!r} must give a tensor of one loss per sample, shape (n,), "
            f"got {type(losses).__name__}"
        )
    if losses.ndim == 0:
        raise UserError(
            f"base {base!r} must give one loss per sample, shape (n,); it gave a single value: "
            "use reduction='none', or a callable without the mean"
        )
    ignored = getattr(base, "ignore_index", None)
    if not isinstance(ignored, int) or target.is_floating_point() or losses.shape != target.shape:
        return losses, None
    return losses, target != ignored


def _all_count(target: Tensor, ignored: int) -> bool:
    """Tell whether no target is ignored, where a look at them costs less than weights do: on a CPU."""
    if ignored >= 0 or target.device.type != "cpu" or is_traced():
        return False
    try:
        return target.numel() > 0 and target.amin().item() >= 0
    except RuntimeError:  # under `vmap` there is no single value to look at
        return False


def warn_if_distributed(name: str, instead: str) -> None:
    """Give a `DistributionWarning` where a process group of several processes is running."""
    group = torch.distributed
    if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        warnings.warn(
            f"{name} is a function of the whole batch, and each of {group.get_world_size()} "
            f"processes takes it of its own part; {instead}",
            DistributionWarning,
            stacklevel=6,  # past the two frames in which a module calls `forward`
        )


class OverBase(nn.Module):
    """A base loss that gives one value per sample, and the reduction of what is made of them."""

    base: Base

    def __init__(self, base: Base | None = None, *, reduction: str = "mean"):
        super().__init__()
        choose("reduction", reduction, F.REDUCTIONS)
        self.base, self.reduction = per_sample(base, reduction), reduction

    def extra_repr(self) -> str:
        return "" if self.reduction == "mean" else f"reduction={self.reduction!r}"


class Criterion(OverBase):
    """A scalar criterion over per-sample losses. Subclasses write `reduce`.

    Where `decomposes`, means of equal parts average to the whole's. For unequal parts
    take sums and divide by all weights. `reduction="mean"` of an empty batch is NaN, as torch's.

    Args:
        base: callable (input, target) → per-sample losses of any shape, each of which is a sample:
            pixels, tokens, and of `nn.MSELoss` or `nn.BCEWithLogitsLoss` every element. Default:
            `nn.CrossEntropyLoss()`. A torch loss that reduces is copied and set to "none".
        reduction: "mean" gives Σ w·f(ℓ)/Σ w, "sum" Σ w·f(ℓ), "none" w·f(ℓ) in the target's shape.
            The weights w are those of `per_sample_losses`: 0 for ignored targets, w_y for class
            weights, 1 otherwise.

    Raises:
        ValueError: for a base that is no callable, for one that gives a single value, for one with
            parameters that reduces, for class weights together with label smoothing or class
            probabilities, for another `reduction`.
    """

    decomposes = True
    """Whether the values of parts of a batch add up to the value of the whole."""

    if TYPE_CHECKING:  # type checkers know of a module only that it can be called

        def __call__(self, input: Tensor, target: Tensor) -> Tensor: ...

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Map (n, C) logits and (n,) targets to (), or whatever shapes `base` takes."""
        losses, weights = per_sample_losses(self.base, input, target)
        flat = losses if losses.ndim == 1 else losses.flatten()
        value = self.reduce(flat, None if weights is None else weights.flatten())
        if not self.decomposes and not torch.compiler.is_compiling():
            self._warn_of_parts()
        return value.reshape(losses.shape) if self.reduction == "none" else value

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        """Reduce per-sample losses (n,) and how much each counts (n,) to (), or (n,) for "none"."""
        raise NotImplementedError

    def _warn_of_parts(self) -> None:
        warn_if_distributed(
            type(self).__name__,
            "use AccumulatedFlooding for Flooding, and functional over `gather_losses` for others",
        )


class Thresholded(Criterion):
    """A criterion with one level θ for all samples."""

    def __init__(self, theta: float, *, base: Base | None = None, reduction: str = "mean"):
        super().__init__(base, reduction=reduction)
        self.theta = real("theta", theta)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"theta={self.theta:g}", super().extra_repr()]))
