"""Temperature scaling and the calibration error of a trained network, from its logits.

Guo et al. (2017). Arrays or tensors in, plain numbers out; nothing here is differentiated.
Logarithms are natural.
"""

import math

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from softadlib._validation import UserError, real, whole
from softadlib.functional.reduction import as_tensor

__all__ = ["expected_calibration_error", "fit_temperature"]
BOUNDS = (1e-3, 1e3)
"""1/T is sought between these."""


def fit_temperature(
    logits: ArrayLike | Tensor, targets: ArrayLike | Tensor, *, prior: float = 1.0
) -> float:
    r"""Return T that minimises Σ CE(logits/T, targets) + prior·(1/T − 1 + ln T).

    The second term is a Gamma prior on 1/T with its mode at T = 1, of the weight of `prior` nats.
    It keeps T near 1 where no sample is wrong and the likelihood alone would let T run to zero.
    Against n samples with mistakes it counts little. `prior=0` is maximum likelihood. The objective
    is convex in 1/T; 1/T is kept between 1e-3 and 1e3.

    Args:
        logits: (n, K), array or tensor.
        targets: (n,) class indices.
        prior: weight of the prior, in nats; at least 0.

    Returns:
        T > 0. Divide logits by it.

    Raises:
        ValueError: shapes that disagree, NaN, one class alone, probabilities in place of logits.

    Example:
        >>> fit_temperature([[3.0, 0.0], [0.0, 3.0]], [0, 1], prior=0) < 0.01  # runs away
        True
        >>> round(fit_temperature([[3.0, 0.0], [0.0, 3.0]], [0, 1]), 2)
        0.84
    """
    z, y = _check(logits, targets)
    if y.min() == y.max():
        raise UserError(
            f"targets are all of class {y[0]}; a temperature needs two classes at least"
        )
    prior = real("prior", prior, low=0)
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
        # Newton crawls where the loss falls exponentially, and may leave the bracket: halve that.
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
        logits: (n, K), array or tensor.
        targets: (n,) class indices.
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
    z, y = _check(logits, targets)
    bins = whole("bins", bins, 1)
    confidence, predicted = z.double().softmax(1).max(1)
    hits = (predicted == y).double()
    # The sum over a bin of hit − confidence is its size times the difference of its means.
    inner = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    which = torch.bucketize(confidence, inner)
    sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, which, hits - confidence)
    return float(sums.abs().sum()) / len(y)


def _check(logits: ArrayLike | Tensor, targets: ArrayLike | Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (n, K), of float32 or float64, and targets (n,) as tensors on the CPU."""
    z = _as_tensor(logits)
    y = _as_tensor(targets)
    if z.ndim != 2 or z.shape[1] < 2 or not len(z):
        raise UserError(
            f"logits must have shape (n, K), a column for each class, got {tuple(z.shape)}; "
            "for one logit z of two classes pass the columns 0 and z, for logits (n, K, …) pass "
            "logits.movedim(1, -1).flatten(0, -2) and targets.flatten()"
        )
    if y.shape != z.shape[:1] or y.is_floating_point():
        raise UserError(
            f"targets must be class indices of shape ({len(z)},), got {y.dtype} of shape {tuple(y.shape)}"
        )
    y = y.long()
    if y.min() < 0 or y.max() >= z.shape[1]:
        raise UserError(
            f"targets run from {y.min()} to {y.max()}; they must lie in 0 to {z.shape[1] - 1}"
        )
    if not z.isfinite().all():
        raise UserError(f"logits hold NaN or infinity in {int((~z.isfinite()).sum())} places")
    rounding = torch.finfo(z.dtype).eps if z.is_floating_point() else 0.0
    z = z.float() if z.is_floating_point() and z.dtype != torch.float64 else z.double()
    # Rounding of a probability, to three digits or by its dtype, grows with the classes added up.
    tolerance = max(1e-3, 4 * rounding) * math.sqrt(z.shape[1])
    if z.min() >= 0 and (z.sum(1) - 1).abs().max() < tolerance:
        raise UserError(
            "logits are probabilities, rows that sum to 1; pass the logits that softmax was given, or the "
            "logarithms of the probabilities"
        )
    return z, y


def _as_tensor(values: ArrayLike | Tensor) -> Tensor:
    """Return `values` as a tensor on the CPU without gradient."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    return as_tensor(np.asarray(values))
