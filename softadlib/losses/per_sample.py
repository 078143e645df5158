"""A base loss made to give one value per sample: resolved once, when the criterion is made."""

import copy
import functools
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softadlib._validation import UserError
from softadlib.functional.class_probabilities import class_log_probabilities
from softadlib.functional.objectives import LN2
from softadlib.functional.reduction import Weights, check_weights, in_float32, is_hidden
from softadlib.losses.levels import Levels, cross_entropy_levels
from softadlib.losses.notices import warn

Base = Callable[[Any, Any], Tensor]
OF_FUNCTIONS = {
    nn.functional.cross_entropy: nn.CrossEntropyLoss,
    nn.functional.nll_loss: nn.NLLLoss,
}
"""Function of torch → the loss that `partial(function, …)` stands for."""
WITH_A_LAYER = (nn.LinearCrossEntropyLoss,) if hasattr(nn, "LinearCrossEntropyLoss") else ()
"""Cross-entropy behind a linear layer of its own; later versions of torch have it."""
WEIGH_SAMPLES = "leave out weight=, and call criterion(logits, targets, weights=w[targets])"
INSIDE = (
    "torch weighs the classes inside each sample, which leaves no loss in nats and no weight of "
    f"the sample; {WEIGH_SAMPLES}"
)


class PerSample(nn.Module):
    """Calls a base loss for the losses of the samples, and says how much each sample counts.

    ============================  ============================  ===================================
    base                          targets that do not count     weight of a sample
    ============================  ============================  ===================================
    torch's cross-entropy, NLL    those of its `ignore_index`   w_y with `weight=`, else 1; the loss
                                                                is without the weight, in nats
    callable with `ignore_index`  those equal to it, where      1
                                  each target has one loss
    any other callable            none: its zeros are losses    1
    ============================  ============================  ===================================

    Torch's losses of half-precision input are computed in float32.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        loss: Base,
        *,
        of_torch: bool = False,
        class_weights: Tensor | None = None,
        ignore_index: int | None = None,
        calibrated_below: float = math.inf,
    ):
        super().__init__()
        self.loss = loss
        self.of_torch = of_torch
        self.register_buffer("class_weights", class_weights)
        self.ignore_index = ignore_index
        self.calibrated_below = calibrated_below
        """θ from which on SoftAD and iFlood of this loss may predict the wrong class."""

    def losses_and_counts(
        self, input: Any, target: Any, weights: Weights = None
    ) -> tuple[Tensor, Weights]:
        """Return losses, one per sample, and how much each counts; None where all count 1.

        A target of weight 0 is replaced by one that counts before the base sees it, and its loss is 0:
        a NaN or a class out of range there reaches neither the value nor the gradient.
        """
        if self.of_torch:
            input, target = self._checked(input, target)
        if weights is not None:
            target = _replace_uncounted(target, weights)
        losses = self._losses(input, target)
        counts = self._counts(losses, input, target)
        if weights is not None:
            weights = check_weights(weights, losses)
            losses = losses.masked_fill(weights == 0, 0)
            counts = weights if counts is None else counts * weights
        return losses, counts

    def _checked(self, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return input and target as a loss of torch gets them, in float32 or float64."""
        for name, value in (("input", input), ("target", target)):
            if not isinstance(value, Tensor):
                raise UserError(
                    f"{name} must be a tensor, got {type(value).__name__}; of a model's output give "
                    "its logits"
                )
        return in_float32(input), in_float32(target)

    def _losses(self, input: Any, target: Any) -> Tensor:
        losses: Any = self.loss(input, target)
        is_mean = isinstance(losses, Tensor) and losses.numel() == 1 < _rows(target)
        if not isinstance(losses, Tensor) or losses.ndim == 0 or is_mean:
            got = "a single value" if isinstance(losses, Tensor) else type(losses).__name__
            raise UserError(
                f"base {self.loss!r} must give a tensor of one loss per sample, shape (n,), got {got}: "
                "use reduction='none', or a callable without the mean"
            )
        return losses

    def _counts(self, losses: Tensor, input: Any, target: Any) -> Weights:
        """Return how much each sample counts by the options of the base, None where all count 1."""
        if self.ignore_index is None or losses.numel() != target.numel():
            return None
        counted: Tensor = target != self.ignore_index
        return counted.reshape(losses.shape)

    def check_first_batch(self, input: Any, target: Any) -> None:
        """Warn where the shapes of a batch can be read in two ways."""

    def levels(self, input: Any, target: Any) -> Levels | None:
        """Return the levels of smoothed or mixed targets, None for others."""
        return None

    def probabilities(self, logits: Tensor, weight: Callable[[Tensor], Tensor]) -> Tensor:
        """Return class probabilities in closed form, where `weight` is f′ of the criterion."""
        raise UserError(
            "probabilities have a closed form for torch's cross-entropy, NLL and BCEWithLogitsLoss "
            f"without weights, and the base is {self.loss!r}; for a loss of your own call "
            "functional.class_probabilities"
        )


