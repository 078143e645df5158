"""AdaFlood: a criterion with a flood level for every sample."""

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from softadlib import functional as F
from softadlib._validation import UserError
from softadlib.losses.base import Base, OverBase, per_sample_losses


class AdaFlood(OverBase):
    """mean(θ_i + |ℓ_i − θ_i|): flooding with a level of its own for every sample, by its index.

    Args:
        theta: levels in nats: a vector whose i-th entry is sample i's, or a mapping index → level,
            a pandas Series among them.
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
        >>> criterion = AdaFlood({7: 0.1, 3: 0.4})
        >>> criterion(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([3, 7]))
        tensor(0.6931)
    """

    ids: Tensor
    theta: Tensor

    if TYPE_CHECKING:

        def __call__(self, input: Tensor, target: Tensor, index: Tensor) -> Tensor: ...

    def __init__(
        self,
        theta: Tensor | np.ndarray | Mapping[int, float],
        *,
        base: Base | None = None,
        reduction: str = "mean",
    ):
        super().__init__(base, reduction=reduction)
        ids, levels = _levels_by_index(theta)
        self.register_buffer("ids", ids)
        self.register_buffer("theta", levels)

    def forward(self, input: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """Map logits, targets and the samples' indices (n,), in whatever order, to ()."""
        losses, weights = per_sample_losses(self.base, input, target)
        if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
            kind = index.dtype if isinstance(index, Tensor) else type(index).__name__
            raise UserError(f"index must be a tensor of whole numbers, one per sample, got {kind}")
        if index.shape != losses.shape:
            raise UserError(
                f"index must have shape {tuple(losses.shape)}, one per loss, got {tuple(index.shape)}"
            )
        index = index.to(self.ids)
        position = torch.searchsorted(self.ids, index).clamp(max=len(self.ids) - 1)
        has_level = self.ids[position] == index
        if torch.compiler.is_compiling():
            torch._assert_async(has_level.all(), "an index has no flood level")
        elif len(missing := index[~has_level]):
            raise IndexError(
                f"index {missing[0].item()} has no flood level; {len(self.ids)} samples have one"
            )
        dtype = torch.promote_types(losses.dtype, torch.float32)
        levels = self.theta[position].to(losses.device, dtype)
        return F.adaflood(losses, levels, weights=weights, reduction=self.reduction)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"{len(self.ids)} levels", super().extra_repr()]))


def _levels_by_index(theta: Tensor | np.ndarray | Mapping[int, float]) -> tuple[Tensor, Tensor]:
    """Return indices (N,), ascending, and their levels (N,); `UserError` for what cannot be levels."""
    wanted = "theta must be a vector of finite levels or a mapping from index to level"
    try:
        if hasattr(theta, "keys"):  # a pandas Series maps its index to levels, too
            keys = sorted(theta.keys())
            levels, ids = torch.as_tensor([float(theta[i]) for i in keys]), torch.as_tensor(keys)
        else:
            dense = np.ascontiguousarray(theta) if isinstance(theta, np.ndarray) else theta
            levels = torch.as_tensor(dense)  # of an array without negative strides
            ids = torch.arange(len(levels))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{wanted}, got {reprlib.repr(theta)}") from error
    if not levels.is_floating_point() or levels.ndim != 1 or not len(levels):
        raise UserError(f"{wanted}, got {levels.dtype} of shape {tuple(levels.shape)}")
    if ids.dtype != torch.int64:
        raise UserError(f"{wanted}, got indices of {ids.dtype}")
    if not levels.isfinite().all():
        raise UserError(f"{wanted}, got {levels[~levels.isfinite()][0].item()}")
    return ids, levels.detach().clone()
