"""AdaFlood: a criterion with a flood level for every sample."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softadlib import functional as F
from softadlib._validation import UserError
from softadlib.functional.reduction import Weights, as_tensor, is_hidden, kind_of
from softadlib.losses.base import Base
from softadlib.losses.criterion import Criterion


class AdaFlood(Criterion):
    """mean(θ_i + |ℓ_i − θ_i|): flooding with one level for each sample, found by the sample's index.

    With the classes as index, `AdaFlood(levels)(logits, targets, targets)`, it has a level per class.

    Args:
        theta: levels in nats, (N,): the i-th is sample i's, for every sample of the data set.
            `functional.flood_levels` makes them of the losses of auxiliary models.
        base: per-sample loss, see `Criterion`. Default: `nn.CrossEntropyLoss()`.
        reduction: "mean", "sum" or "none", of the weighted values.

    Shape:
        input (n, C), target (n,), index (n,) of whole numbers → ().

    Raises:
        ValueError: for levels that are no finite vector, for bad indices, and as `Criterion`.
        IndexError: for an index without a level, even that of an ignored target.

    Bae et al. (2024).

    Example:
        >>> import torch
        >>> criterion = AdaFlood([0.1, 0.2, 0.4])
        >>> criterion(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([2, 0]))
        tensor(0.6931)
    """

    theta: Tensor

    def __init__(
        self,
        theta: Tensor | np.ndarray | list[float],
        *,
        base: Base | None = None,
        reduction: str = "mean",
    ):
        super().__init__(base, reduction=reduction)
        self.register_buffer("theta", _levels(theta))

    def forward(  # type: ignore[override]
        self, input: Any, target: Any, index: Tensor, sample_weight: Weights = None
    ) -> Tensor:
        """Map logits, targets and the samples' indices (n,), in whatever order, to ()."""
        return self._value_at(input, target, index, sample_weight, self.reduction)

    def per_sample(  # type: ignore[override]
        self, input: Any, target: Any, index: Tensor, sample_weight: Weights = None
    ) -> Tensor:
        """Return w·(θ_i + |ℓ_i − θ_i|) in the shape of the per-sample losses."""
        return self._value_at(input, target, index, sample_weight, "none")

    def derivative(self, losses: Tensor) -> Tensor:
        raise UserError(
            "AdaFlood has no class probabilities in closed form: each training sample has its own level, "
            "and a new sample has none; with a level use IFlood(theta).probabilities(logits)"
        )

    def _value_at(
        self, input: Any, target: Any, index: Tensor, sample_weight: Weights, reduction: str
    ) -> Tensor:
        losses, weights = self._losses(input, target, sample_weight)
        levels = self._levels_of(index, losses)
        if self._losses_hooks:
            self._notify(losses, weights, levels.flatten())
        return F.adaflood(losses, levels, sample_weight=weights, reduction=reduction)

    def _levels_of(self, index: Tensor, losses: Tensor) -> Tensor:
        """Return the level of each loss, in float32 at least."""
        is_whole = isinstance(index, Tensor) and not index.is_floating_point()
        if not is_whole or index.dtype == torch.bool or index.shape != losses.shape:
            raise UserError(
                f"index must be a tensor of whole numbers of shape {tuple(losses.shape)}, one per loss, "
                f"got {kind_of(index)}"
            )
        index = index.to(self.theta.device, torch.int64)
        samples = len(self.theta)
        missing = (index < 0) | (index >= samples)
        if not is_hidden(index) and missing.any():
            raise IndexError(
                f"index {index[missing][0].item()} has no flood level; {samples} samples have one"
            )
        # Where nothing can be looked at, torch refuses the index `samples`; it would count -1 from the end.
        index = torch.where(missing, samples, index)
        dtype = torch.promote_types(losses.dtype, torch.float32)
        return self.theta[index].to(losses.device, dtype)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"{len(self.theta)} levels", super().extra_repr()]))


def _levels(theta: Any) -> Tensor:
    """Return levels (N,) of the caller's dtype; `UserError` for what cannot be levels by position."""
    wanted = "theta must be a vector of finite floats, the level of sample i at position i"
    if not isinstance(theta, (Tensor, np.ndarray, list, tuple)):
        # A dict or a pandas.Series has its levels by key, and not by position.
        raise UserError(f"{wanted}, got {kind_of(theta)}")
    levels = as_tensor(theta)
    if not levels.is_floating_point() or levels.ndim != 1 or not len(levels):
        raise UserError(f"{wanted}, got {kind_of(levels)}")
    if not levels.isfinite().all():
        raise UserError(f"{wanted}, got {levels[~levels.isfinite()][0].item()}")
    return levels.detach().clone()
