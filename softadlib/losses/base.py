"""The base of a criterion: a loss that gives one value per sample.

`resolve_base` makes a `BaseLoss` of what the user gives, once, when the criterion is made. The rest of
the package calls that: `base(input, target)` gives the losses, and how much each counts.
"""

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softadlib._validation import UserError, warn
from softadlib.functional.class_probabilities import class_log_probabilities
from softadlib.functional.reduction import HALF, Weights, check_weights, is_hidden

Base = Callable[[Any, Any], Tensor]
"""What the user gives: (input, target) → losses."""
MODULE_OF = {
    nn.functional.cross_entropy: nn.CrossEntropyLoss,
    nn.functional.nll_loss: nn.NLLLoss,
}
"""Function of torch → the module that `partial(function, …)` stands for."""
USE_SAMPLE_WEIGHT = (
    "torch weighs the classes inside each sample, which leaves no loss in nats and no weight of the "
    "sample: leave out weight=, and call criterion(logits, targets, sample_weight=w[targets])"
)


def resolve_base(base: Base | None = None) -> "BaseLoss":
    """Resolve a base: a loss with `reduction` is copied with "none", others are called as they are.

    A loss with parameters is not copied, so that an optimizer trains them.

    Args:
        base: callable (input, target) → losses; None is cross-entropy.

    Raises:
        ValueError: see `Criterion`.

    Example:
        >>> base = resolve_base(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])))
        >>> base(torch.zeros(2, 2), torch.tensor([0, 1]))  # ln 2 each; the second counts three times
        (tensor([0.6931, 0.6931]), tensor([1., 3.]))
    """
    loss: Any = nn.CrossEntropyLoss() if base is None else uncompiled(base)
    if isinstance(loss, type) or not callable(loss):
        got = f"the class {loss.__name__}" if isinstance(loss, type) else f"{loss!r:.40}"
        raise UserError(f"base must be a callable such as nn.MSELoss(), got {got}")
    if isinstance(loss, functools.partial) and loss.func in MODULE_OF and not loss.args:
        loss = MODULE_OF[loss.func](**loss.keywords)
    reduction = getattr(loss, "reduction", None)
    has_parameters = isinstance(loss, nn.Module) and len(list(loss.parameters())) > 0
    if has_parameters and reduction not in (None, "none"):
        raise UserError(
            f"base {loss!r} has parameters and reduction={reduction!r}; a criterion would copy it, "
            "and no optimizer would train the copy: make it with reduction='none'"
        )
    is_copy = reduction is not None and not has_parameters
    if is_copy:
        loss = copy.deepcopy(loss)
        loss.reduction = "none"
    return BaseLoss(RowSums(loss) if reduction == "batchmean" else loss, is_copy)


