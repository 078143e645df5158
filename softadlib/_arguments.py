"""The arguments of criteria and optimizers, checked: numbers, and levels by index."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def number(
    name: str,
    value: float,
    *,
    positive: bool = False,
    low: float = -math.inf,
    below: float = math.inf,
) -> float:
    """`value` as a float; ValueError unless it is a plain finite number within the bounds."""
    try:
        number = math.nan if isinstance(value, Tensor) and value.requires_grad else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if (
        isinstance(value, (bool, np.bool_, str))
        or not math.isfinite(number)
        or (positive and number <= 0)
    ):
        wanted = "a positive number" if positive else "a finite number"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    if not low <= number < below:
        wanted = f"at least {low:g}" + (f" and below {below:g}" if below < math.inf else "")
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    return number


def levels(theta: Tensor | np.ndarray | Mapping[int, float]) -> tuple[Tensor, Tensor]:
    """Indices (N,), ascending, and their levels (N,); ValueError for what cannot be levels."""
    wanted = "theta must be a vector of finite levels or a mapping from index to level"
    try:
        keys = sorted(theta) if isinstance(theta, Mapping) else None
        found = torch.as_tensor(theta if keys is None else [float(theta[i]) for i in keys])
        ids = torch.as_tensor(range(len(found)) if keys is None else keys)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{wanted}, got {theta!r}") from error
    if not found.is_floating_point() or found.ndim != 1 or not len(found):
        raise ValueError(f"{wanted}, got {found.dtype} of shape {tuple(found.shape)}")
    if ids.dtype != torch.int64:
        raise ValueError(f"{wanted}, got indices of {ids.dtype}")
    if not found.isfinite().all():
        raise ValueError(f"{wanted}, got {found[~found.isfinite()][0].item()}")
    return ids, found.detach().clone()
