"""What all criteria share: a base loss with one value per sample, and how much each sample counts."""

import copy
import functools
import inspect
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from softadlib import functional as F
from softadlib._validation import UserError, choose, real
from softadlib.functional.reduction import HALF, check_weights, is_hidden
from softadlib.losses.levels import cross_entropy_levels

if TYPE_CHECKING:  # absent where torch was built without it
    from torch.distributed import ProcessGroup

Base = Callable[[Tensor, Tensor], Tensor]
LossesHook = Callable[[Tensor, Tensor | None, float | Tensor | None], None]
"""Takes losses (n,), how much each counts (n,) or None, and θ: one, one for each loss, or None."""


class DistributionWarning(UserWarning):
    """The criterion is a function of the whole batch, and this process sees a part of it.

    Given by Flooding, CVaR, ChiSquareDRO and Tilted in a process group of several processes.
    """


class InertWarning(UserWarning):
    """θ lies below the smallest loss that smoothed or mixed targets allow: no sample ever ascends."""


class CalibrationWarning(UserWarning):
    """θ is so high that the minimiser of cross-entropy may predict a class that is not the likeliest."""


def user_stacklevel() -> int:
    """Return the `stacklevel` of the line that called into this package, for the function that warns."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in (
        "softadlib",
        "torch",
    ):
        frame, level = frame.f_back, level + 1
    return level


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
    base = getattr(base, "_orig_mod", base)  # of torch.compile, which hides the options
    if not callable(base) or isinstance(base, (type, PerSampleCriterion)):
        raise UserError(
            f"base must be a callable such as nn.MSELoss(), no class or softadlib criterion, got {type(base).__name__}"
        )
    _check_arguments(base)
    if isinstance(base, functools.partial) and not base.args:
        torchs = {
            nn.functional.cross_entropy: nn.CrossEntropyLoss,
            nn.functional.nll_loss: nn.NLLLoss,
        }
        base = torchs[base.func](**base.keywords) if base.func in torchs else base
    if isinstance(base, (nn.CrossEntropyLoss, nn.NLLLoss)) and base.weight is not None:
        if not is_classification(base):
            raise UserError(
                f"{type(base).__name__} has class weights and a forward of its own, which leaves no weight "
                "of the sample to divide by; leave out weight=, and call criterion(logits, targets, "
                "weights=w[targets])"
            )
        if getattr(base, "label_smoothing", False):
            raise UserError(_mixed_weights("label_smoothing="))
        if (base.weight < 0).any():
            raise UserError(f"class weights must be at least 0, got {base.weight.min().item():g}")
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
            stacklevel=user_stacklevel(),
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
        "loss in nats and no weight of the sample; leave out weight=, and weigh the samples: "
        "criterion(logits, targets, weights=w[targets])"
    )


def _check_arguments(base: Base) -> None:
    """Raise UserError for a loss that needs more than input and target, such as GaussianNLLLoss."""
    try:
        found = inspect.signature(base.forward if isinstance(base, nn.Module) else base).parameters
    except (TypeError, ValueError):  # written in C
        return
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [n for n, a in found.items() if a.default is a.empty and a.kind in positional]
    if len(needed) > 2:
        raise UserError(
            f"base {base!r} takes {', '.join(needed)}, and a criterion gives it input and target: give a "
            "callable of two, such as lambda outputs, target: loss(*outputs, target), where loss has "
            "reduction='none'"
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
    for name, value in (("input", input), ("target", target)):
        if is_from_torch and not isinstance(value, Tensor):
            raise UserError(
                f"{name} must be a tensor, got {type(value).__name__}; of a model's output give its logits"
            )
    if is_from_torch and (input.dtype in HALF or target.dtype in HALF):
        input, target = (v.float() if v.dtype in HALF else v for v in (input, target))
    if not is_classification(base):
        return _losses_of_callable(base, input, target)
    if target.dtype == torch.uint8:  # takes -100 for 156, and as an index is a mask
        target = target.long()
    ignored, weight = base.ignore_index, base.weight
    if weight is None:
        losses = base(input, target)
        if target.is_floating_point() or _all_count(target, ignored):  # probabilities all count
            return losses, None
        return losses, target != ignored
    if target.is_floating_point():
        raise UserError(_mixed_weights("class probabilities"))
    base.weight = None  # for the loss in nats; hooks of the base see it too
    try:
        losses = base(input, target)
    finally:
        base.weight = weight
    classes = input.shape[1] if input.ndim > 1 else input.shape[0]
    if weight.shape != (classes,):
        raise UserError(
            f"the base's class weights must have shape ({classes},), one per class of the logits, "
            f"got {tuple(weight.shape)}"
        )
    counted = target != ignored
    index = torch.where(counted, target, 0)
    weights = weight.to(losses.dtype).index_select(0, index.flatten()).view_as(index)
    return losses, weights * counted


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
    ignored: Any = getattr(base, "ignore_index", None)
    if not hasattr(ignored, "__index__") or isinstance(ignored, bool):
        return losses, None
    if losses.ndim == 1 and losses.numel() == target.numel():  # as where tokens were flattened
        return losses, target.flatten() != ignored
    return losses, None if losses.shape != target.shape else target != ignored


def _all_count(target: Tensor, ignored: int) -> bool:
    """Tell whether no target is ignored, where a look at them costs less than weights do: on a CPU."""
    if ignored >= 0 or target.device.type != "cpu" or is_hidden(target):
        return False
    return target.numel() > 0 and target.amin().item() >= 0


def world_size(group: "ProcessGroup | None" = None) -> int:
    """Return the number of processes in the group, 1 where none is running."""
    dist = torch.distributed
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


class PerSampleCriterion(nn.Module):
    """A base loss that gives one value per sample, and the reduction of what is made of them."""

    base: Base
    no_closed_form = "write its gradient_weights(losses), the derivative of f at each loss"
    """Why there are no `probabilities`."""
    _is_first_batch = True
    """Whether no batch was seen yet that could be looked at."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        arguments = [*inspect.signature(cls.__init__).parameters.values()][1:]
        cls.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]

    def __new__(cls, *args: Any, **settings: Any) -> "PerSampleCriterion":
        """Say where options of cross-entropy belong; copies come without arguments."""
        known = inspect.signature(cls).parameters
        takes_any = any(a.kind is a.VAR_KEYWORD for a in known.values())
        for option in ("weight", "ignore_index", "label_smoothing"):
            if option in settings and option not in known and not takes_any:
                raise TypeError(
                    f"{cls.__name__} has no {option}=; it is an option of the loss inside: "
                    f"{cls.__name__}(…, base=nn.CrossEntropyLoss({option}=…))"
                )
        if unknown := set() if takes_any else set(settings) - set(known):
            raise TypeError(f"{cls.__name__} takes {', '.join(known)}, and no {min(unknown)}=")
        return super().__new__(cls)

    def __init__(self, base: Base | None = None, *, reduction: str = "mean"):
        super().__init__()
        choose("reduction", reduction, F.REDUCTIONS)
        self.base, self.reduction = per_sample(base, reduction), reduction
        self._losses_hooks: OrderedDict[int, LossesHook] = OrderedDict()

    def register_losses_hook(self, hook: LossesHook) -> RemovableHandle:
        """Call `hook(losses, counts, theta)` at every training batch, without a second forward pass.

        `losses` (n,) are those of the base, detached. `counts` (n,) say how much each counts, None
        where all count 1. θ is a float, (n,) or None. Calls without gradients and empty batches are
        left out, as are the later passes of SAM, whose weights are not the model's.
        `handle.remove()` ends it.

        >>> from softadlib import SoftAD
        >>> criterion, seen = SoftAD(0.1), []
        >>> handle = criterion.register_losses_hook(lambda losses, counts, theta: seen.append(losses))
        >>> loss = criterion(torch.zeros(2, 2, requires_grad=True), torch.tensor([0, 1]))
        >>> seen
        [tensor([0.6931, 0.6931])]
        """
        handle = RemovableHandle(self._losses_hooks)
        self._losses_hooks[handle.id] = hook
        return handle

    def gradient_weights(self, losses: Tensor) -> Tensor:
        """Return f′ of losses (m,), up to a factor, where the criterion is the mean of f over samples."""
        raise UserError(
            f"{type(self).__name__} has no class probabilities in closed form: {self.no_closed_form}"
        )

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the class probabilities p that logits of a network trained with this criterion stand for.

        p_k ∝ q_k / f′(−ln q_k), with q the softmax and f what the criterion makes of a loss: see
        `functional.class_probabilities`. Of ERM p is q. Class weights and label smoothing of the base
        are taken off too.

        Args:
            logits: (n, C, …), as the criterion takes them; log-probabilities where the base is NLLLoss.

        Raises:
            ValueError: for a criterion whose p has no closed form, for a base that is not torch's
                cross-entropy or NLL, and for a class weight of 0.

        Example:
            >>> from softadlib import SoftAD
            >>> SoftAD(theta=0.0).probabilities(torch.tensor([[0.75, 0.25]]).log())
            tensor([[0.8980, 0.1020]])
        """
        if not is_classification(self.base):
            raise UserError(
                "class probabilities have a closed form for cross-entropy; the base is "
                f"{self.base!r}, use functional.class_probabilities for a loss −ln q of your own"
            )
        classes = 1 if logits.ndim > 1 else 0
        smoothing = getattr(self.base, "label_smoothing", 0.0)
        log_p = F.class_log_probabilities(
            logits.movedim(classes, -1), self.gradient_weights, smoothing
        )
        if self.base.weight is not None:
            if not self.base.weight.all():
                raise UserError(
                    "a class of weight 0 has no probability: the criterion never saw it; leave it "
                    "out of weight= and of the logits"
                )
            log_p = (log_p - self.base.weight.log()).log_softmax(-1)
        return log_p.exp().movedim(-1, classes)

    def _losses(
        self, input: Tensor, target: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return per-sample losses, and how much each counts, the caller's weights among it."""
        losses, counts = per_sample_losses(self.base, input, target)
        if weights is not None:
            weights = check_weights(weights, losses)
            counts = weights if counts is None else counts * weights
        if self._is_first_batch and not torch.compiler.is_compiling():
            self._check_first_batch(input, target)
            self._is_first_batch = False
        return losses, counts

    def _check_first_batch(self, input: Tensor, target: Tensor) -> None:
        """Look at the first batch for what only a batch shows; one synchronisation at most."""
        if not isinstance(self.base, nn.NLLLoss) or not input.numel() or is_hidden(input):
            return
        sums = input.detach().double().exp().sum(1 if input.ndim > 1 else 0)
        if (sums - 1).abs().max() > 0.05:
            raise UserError(
                "NLLLoss takes log-probabilities, whose exponentials sum to one, and these sum to "
                f"{sums.flatten()[0].item():.3g}; for logits give base=nn.CrossEntropyLoss()"
            )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _notify(self, losses: Tensor, counts: Tensor | None, theta: float | Tensor | None) -> None:
        """Call the hooks of a batch that is trained on."""
        if losses.requires_grad and losses.numel() and not F.PERTURBED:
            for hook in self._losses_hooks.values():
                hook(losses.detach(), counts, theta)

    def extra_repr(self) -> str:
        return "" if self.reduction == "mean" else f"reduction={self.reduction!r}"


