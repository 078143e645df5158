"""Temperature scaling and the calibration error of a trained network, from its logits.

Guo et al. (2017). Arrays or tensors in, plain numbers out; nothing here is differentiated.
Logarithms are natural.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from softadlib._validation import UserError, real, warn, whole
from softadlib.functional.reduction import as_tensor

__all__ = ["expected_calibration_error", "fit_temperature"]
BOUNDS = (1e-3, 1e3)
"""1/T is sought between these."""
MANY = 20
"""From this many samples on, logits of several classes are not by chance all between 0 and 1."""
SIGMOIDS = "all logits lie between 0 and 1, as sigmoids do; pass the logits that sigmoid was given"


def fit_temperature(
    logits: ArrayLike | Tensor, targets: ArrayLike | Tensor, *, prior: float = 1.0
) -> float:
    r"""Return T that minimises Σ CE(logits/T, targets) + prior·(1/T − 1 + ln T).

    The second term is a Gamma prior on 1/T with its mode at T = 1, of the weight of `prior` nats.
    It keeps T near 1 where no sample is wrong and the likelihood alone would let T run to zero.
    Against n samples with mistakes it counts little. `prior=0` is maximum likelihood. The objective
    is convex in 1/T; 1/T is kept between 1e-3 and 1e3.

    T is that of the labels it is fitted on: noisy labels ask for less confidence, so that a T from them is
    too high for clean ones, and can make the loss there worse.

    Args:
        logits: (n, K), or (n, K, …) with the classes second, array or tensor; of two classes also one
            logit for each target. Of logits trained with `pos_weight` w subtract ln w first.
        targets: (n,), or (n, …): class indices; -100 does not count.
        prior: weight of the prior, in nats; at least 0.

    Returns:
        T > 0. Divide logits by it.

    Raises:
        ValueError: shapes that disagree, a list of batches, class names, NaN, one class alone, probabilities
            in place of logits.
        UserWarning: where all logits lie between 0 and 1, as sigmoids do.

    Example:
        >>> fit_temperature([[3.0, 0.0], [0.0, 3.0]], [0, 1], prior=0) < 0.01  # runs away
        True
        >>> round(fit_temperature([[3.0, 0.0], [0.0, 3.0]], [0, 1]), 2)
        0.84
    """
    z, y = columns(logits, targets)
    prior = real("prior", prior, low=0)
    if len(z) >= MANY and z[:, 0].any() and z.min() >= 0 and z.max() <= 1:
        warn(SIGMOIDS)
    return temperature_of(z, y, prior)


def temperature_of(z: Tensor, y: Tensor, prior: float) -> float:
    """Return the T of `fit_temperature` for logits (n, K) and class indices (n,), as `columns` gives them."""
    if y.min() == y.max():
        raise UserError(
            f"targets are all of class {y[0]}; a temperature needs two classes at least"
        )
    # Beyond 1e15 a square overflows float32, and no probability is left anyway.
    gap = (z - z.amax(1, keepdim=True)).clamp_min(-1e15)
    low, high = BOUNDS
    scale = 1.0
    for step in range(60):
        slope, curvature = _slopes(gap, y[:, None], scale)
        slope += prior * (1 - 1 / scale)
        curvature += prior * (1 / scale**2)
        if slope < 0:
            low = scale
        else:
            high = scale
        before = scale
        newton = scale - slope / curvature if curvature > 0 else math.nan
        # Newton is slow where the loss decays exponentially and may leave the bracket; bisect instead.
        inside = low < newton < high and step < 20
        scale = newton if inside else math.sqrt(low * high)
        if abs(scale - before) <= 1e-7 * scale:
            break
    return 1 / scale


def _slopes(gap: Tensor, y: Tensor, scale: float) -> tuple[float, float]:
    """Return the sums of E_p[z] − z_y and of Var_p[z], the derivatives of the loss in the scale of z."""
    p = torch.log_softmax(scale * gap, 1).exp()
    mean = (p * gap).sum(1, keepdim=True)
    spread = (p * (gap - mean) ** 2).sum(1)
    return float((mean - gap.gather(1, y)).double().sum()), float(spread.double().sum())


def expected_calibration_error(
    logits: ArrayLike | Tensor, targets: ArrayLike | Tensor, *, bins: int = 15
) -> float:
    r"""Return Σ_b |B_b|/n · |accuracy(B_b) − confidence(B_b)|, over bins of equal width of the confidence.

    The confidence of a sample is its largest probability; B_b holds those in ((b − 1)/bins, b/bins].
    Guo et al. (2017), with their 15 bins.

    Args:
        logits: as in `fit_temperature`.
        targets: as in `fit_temperature`.
        bins: number of bins; at least 1.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: shapes that disagree, no sample, NaN, probabilities in place of logits, `bins`
            below 1.

    Example:
        >>> round(expected_calibration_error([[3.0, 0.0], [0.0, 3.0]], [0, 0]), 3)
        0.453
    """
    z, y = columns(logits, targets)
    bins = whole("bins", bins, 1)
    confidence, predicted = z.double().softmax(1).max(1)
    hits = (predicted == y).double()
    # The sum over a bin of hit − confidence is its size times the difference of its means.
    inner = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    which = torch.bucketize(confidence, inner)
    sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, which, hits - confidence)
    return float(sums.abs().sum()) / len(y)


def columns(
    logits: ArrayLike | Tensor, targets: ArrayLike | Tensor, ignore_index: int = -100
) -> tuple[Tensor, Tensor]:
    """Return logits (n, K), of float32 or float64, and classes (n,) of the samples that count, on the CPU.

    One logit z for each target, of whatever shape, stands for the columns 0 and z. Logits (n, K, …) have
    their classes second. Targets equal to `ignore_index` do not count.

    Raises:
        ValueError: see `fit_temperature`.
    """
    z = _as_tensor("logits", logits)
    y = _as_tensor("targets", targets)
    shapes = f"logits {tuple(z.shape)} and targets {tuple(y.shape)}"
    if not (y == y.round()).all():
        raise UserError(f"targets must be class indices, got fractions, {y.dtype}")
    y = y.long()
    if not z.isfinite().all():
        raise UserError(f"logits hold NaN or infinity in {int((~z.isfinite()).sum())} places")
    if z.ndim >= 2 and z.shape == y.shape and z.shape[1] > 1 and (y.sum(1) == 1).all():
        raise UserError(f"{shapes}: targets are one-hot; give their classes, targets.argmax(1)")
    if z.shape == y.shape or z.shape == (*y.shape, 1):
        z = z.flatten()
        _check_probabilities(z)
        z = torch.stack([torch.zeros_like(z), z], 1)
    else:
        z = z.movedim(min(1, z.ndim - 1), -1)
        if z.shape[:-1] != y.shape or z.shape[-1] < 2:
            raise UserError(
                f"{shapes}: give one target per sample, (n, K) and (n,), (n, K, …) and (n, …), or (n,) both"
            )
        z = z.flatten(0, -2)
        _check_probabilities(z)
    y = y.flatten()
    z, y = z[y != ignore_index], y[y != ignore_index]
    if not len(y):
        raise UserError(f"{shapes} hold no sample that counts")
    if y.min() < 0 or y.max() >= z.shape[1]:
        raise UserError(
            f"targets run from {y.min()} to {y.max()}; they must lie in 0 to {z.shape[1] - 1}"
        )
    return z.float() if z.is_floating_point() and z.dtype != torch.float64 else z.double(), y


def _check_probabilities(z: Tensor) -> None:
    """Raise UserError for rows that sum to 1 or 100; warn of one logit that may be a sigmoid."""
    if not z.numel() or z.min() < 0:
        return
    rounding = torch.finfo(z.dtype).eps if z.is_floating_point() else 0.0
    z = z.double()
    sums = z.sum(1) if z.ndim > 1 else z
    # Rounding of a probability, to three digits or by its dtype, grows with the classes added up.
    tolerance = max(1e-3, 4 * rounding) * math.sqrt(z.shape[-1])
    if any((sums / whole - 1).abs().max() < tolerance for whole in (1, 100)):
        raise UserError(
            "logits are probabilities, rows that sum to 1 or 100; pass the logits that softmax was given, or "
            "the logarithms of the probabilities"
        )
    if z.ndim == 1 and z.max() <= 1:
        warn(SIGMOIDS)


def _as_tensor(name: str, values: ArrayLike | Tensor) -> Tensor:
    """Return `values` as a tensor on the CPU without gradient; UserError for a list of batches."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        return tensor.long() if tensor.dtype == torch.bool else tensor
    first: Any = values[0] if isinstance(values, (list, tuple)) and values else None
    if getattr(first, "ndim", 0):
        raise UserError(f"{name} are a list of batches; give torch.cat({name})")
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        wanted = "class indices" if name == "targets" else "numbers"
        raise UserError(f"{name} must be {wanted}, got {array.dtype}")
    return as_tensor(array.astype(int) if array.dtype.kind == "b" else array)