class BaseLoss(nn.Module):
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

    A copied loss gets half-precision input in float32.
    """

    class_weights: Tensor | None

    def __init__(self, loss: Any, is_copy: bool):
        """Take over a loss; of a copy, the class weights are moved out."""
        super().__init__()
        self.loss = loss
        self.is_copy = is_copy
        forward = type(loss).forward if isinstance(loss, nn.Module) else None
        # A subclass with a `forward` of its own is another loss; one without is still torch's.
        self.of_classes = forward in (nn.CrossEntropyLoss.forward, nn.NLLLoss.forward)
        """Whether it is torch's cross-entropy or NLL, of classes or class probabilities."""
        self.of_one_logit = forward is nn.BCEWithLogitsLoss.forward
        """Whether it is torch's binary cross-entropy of a logit."""
        self.of_one_probability = forward is nn.BCELoss.forward
        """Whether it is torch's binary cross-entropy of a probability."""
        self.ignore_index: Any = getattr(loss, "ignore_index", None)
        self.label_smoothing: float = (
            getattr(loss, "label_smoothing", 0.0) if self.of_classes else 0.0
        )
        weights = loss.weight if self.of_classes else None
        if weights is not None:
            if self.label_smoothing or not is_copy:
                raise UserError(
                    f"class weights with label smoothing, or beside parameters, in {loss!r}: {USE_SAMPLE_WEIGHT}"
                )
            loss.weight = None
        self.register_buffer("class_weights", weights)

    def forward(
        self, input: Any, target: Any, sample_weight: Weights = None
    ) -> tuple[Tensor, Weights]:
        """Return losses, one per sample, and how much each counts; None where all count 1.

        A target of weight 0 is replaced by one that counts before the loss sees it, and its loss is 0:
        a NaN or a class out of range there reaches neither the value nor the gradient.
        """
        if self.is_copy:
            input, target = _in_float32(input), _in_float32(target)
        if self.of_classes and target.dtype == torch.uint8:
            target = target.long()  # in uint8 a comparison with -100 finds class 156
        if sample_weight is not None:
            target = _replace_uncounted(target, sample_weight)
        losses = self.loss(input, target)
        is_single = losses.ndim == 0 or (losses.numel() == 1 and _rows(target) > 1)
        if is_single and not self.of_classes:
            raise UserError(
                f"base {self.loss!r} gives a single value, and a criterion needs one loss per sample, "
                "shape (n,): use reduction='none', or a callable without the mean"
            )
        weights = self._weights(losses, input, target)
        if sample_weight is not None:
            sample_weight = check_weights(sample_weight, losses)
            losses = losses.masked_fill(sample_weight == 0, 0)
            weights = sample_weight if weights is None else weights * sample_weight
        return losses, weights

    def _weights(self, losses: Tensor, input: Any, target: Any) -> Weights:
        """Return how much each sample counts by the options of the loss, None where all count 1."""
        if self.class_weights is not None:
            return self._weights_by_class(self.class_weights.to(losses.dtype), input, target)
        if self.ignore_index is None or losses.numel() != target.numel():
            return None
        if self.of_classes and (
            target.is_floating_point() or _all_count(target, self.ignore_index)
        ):
            return None
        counted: Tensor = target != self.ignore_index
        return counted.reshape(losses.shape)

    def _weights_by_class(self, class_weights: Tensor, input: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point():
            raise UserError(f"class probabilities with class weights: {USE_SAMPLE_WEIGHT}")
        classes = input.shape[class_axis(input)]
        if class_weights.shape != (classes,):
            raise UserError(
                f"the base's class weights must have shape ({classes},), one per class of the logits, "
                f"got {tuple(class_weights.shape)}"
            )
        counted: Tensor = target != self.ignore_index
        index = torch.where(counted, target, 0)
        return class_weights.index_select(0, index.flatten()).view_as(index) * counted

    def check_first_batch(self, input: Any, target: Any, sample_weight: Weights = None) -> None:
        """Warn of targets that torch would read otherwise than they are meant, without a word."""
        if not isinstance(input, Tensor) or not isinstance(target, Tensor):
            return
        if target.requires_grad and not input.requires_grad:
            warn(
                "the targets have a gradient and the logits have none: call criterion(logits, targets)"
            )
            return
        if not self.of_classes or is_hidden(target) or is_hidden(input):
            return
        self._check_outputs(input.detach())
        if target.is_floating_point() and sample_weight is None:
            off = (target.detach().sum(class_axis(target)) - 1).abs()
            if (off > 0.01).any() or (target < 0).any():
                warn(
                    f"targets {tuple(target.shape)} of {target.dtype} are read as class probabilities, and "
                    "some do not sum to 1 or are negative: for several labels per sample, or one logit "
                    "per target, give base=nn.BCEWithLogitsLoss(); of a teacher's logits give the softmax"
                )
        if input.ndim > 2 and target.shape == input.shape[:-1] and not target.is_floating_point():
            warn(
                f"logits {tuple(input.shape)} beside targets {tuple(target.shape)} are read as (batch, "
                "classes, length), as torch reads them; if the classes are last, give "
                "logits.flatten(0, -2) and targets.flatten()"
            )

    def _check_outputs(self, input: Tensor) -> None:
        """Warn of probabilities in place of logits, and of logits in place of log-probabilities."""
        axis = class_axis(input)
        if not input.numel() or input.shape[axis] == 1 or input.device.type == "meta":
            return
        if isinstance(self.loss, nn.NLLLoss):
            if (input > 0).any():
                warn(
                    "NLLLoss takes logarithms of probabilities, and some inputs are above 0: of logits give "
                    "base=nn.CrossEntropyLoss()"
                )
        elif ((input >= 0).all() & ((input.sum(axis) - 1).abs() < 0.01).all()).item():
            warn(
                "the logits look like probabilities, rows that sum to 1: leave out the softmax at the end of "
                "the network"
            )

    def probabilities(self, logits: Tensor, derivative: Callable[[Tensor], Tensor]) -> Tensor:
        """Return class probabilities in closed form, where `derivative` is f′ of the criterion."""
        if self.of_one_logit:
            return _probability_of_one(logits, derivative, self.loss.weight, self.loss.pos_weight)
        self.check_closed_form()
        axis = class_axis(logits)
        log_p = class_log_probabilities(logits.movedim(axis, -1), derivative, self.label_smoothing)
        if self.class_weights is not None:
            never_weighed = self.class_weights == 0
            log_w = self.class_weights.log().masked_fill(never_weighed, math.inf)
            log_p = (log_p - log_w).log_softmax(-1)
        return log_p.exp().movedim(-1, axis)

    def check_closed_form(self) -> None:
        """Raise UserError where the loss is not torch's cross-entropy of classes or of one logit."""
        if not self.of_classes and not self.of_one_logit:
            raise UserError(
                "class probabilities and temperature have a closed form for torch's CrossEntropyLoss, "
                f"NLLLoss and BCEWithLogitsLoss, and the base is {self.loss!r}; for a loss of your own see "
                "functional.class_probabilities"
            )


def class_axis(input: Tensor) -> int:
    """Return the axis of the classes: the second, or the only one of a single sample."""
    return min(1, input.ndim - 1)


def _probability_of_one(
    logits: Tensor,
    derivative: Callable[[Tensor], Tensor],
    weight: Tensor | None,
    pos_weight: Tensor | None,
) -> Tensor:
    """Return the probability of a 1, in the shape of the logits: that of two classes with logits 0 and z.

    Weights c are inside the loss, which is c·(−ln q), so that f′ becomes c·f′.
    """
    both = torch.stack([torch.zeros_like(logits), logits], -1)
    if weight is not None or pos_weight is not None:
        of_zero = torch.ones_like(logits) if weight is None else weight.expand_as(logits)
        of_one = of_zero if pos_weight is None else of_zero * pos_weight
        inside = torch.stack([of_zero, of_one], -1).flatten()
        f_prime, derivative = derivative, lambda losses: inside * f_prime(inside * losses)
    return class_log_probabilities(both, derivative)[..., 1].exp()


def _in_float32(value: Any) -> Any:
    """Return a tensor of half precision in float32, anything else as it is."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def _rows(target: Any) -> int:
    """Return the length of a target's first axis; 1 of one without axes, and of what is no tensor."""
    return len(target) if isinstance(target, Tensor) and target.ndim else 1


def _all_count(target: Tensor, ignored: int) -> bool:
    """True if all targets are known to count. A GPU is not asked: there weights cost less."""
    if ignored >= 0 or target.device.type != "cpu" or is_hidden(target):
        return False
    return target.numel() > 0 and target.amin().item() >= 0


def _replace_uncounted(target: Any, weight: Any) -> Any:
    """Replace every target of weight 0 by the first target that counts (by 0 if none does).

    Weights may be per row, or per pixel, of targets with more dimensions: class probabilities (n, K, …).
    """
    if not isinstance(target, Tensor) or not isinstance(weight, Tensor) or not weight.numel():
        return target
    inner = target.ndim - weight.ndim
    if inner < 0 or target.shape[:1] + target.shape[1 + inner :] != weight.shape:
        return target  # `check_weights` refuses them
    counts = weight.flatten() > 0
    index = torch.arange(len(counts), device=target.device)
    index = torch.where(counts, index, counts.int().argmax())
    axes, last = tuple(range(1, 1 + inner)), tuple(range(-inner, 0))
    rows = target.movedim(axes, last)
    replaced = rows.flatten(0, weight.ndim - 1)[index].view(rows.shape)
    replaced = torch.where(counts.any(), replaced, torch.zeros_like(replaced))
    return replaced.movedim(last, axes)


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