class Criterion(PerSampleCriterion):
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
        ValueError: for a base that is no callable, for one that is a criterion of this library and
            so weighs samples by itself, for one that gives a single value, for one with parameters
            that reduces, for class weights together with label smoothing or class probabilities, for
            another `reduction`, and for `weights` of another shape or below 0.
    """

    decomposes = True
    """Whether the values of parts of a batch add up to the value of the whole."""

    if TYPE_CHECKING:  # type checkers know of a module only that it can be called

        def __call__(
            self, input: Tensor, target: Tensor, weights: Tensor | None = None
        ) -> Tensor: ...

    def forward(self, input: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Map (n, C) logits and (n,) targets to (), or whatever shapes `base` takes.

        `weights` in the shape of the per-sample losses, at least 0, say how much each sample counts,
        beside class weights and ignored targets: the mean is Σ w·f(ℓ)/Σ w.
        """
        losses, counts = self._losses(input, target, weights)
        flat = losses if losses.ndim == 1 else losses.flatten()
        counts = None if counts is None else counts.flatten()
        if self._losses_hooks:
            self._notify(flat, counts, getattr(self, "theta", None))
        value = self.reduce(flat, counts)
        if not self.decomposes and not torch.compiler.is_compiling() and world_size() > 1:
            warnings.warn(
                f"{type(self).__name__} is a function of the whole batch, and each of {world_size()} "
                "processes takes it of its own part; use AccumulatedFlooding for Flooding, and "
                "functional over `gather_losses` for others",
                DistributionWarning,
                stacklevel=user_stacklevel(),
            )
        return value.reshape(losses.shape) if self.reduction == "none" else value

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        """Reduce per-sample losses (n,) and how much each counts (n,) to (), or (n,) for "none"."""
        raise NotImplementedError


