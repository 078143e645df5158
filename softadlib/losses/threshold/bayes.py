"""How small an error can get on data whose soft labels are known: the Bayes error β*.

Also the checks that the modules beside it share. Arrays or tensors in, plain numbers out.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from softadlib._validation import real

Values = ArrayLike | Tensor
"""What `as_tensor` makes a tensor of."""


class Interval(NamedTuple):
    """An estimate and the interval that holds the truth with probability 1 − δ."""

    value: float
    low: float
    high: float


def as_tensor(name: str, values: Values | None) -> Tensor:
    """Return `values` as a tensor on the CPU without gradient; ValueError for NaN, infinity and no numbers.

    Half precision becomes float32, lists of floats float64; other dtypes stay.
    """
    if values is None:
        raise ValueError(f"{name} are missing")
    if not isinstance(values, Tensor):
        try:
            array = np.asarray(values)
        except (RuntimeError, TypeError) as error:  # a list of tensors with gradients
            raise ValueError(f"{name} must be one array or tensor of numbers ({error})") from None
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise ValueError(f"{name} must be numbers of at most 64 bits, got {array.dtype}")
        # torch has few unsigned types; negative strides and read-only memory are no tensor's
        wide = array.dtype.kind == "u" and array.dtype.itemsize > 1
        values = torch.from_numpy(np.array(array, dtype=np.int64 if wide else None))
    if values.is_complex() or values.layout is not torch.strided:
        raise ValueError(f"{name} must be dense real numbers, got {values.dtype}, {values.layout}")
    values = values.detach().cpu()
    if not values.is_floating_point():
        return values
    finite = torch.isfinite(values)
    if not finite.all():
        first = ", ".join(map(str, (~finite).nonzero()[0].tolist()))
        raise ValueError(
            f"{name} hold NaN or infinity in {int((~finite).sum())} places, first at [{first}]"
        )
    return values if values.dtype == torch.float64 else values.float()


def class_indices(targets: Values | None, n: int, classes: int) -> Tensor:
    """Return `targets` as (n,) integers in 0 … classes−1; ValueError otherwise."""
    y = as_tensor("targets", targets)
    if y.shape != (n,):
        raise ValueError(f"targets must have shape ({n},), one per sample, got {tuple(y.shape)}")
    if y.is_floating_point() or y.dtype == torch.bool:
        kind = str(y.dtype).removeprefix("torch.")
        raise ValueError(f"targets must be class indices, whole numbers, got {kind}")
    low, high = int(y.min()), int(y.max())
    if not 0 <= low <= high < classes:
        raise ValueError(f"targets run from {low} to {high}; they must lie in 0 to {classes - 1}")
    return y.long()


def bayes_error(soft: Values, *, delta: float = 0.05) -> Interval:
    r"""Return β̂ = 1 − mean max_k c_k with Hoeffding's interval, from soft labels c.

    An average of m votes is biased low. Ishida et al. (2023).

    Args:
        soft: (n, K) rows of probabilities, or (n,) probabilities of class 1 of two.
        delta: the interval is ± (1 − 1/K)·√(ln(2/δ)/2n).

    Raises:
        ValueError: what is no probability, rows that do not sum to one.

    Example:
        >>> round(bayes_error([0.1, 0.6, 1.0, 0.5]).value, 3)
        0.25
    """
    c = _soft_labels(soft)
    n, classes = c.shape
    most = 1 - 1 / classes
    delta = real("delta", delta, above=0, below=1)
    half = most * math.sqrt(math.log(2 / delta) / (2 * n))
    value = min(most, max(0.0, float(1 - c.amax(1).mean())))
    return Interval(value, max(0.0, value - half), min(most, value + half))


def _soft_labels(soft: Values) -> Tensor:
    """Return soft labels as (n, K) rows that sum to one, in float64; ValueError for anything else."""
    c = as_tensor("soft labels", soft).double()
    if c.ndim not in (1, 2) or not c.numel() or (c.ndim == 2 and c.shape[1] < 2):
        raise ValueError(
            f"soft labels must have shape (n, K) or (n,) for class 1 of two, got {tuple(c.shape)}"
        )
    if c.min() < 0 or c.max() > 1:
        raise ValueError(f"soft labels run from {c.min():g} to {c.max():g}; they are probabilities")
    if c.ndim == 1:
        return torch.stack([1 - c, c], 1)
    off = (c.sum(1) - 1).abs()
    if off.max() > 1e-3:
        row = int(off.argmax())
        raise ValueError(
            f"soft labels must sum to one in every row; row {row} sums to {c[row].sum():g}"
        )
    return c
