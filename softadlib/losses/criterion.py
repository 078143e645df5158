"""What all criteria share: a base loss with one value per sample, hooks, and the level θ."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from softadlib import functional as F
from softadlib._validation import UserError, choose, real
from softadlib.functional.reduction import Weights, is_hidden
from softadlib.losses.levels import Levels
from softadlib.losses.notices import CalibrationWarning, DistributionWarning, InertWarning, warn
from softadlib.losses.per_sample import Base, per_sample
from softadlib.optim.perturbed import in_perturbed_pass

if TYPE_CHECKING:  # absent where torch was built without it
    from torch.distributed import ProcessGroup

LossesHook = Callable[[Tensor, Weights, float | Tensor | None], None]
"""Takes losses (n,), how much each counts (n,) or None, and θ: one, one for each loss, or None."""


def world_size(group: "ProcessGroup | None" = None) -> int:
    """Return the number of processes in the group, 1 where none is running."""
    dist = torch.distributed
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


class PerSampleCriterion(nn.Module):
    """A base loss that gives one value per sample, and the reduction of what is made of them."""

    settings: tuple[str, ...] = ()
    """Names of the numbers that `repr` shows."""
    no_closed_form = "write its gradient_weights(losses), the derivative of f at each loss"
    """Why there are no `probabilities`."""

    def __init__(self, base: Base | None = None, *, reduction: str = "mean"):
        super().__init__()
        choose("reduction", reduction, F.REDUCTIONS)
        if isinstance(base, PerSampleCriterion):
            raise UserError(
                f"base must be a callable such as nn.MSELoss(), got a criterion, {type(base).__name__}"
            )
        self.base = per_sample(base, reduction)
        self.reduction = reduction
        self._is_first_batch = True
        self._losses_hooks: OrderedDict[int, LossesHook] = OrderedDict()

    def register_losses_hook(self, hook: LossesHook) -> RemovableHandle:
        """Call `hook(losses, counts, theta)` at every training batch, without a second forward pass.

        `losses` (n,) are those of the base, detached. `counts` (n,) say how much each counts, None
        where all count 1. θ is a float, (n,) or None. Calls without gradients and empty batches are
        left out. So are calls under `torch.func`, and the later passes of SAM, which run at perturbed
        weights. Call the criterion outside of checkpointed functions: inside, a batch may be seen a
        second time, when the function is computed anew. `handle.remove()` ends it.

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

    def _losses(self, input: Any, target: Any, weights: Weights) -> tuple[Tensor, Weights]:
        """Return per-sample losses, and how much each counts, with the caller's weights."""
        losses, counts = self.base.losses_and_counts(input, target, weights)
        if self._is_first_batch and not torch.compiler.is_compiling():
            self._check_first_batch(input, target)
            self._is_first_batch = False
        return losses, counts

    def _check_first_batch(self, input: Any, target: Any) -> None:
        """Warn of what only a batch shows; waits for the device once at most."""
        self.base.check_first_batch(input, target)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _notify(self, losses: Tensor, counts: Weights, theta: float | Tensor | None) -> None:
        """Call the hooks of a batch that is trained on; under `torch.func` losses cannot be kept."""
        if is_hidden(losses):
            return
        if losses.requires_grad and losses.numel() and not in_perturbed_pass():
            flat_counts = None if counts is None else counts.flatten()
            for hook in self._losses_hooks.values():
                hook(losses.detach().flatten(), flat_counts, theta)

    def gradient_weights(self, losses: Tensor) -> Tensor:
        """Return f′ of losses (m,), up to a factor, where the criterion is the mean of f over samples."""
        raise UserError(
            f"{type(self).__name__} has no class probabilities in closed form: {self.no_closed_form}"
        )

    def sample_weights(self, losses: Tensor, counts: Weights = None) -> Tensor:
        """Return what multiplies the gradient of each sample, n·∂value/∂ℓᵢ: 1 for ERM. (n,) → (n,)."""
        return self.gradient_weights(losses)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the class probabilities p that logits of a network trained with this criterion stand for.

        p_k ∝ q_k / f′(−ln q_k), with q the softmax and f(ℓ) the criterion's value for a loss ℓ: see
        `functional.class_probabilities`. For ERM p is q. The class weights and the label smoothing of
        the base are undone, too; `weights=` of the call is not. Class weights w given there are undone by
        p / w, divided by the sum over classes.

        Args:
            logits: (n, C, …), as the criterion takes them; log-probabilities where the base is NLLLoss.
                Of any shape where it is BCEWithLogitsLoss: p is then the probability of a 1.

        Raises:
            ValueError: for a criterion whose p has no closed form, for a base that is not torch's
                cross-entropy, NLL or unweighted BCEWithLogitsLoss, and for a class weight of 0.

        Example:
            >>> from softadlib import SoftAD
            >>> SoftAD(theta=0.0).probabilities(torch.tensor([[0.75, 0.25]]).log())
            tensor([[0.8980, 0.1020]])
        """
        if not isinstance(logits, Tensor):
            raise UserError(f"logits must be a tensor, got {type(logits).__name__}")
        return self.base.probabilities(logits, self.gradient_weights)

    def extra_repr(self) -> str:
        shown = {name: getattr(self, name) for name in self.settings}
        if self.reduction != "mean":
            shown["reduction"] = self.reduction
        return ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value!r}"
            for name, value in shown.items()
        )


class Criterion(PerSampleCriterion):
    """A scalar criterion over per-sample losses. Subclasses write `reduce`.

    If `decomposes` is true, the values of equal parts average to the value of the whole batch. For
    unequal parts, and with weights, add up sums and divide by all weights. The mean of an empty batch
    is NaN, as torch's.

    Args:
        base: callable (input, target) → per-sample losses of any shape, each of which is a sample:
            each pixel, each token, each element for `nn.MSELoss` or `nn.BCEWithLogitsLoss`. Default:
            `nn.CrossEntropyLoss()`. A torch loss is copied with `reduction="none"`: settings that you
            change on it afterwards, such as `label_smoothing`, have no effect here.
        reduction: "mean" gives Σ w·f(ℓ)/Σ w, "sum" Σ w·f(ℓ), "none" w·f(ℓ) in the target's shape.
            The weights w are 0 for ignored targets, w_y for class weights, 1 otherwise.

    Raises:
        ValueError: for a base that cannot be called, that is a criterion of this library, that gives
            a single value, or that has parameters and reduces; for class weights together with label
            smoothing or class probabilities; for logits (B, T, K) beside classes (B, T); for another
            `reduction`, and for `weights` of another shape or below 0.

    `state_dict` holds θ and class weights. All other settings (σ, γ, β, t, radius, label smoothing)
    come from the constructor, as in torch's losses.
    """

    decomposes = True
    """Whether the values of parts of a batch add up to the value of the whole."""

    def forward(self, input: Tensor, target: Tensor, weights: Weights = None) -> Tensor:
        """Map (n, C) logits and (n,) targets to (), or whatever shapes `base` takes.

        `weights` in the shape of the per-sample losses, at least 0, say how much each sample counts,
        beside class weights and ignored targets: the mean is Σ w·f(ℓ)/Σ w. A target of weight 0 may be
        NaN.
        """
        return self._value(input, target, weights, self.reduction)

    def per_sample(self, input: Tensor, target: Tensor, weights: Weights = None) -> Tensor:
        """Return w·f(ℓ) in the shape of the per-sample losses, whatever `reduction` is.

        >>> from softadlib import Focal
        >>> Focal(gamma=2).per_sample(torch.zeros(2, 2), torch.tensor([0, 1]))  # ¼·ln 2 each
        tensor([0.1733, 0.1733])
        """
        return self._value(input, target, weights, "none")

    def _value(self, input: Tensor, target: Tensor, weights: Weights, reduction: str) -> Tensor:
        if reduction != "mean" and not self.decomposes:
            raise UserError(
                f"{type(self).__name__} has no value per sample: it is a function of the whole batch; "
                "SoftAD and IFlood have one"
            )
        losses, counts = self._losses(input, target, weights)
        if self._losses_hooks:
            self._notify(losses, counts, getattr(self, "theta", None))
        flat_counts = None if counts is None else counts.flatten()
        value = self.reduce(losses.flatten(), flat_counts, reduction)
        if not self.decomposes and not torch.compiler.is_compiling() and world_size() > 1:
            warn(
                f"{type(self).__name__} is a function of the whole batch, and {world_size()} processes "
                "take it of their parts; use AccumulatedFlooding, or functional over `gather_losses`",
                DistributionWarning,
            )
        return value.reshape(losses.shape) if reduction == "none" else value

    def reduce(self, losses: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
        """Reduce per-sample losses (n,) and how much each counts (n,) to (), or (n,) for "none"."""
        raise NotImplementedError

    def sample_weights(self, losses: Tensor, counts: Weights = None) -> Tensor:
        """Return n·∂value/∂ℓᵢ, in closed form or by autograd: 1 for ERM. (n,) → (n,)."""
        try:
            return self.gradient_weights(losses)
        except UserError:  # it has none
            leaf = losses.detach().requires_grad_()
        with torch.enable_grad():
            value = self.reduce(leaf, counts)
        (slope,) = torch.autograd.grad(value, leaf)
        if counts is None:
            return slope * len(losses)
        return torch.where(counts > 0, slope * counts.sum() / counts, 0)


class Thresholded(Criterion):
    """A criterion with one level θ for all samples, which may be assigned and is in `state_dict`."""

    settings: tuple[str, ...] = ("theta",)
    pointwise = False
    """Whether each loss is compared with θ on its own, so that a high θ can favour the wrong class."""

    def __init__(self, theta: float, *, base: Base | None = None, reduction: str = "mean"):
        super().__init__(base, reduction=reduction)
        self._warned: set[type[Warning]] = set()
        self._levels: Levels | None = None
        """Levels of smoothed or mixed targets, known from the first batch on."""
        self.theta = one_level(theta)  # a Parameter would be registered as one

    @property
    def theta(self) -> float:
        """The level, in the unit of the loss: nats for cross-entropy."""
        return self._theta

    @theta.setter
    def theta(self, value: float) -> None:
        self._theta = one_level(value)
        self._check_theta()

    def _warn_once(self, message: str, category: type[Warning]) -> None:
        if category not in self._warned:
            self._warned.add(category)
            warn(f"{type(self).__name__}(theta={self.theta:g}): {message}", category)

    def get_extra_state(self) -> Tensor:
        """Return θ, so that a checkpoint holds it; called by `state_dict`."""
        return torch.tensor(self.theta, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Set θ; called by `load_state_dict`."""
        self.theta = state.item()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        # A checkpoint of a network that had nn.CrossEntropyLoss() holds no θ: this one stays.
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *others)

    def _check_first_batch(self, input: Any, target: Any) -> None:
        super()._check_first_batch(input, target)
        self._levels = self.base.levels(input, target)
        self._check_theta()

    def _check_theta(self) -> None:
        """Warn once of a θ from which on a wrong class wins, and once of one that no loss falls below."""
        level = self.base.calibrated_below
        if self.pointwise and self.theta >= level:
            self._warn_once(
                f"from theta = {level:.4f} on (ln 2, less with weights inside a binary loss) the "
                "minimiser of cross-entropy predicts the wrong class; use a smaller theta",
                CalibrationWarning,
            )
        levels = self._levels
        if levels is None:
            return
        higher = levels.minimum + self.theta
        if self.pointwise and self.theta >= levels.calibrated_below:
            self._warn_once(
                f"from theta = {levels.calibrated_below:.4f} on the minimiser of smoothed cross-entropy "
                "may predict the wrong class; use a smaller theta",
                CalibrationWarning,
            )
        elif 0 < self.theta < levels.minimum:
            if higher < min(levels.calibrated_below, level):
                advice = f"try theta = {higher:.4f}, as far above that"
            else:
                advice = (
                    "a theta as far above that may predict the wrong class, so mix or smooth less"
                )
            self._warn_once(
                f"half of the targets are smoothed or mixed and have a loss of at least {levels.minimum:.4f}: "
                f"they never ascend; {advice}",
                InertWarning,
            )


def one_level(theta: Any) -> float:
    """Return θ as a float; `UserError` for anything else, with the way out for several levels."""
    if getattr(theta, "ndim", 0) or isinstance(theta, (list, tuple)):
        raise UserError(
            f"theta must be one number, got {theta!r:.60}; for a level per class use "
            "AdaFlood(levels)(logits, targets, targets)"
        )
    return real("theta", theta)