class Thresholded(Criterion):
    """A criterion with one level θ for all samples, which may be assigned and is in `state_dict`."""

    theta: float
    pointwise = False
    """Whether each sample is held against θ by itself, so that a high θ can turn its prediction."""

    def __init__(self, theta: float, *, base: Base | None = None, reduction: str = "mean"):
        super().__init__(base, reduction=reduction)
        self.theta = theta

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "theta":
            return super().__setattr__(name, value)
        if value is None:
            raise UserError(
                "theta must be a finite number, got None: give a level in the unit of the loss, such as "
                "0.1 nats; without any level take ERM() or nn.CrossEntropyLoss()"
            )
        self.__dict__["theta"], self._is_first_batch = real("theta", value), True
        self.check_theta()
        return None

    def check_theta(self) -> None:
        """Warn of a θ that is wrong for the base, as far as it shows without a batch."""

    def get_extra_state(self) -> Tensor:
        """Return θ, so that a checkpoint holds it; called by `state_dict`."""
        return torch.tensor(self.theta, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Set θ; called by `load_state_dict`."""
        self.theta = state.item()

    def _load_from_state_dict(
        self, state: Any, prefix: str, local: Any, strict: Any, missing: list[str], *rest: Any
    ) -> None:
        super()._load_from_state_dict(state, prefix, local, strict, missing, *rest)
        missing[:] = [
            key for key in missing if key != f"{prefix}_extra_state"
        ]  # of older checkpoints

    def _check_first_batch(self, input: Tensor, target: Tensor) -> None:
        """Warn of a θ below the smallest loss, or above the level, of smoothed and mixed targets."""
        super()._check_first_batch(input, target)
        base = self.base
        if not isinstance(base, nn.CrossEntropyLoss) or is_hidden(target) or not target.numel():
            return
        classes, name = input.shape[1 if input.ndim > 1 else 0], type(self).__name__
        smoothing = base.label_smoothing
        said = f"{name}(theta={self.theta:g}): "
        if target.is_floating_point():
            p = target.detach().float() * (1 - smoothing) + smoothing / classes
            least = torch.special.entr(p).sum(1 if input.ndim > 1 else 0).median().item()
            why = f"half of the targets are mixed so that their loss is at least {least:.4f}"
        elif smoothing and classes > 1:
            levels = cross_entropy_levels(classes, smoothing)
            least = levels.minimum
            why = f"cross-entropy smoothed by {smoothing:g} is at least {least:.4f} with {classes} classes"
            if self.pointwise and self.theta >= levels.calibrated_below:
                warnings.warn(
                    f"{said}from theta = {levels.calibrated_below:.4f} on the minimiser of cross-entropy "
                    f"smoothed by {smoothing:g} may predict the wrong one of {classes} classes "
                    "(softadlib.cross_entropy_levels); use a smaller theta",
                    CalibrationWarning,
                    stacklevel=user_stacklevel(),
                )
        else:
            return
        if 0 < self.theta < least:
            warnings.warn(
                f"{said}{why}, so none of them ever ascends; theta = {least + self.theta:.4f} lies as far "
                "above that as yours above 0 (softadlib.cross_entropy_levels)",
                InertWarning,
                stacklevel=user_stacklevel(),
            )

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"theta={self.theta:g}", super().extra_repr()]))
