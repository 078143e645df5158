"""Base losses: one value per sample, and how much each sample counts."""

import copy
import warnings
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

Base = Callable[[Tensor, Tensor], Tensor]
CLASSIFICATION = (nn.CrossEntropyLoss, nn.NLLLoss)
HALF = (torch.float16, torch.bfloat16)


class DistributionWarning(UserWarning):
    """The criterion is a function of the whole batch, and this process sees a part of it.

    Given by Flooding, CVaR, ChiSquareDRO and Tilted in a process group of several processes.
    """


def per_sample(base: Base | None) -> Base:
    """The base with `reduction="none"`: cross-entropy for None, a copy where it reduced."""
    base = nn.CrossEntropyLoss(reduction="none") if base is None else base
    if not callable(base) or isinstance(base, type):
        raise ValueError(f"base must be a callable (input, target) → losses, got {base!r}")
    if getattr(base, "reduction", "none") != "none":
        copied: Any = copy.deepcopy(base)  # a shallow copy would share the user's buffers
        copied.reduction = "none"
        return copied
    return base


def classifies(base: Base) -> TypeGuard[nn.CrossEntropyLoss | nn.NLLLoss]:
    """Whether `base` is torch's own cross-entropy or NLL, whose options are known here."""
    return any(getattr(type(base), "forward", None) is known.forward for known in CLASSIFICATION)


def samples(base: Base, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
    """Per-sample losses in the shape of the target, and their weights, None where all count 1.

    Of cross-entropy and NLL: a target of `ignore_index` weighs 0, so it is no sample at all; with
    `weight=` a sample weighs w_y, or Σ_c w_c p_c for class probabilities, and its loss is without
    the weight, in nats as θ is. Every torch loss of half-precision input is computed in float32.
    Of another callable that has an `ignore_index`, so do not targets equal to it, where there is one
    loss for each target. What any other callable gives counts as it stands, 0 for what it ignored.
    ValueError for a single value.
    """
    if isinstance(base, nn.modules.loss._Loss):
        input, target = (v.float() if v.dtype in HALF else v for v in (input, target))
    if not classifies(base):
        losses = base(input, target)
        if not isinstance(losses, Tensor) or losses.ndim == 0:
            raise ValueError(
                f"base {base!r} must give one loss per sample, shape (n,); "
                "it gave a single value: use reduction='none'"
            )
        ignored = getattr(base, "ignore_index", None)
        if not isinstance(ignored, int) or target.is_floating_point():
            return losses, None
        return losses, target != ignored if losses.shape == target.shape else None
    ignored = base.ignore_index
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
        if base.weight is None:
            return losses, None
        weight = base.weight.to(losses.dtype)
        return losses, torch.movedim(target, min(1, target.ndim - 1), -1) @ weight
    if base.weight is None and _all_count(target, ignored):
        return losses, None
    counted = target != ignored
    if base.weight is None:
        return losses, counted
    weight = base.weight.to(losses.dtype)
    return losses, weight[torch.where(counted, target, 0)] * counted


def _all_count(target: Tensor, ignored: int) -> bool:
    """Whether no target is ignored, where a look at them costs less than weights do: on a CPU."""
    if ignored >= 0 or target.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    try:
        return target.numel() > 0 and target.amin().item() >= 0
    except RuntimeError:  # under `vmap` there is no one value to look at
        return False


def warn_if_distributed(name: str, instead: str) -> None:
    """`DistributionWarning` where a process group of several processes is running."""
    group = torch.distributed
    if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        warnings.warn(
            f"{name} is a function of the whole batch, and each of {group.get_world_size()} "
            f"processes takes it of its own part; {instead}",
            DistributionWarning,
            stacklevel=6,  # past the two frames in which a module calls `forward`
        )