class PerSampleBinary(PerSample):
    """Torch's binary cross-entropy of logits, every term of which counts the same."""

    def probabilities(self, logits: Tensor, weight: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the probability of a 1, in the shape of the logits."""
        both = torch.stack([torch.zeros_like(logits), logits], -1)
        return class_log_probabilities(both, weight)[..., 1].exp()


class PerSampleOfClasses(PerSample):
    """Torch's cross-entropy or NLL, whose targets are classes or class probabilities."""

    ignore_index: int

    def __init__(self, loss: nn.CrossEntropyLoss | nn.NLLLoss, calibrated_below: float):
        """Take over a copy of the user's loss: its class weights are moved out of it."""
        super().__init__(
            loss,
            of_torch=True,
            class_weights=loss.weight,
            ignore_index=loss.ignore_index,
            calibrated_below=calibrated_below,
        )
        self.label_smoothing = getattr(loss, "label_smoothing", 0.0)
        loss.weight = None

    def _checked(self, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        input, target = super()._checked(input, target)
        has_one_class = input.ndim > 0 and input.shape[class_axis(input)] == 1
        if has_one_class and isinstance(self.loss, nn.CrossEntropyLoss):
            raise UserError(
                f"logits {tuple(input.shape)} have one class, second, whose cross-entropy is 0; for one logit "
                "per target give base=nn.BCEWithLogitsLoss() and targets of the logits' shape"
            )
        if _has_classes_last(input, target) and input[:, 0].shape != target.shape:
            raise UserError(
                f"logits {tuple(input.shape)} beside targets {tuple(target.shape)} have their classes "
                "last, and cross-entropy takes them second: give logits.movedim(-1, 1), or "
                "logits.flatten(0, -2) and targets.flatten()"
            )
        if target.is_floating_point() and target.shape != input.shape:
            raise UserError(
                f"targets {tuple(target.shape)} of {target.dtype} beside logits {tuple(input.shape)} are neither "
                "classes, which are whole numbers, nor probabilities, which have the logits' shape; for "
                "classes give targets.long()"
            )
        if target.is_floating_point() and self.class_weights is not None:
            raise UserError(f"class probabilities with class weights: {INSIDE}")
        if target.dtype == torch.uint8:  # takes -100 for 156, and as an index is a mask
            target = target.long()
        return input, target

    def _losses(self, input: Tensor, target: Tensor) -> Tensor:
        return self.loss(input, target)

    def _counts(self, losses: Tensor, input: Tensor, target: Tensor) -> Weights:
        if target.is_floating_point():  # probabilities all count
            return None
        if self.class_weights is None:
            return None if _all_count(target, self.ignore_index) else target != self.ignore_index
        classes = input.shape[class_axis(input)]
        if self.class_weights.shape != (classes,):
            raise UserError(
                f"the base's class weights must have shape ({classes},), one per class of the logits, "
                f"got {tuple(self.class_weights.shape)}"
            )
        counted = target != self.ignore_index
        index = torch.where(counted, target, 0)
        weights = self.class_weights.to(losses.dtype).index_select(0, index.flatten())
        return weights.view_as(index) * counted

    def check_first_batch(self, input: Tensor, target: Tensor) -> None:
        """Warn of logits (B, T, T), whose classes may be second or last, and of logits (n,)."""
        is_one = input.ndim == 1 and target.is_floating_point() and not is_hidden(target)
        if is_one and not math.isclose(target.sum().item(), 1, abs_tol=1e-3):
            warn(
                f"logits and targets of shape {tuple(input.shape)} are read as one sample of "
                f"{len(input)} classes; for a binary target per logit give base=nn.BCEWithLogitsLoss()"
            )
        if _has_classes_last(input, target):
            warn(
                f"logits {tuple(input.shape)} beside targets {tuple(target.shape)} are read as (batch, "
                "classes, length), as torch reads them; if the classes are last, give "
                "logits.flatten(0, -2) and targets.flatten()"
            )

    def levels(self, input: Tensor, target: Tensor) -> Levels | None:
        if is_hidden(target) or not target.numel():
            return None
        classes = input.shape[class_axis(input)]
        if target.is_floating_point():
            mixed = target.detach().float()
            mixed = mixed * (1 - self.label_smoothing) + self.label_smoothing / classes
            entropies = torch.special.entr(mixed).sum(class_axis(input))
            return Levels(minimum=entropies.median().item(), calibrated_below=math.inf)
        if self.label_smoothing and classes > 1:
            return cross_entropy_levels(classes, self.label_smoothing)
        return None

    def probabilities(self, logits: Tensor, weight: Callable[[Tensor], Tensor]) -> Tensor:
        """Return class probabilities (n, C, …) of logits of that shape."""
        axis = class_axis(logits)
        log_p = class_log_probabilities(logits.movedim(axis, -1), weight, self.label_smoothing)
        if self.class_weights is not None:
            if not self.class_weights.all():
                raise UserError(
                    "a class of weight 0 has no probability; leave it out of weight= and of the logits"
                )
            log_p = (log_p - self.class_weights.log()).log_softmax(-1)
        return log_p.exp().movedim(-1, axis)


def class_axis(input: Tensor) -> int:
    """Return the axis of the classes: the second, or the only one of a single sample."""
    return min(1, input.ndim - 1)


def _has_classes_last(input: Tensor, target: Tensor) -> bool:
    """Tell whether logits (B, T, K) stand beside classes (B, T)."""
    return input.ndim > 2 and target.shape == input.shape[:-1] and not target.is_floating_point()


def _all_count(target: Tensor, ignored: int) -> bool:
    """Tell whether no target is ignored, where a look at them costs less than weights do: on a CPU."""
    if ignored >= 0 or target.device.type != "cpu" or is_hidden(target):
        return False
    return target.numel() > 0 and target.amin().item() >= 0


def _rows(target: Any) -> int:
    """Return the length of a target's first axis; 1 of one without axes, and of what is no tensor."""
    return len(target) if isinstance(target, Tensor) and target.ndim else 1


def _replace_uncounted(target: Any, weights: Any) -> Any:
    """Return the target with the first one that counts in place of each of weight 0; 0 where none counts.

    Weights may be per row, or per pixel, of targets with more dimensions.
    """
    if not isinstance(target, Tensor) or not isinstance(weights, Tensor) or not weights.numel():
        return target
    inner = target.ndim - weights.ndim  # of class probabilities (n, K, …), or of a loss per row
    shares_weights = weights.numel() != target.numel()
    if shares_weights and (
        inner < 1 or target.shape[:1] + target.shape[1 + inner :] != weights.shape
    ):
        return target  # `check_weights` refuses them
    last = target.flatten(1, inner).movedim(1, -1) if shares_weights else target.unsqueeze(-1)
    rows = last.reshape(-1, last.shape[-1])  # a weight each
    counts = weights.flatten() > 0
    first = counts.int().argmax().view(1)
    stand_in = torch.where(counts.any(), rows.index_select(0, first), rows.new_zeros(()))
    replaced = torch.where(counts[:, None], rows, stand_in).view(last.shape)
    return replaced.movedim(-1, 1).reshape(target.shape) if shares_weights else replaced.squeeze(-1)


class RowSums(nn.Module):
    """Sum a loss over all dimensions but the first; `reduction="batchmean"` is the mean of these sums."""

    def __init__(self, elementwise: nn.Module):
        super().__init__()
        self.elementwise = elementwise

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        losses: Tensor = self.elementwise(input, target)
        return losses.flatten(1).sum(1)


def uncompiled(value: Any) -> Any:
    """Return the module that `torch.compile` wrapped; torch has no public way to it."""
    return getattr(value, "_orig_mod", value)


def per_sample(base: Base | None = None, wanted: str = "mean") -> PerSample:
    """Resolve a base: torch's losses are copied with `reduction="none"`, others called as they are.

    Args:
        base: callable (input, target) → losses; None is cross-entropy.
        wanted: the criterion's own reduction; a base that sums under a mean is warned of.

    Raises:
        ValueError: see `Criterion`.

    Example:
        >>> base = per_sample(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])))
        >>> base.losses_and_counts(torch.zeros(2, 2), torch.tensor([0, 1]))  # ln 2 each; the second counts three times
        (tensor([0.6931, 0.6931]), tensor([1., 3.]))
    """
    loss: Any = nn.CrossEntropyLoss() if base is None else uncompiled(base)
    if not callable(loss) or isinstance(loss, type):
        got = f"the class {loss.__name__}" if isinstance(loss, type) else f"{loss!r:.40}"
        raise UserError(f"base must be a callable such as nn.MSELoss(), got {got}")
    if isinstance(loss, functools.partial) and loss.func in OF_FUNCTIONS and not loss.args:
        loss = OF_FUNCTIONS[loss.func](**loss.keywords)
    reduction = getattr(loss, "reduction", "none")
    if reduction == "sum" and wanted == "mean":
        warn(
            f"{loss!r} has reduction='sum', and a criterion takes the mean of its losses unless "
            "it gets reduction='sum' itself; give reduction= to the criterion"
        )
    of_torch = isinstance(loss, nn.modules.loss._Loss)  # torch has no public name for its losses
    if of_torch:
        _check_inputs(loss)
    level = _calibrated_below(loss)
    if isinstance(loss, WITH_A_LAYER) and loss.weight is not None:
        raise UserError(f"base {loss!r} has parameters and class weights; {WEIGH_SAMPLES}")
    if of_torch or reduction != "none":
        loss = _copy(loss)
    if reduction == "batchmean":
        loss = RowSums(loss)
    if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) and _is_torchs_own(loss):
        return PerSampleOfClasses(loss, level)
    kind = PerSampleBinary if _is_unweighted_binary(loss) else PerSample
    return kind(loss, of_torch=of_torch, ignore_index=_index_of(loss), calibrated_below=level)


def _copy(loss: Any) -> Any:
    """Return a copy with `reduction="none"`.

    A loss with parameters is taken as it is, so that an optimizer trains them; UserError where it reduces.
    """
    has_parameters = isinstance(loss, nn.Module) and len(list(loss.parameters())) > 0
    if has_parameters and loss.reduction != "none":
        raise UserError(
            f"base {loss!r} has parameters and reduction={loss.reduction!r}; a criterion would copy it, "
            "and no optimizer would train the copy: make it with reduction='none'"
        )
    if has_parameters:
        return loss
    loss = copy.deepcopy(loss)
    loss.reduction = "none"
    return loss


def _check_inputs(loss: nn.Module) -> None:
    """Raise UserError for a loss of torch that takes more than an input and a target."""
    _, *parameters = inspect.signature(type(loss).forward).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if len(needed) > 2:
        raise UserError(
            f"base {loss!r} takes {', '.join(needed)}, and a criterion gives it an input and a target: give "
            "a function of two that calls it with reduction='none', such as lambda output, target: …"
        )


def _is_torchs_own(loss: nn.CrossEntropyLoss | nn.NLLLoss) -> bool:
    """Tell whether a loss has torch's forward; UserError for class weights whose meaning is ambiguous."""
    own = type(loss).forward in (nn.CrossEntropyLoss.forward, nn.NLLLoss.forward)
    if loss.weight is not None and not own:
        raise UserError(
            f"{type(loss).__name__} has class weights and a forward of its own, which leaves no weight "
            f"of the sample to divide by; {WEIGH_SAMPLES}"
        )
    if loss.weight is not None and list(loss.parameters()):
        raise UserError(f"base {loss!r} has parameters and class weights; {WEIGH_SAMPLES}")
    if loss.weight is not None and getattr(loss, "label_smoothing", False):
        raise UserError(f"label_smoothing= with class weights: {INSIDE}")
    return own


def _is_unweighted_binary(loss: object) -> bool:
    """Tell whether a loss is torch's binary cross-entropy of logits, every term of which counts the same."""
    if not isinstance(loss, nn.BCEWithLogitsLoss):
        return False
    has_torchs_forward = type(loss).forward is nn.BCEWithLogitsLoss.forward
    return has_torchs_forward and loss.weight is None and loss.pos_weight is None


def _calibrated_below(base: object) -> float:
    """Return ln 2 for torch's cross-entropies, times the smallest weight inside a binary one."""
    if isinstance(base, (nn.CrossEntropyLoss, nn.NLLLoss, *WITH_A_LAYER)):
        return math.inf if getattr(base, "label_smoothing", 0.0) else LN2
    if not isinstance(base, (nn.BCELoss, nn.BCEWithLogitsLoss)):
        return math.inf
    smallest = 1.0 if base.weight is None else base.weight.min().item()
    positive = getattr(base, "pos_weight", None)
    if positive is not None:
        smallest *= min(1.0, positive.min().item())
    return LN2 * smallest


def _index_of(loss: Any) -> int | None:
    """Return the `ignore_index` of a callable, where it has a whole number."""
    index: Any = getattr(loss, "ignore_index", None)
    if index is None and isinstance(loss, WITH_A_LAYER):
        index = -100
    return operator.index(index) if hasattr(index, "__index__") else None
