"""Temperature scaling: one number that divides the logits of a trained network.

Guo et al. (2017). Arrays or tensors in, plain numbers out; nothing here is differentiated.
Logarithms are natural. Large inputs are read in chunks of rows, in their own precision.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from softadlib._validation import real, whole
from softadlib.losses.threshold.bayes import Values, as_tensor, class_indices

BOUNDS = (1e-3, 1e3)
"""1/T is sought between these."""
CHUNK = 1 << 21
"""Logits that are read at a time."""


class Calibration(NamedTuple):
    """What temperature scaling does to a network, on the samples it was fitted on."""

    temperature: float
    before: float
    """Mean cross-entropy in nats of the logits as they are."""
    after: float
    """Mean cross-entropy in nats of the scaled logits, leave-one-out."""
    error: float
    """Standard error of `after`."""
    gain_error: float
    """Standard error of `before` − `after`."""
    at_bound: bool
    """Whether the fit ran away, to `BOUNDS` or to where the loss no longer changes."""


class _Moments(NamedTuple):
    """Per sample, (n,): the loss ℓ at logits s·z, and its first two derivatives in s."""

    loss: Tensor
    slope: Tensor
    curvature: Tensor


def check_validation(logits: Values, targets: Values) -> tuple[Tensor, Tensor]:
    """Return logits (n, K) and targets (n,) as tensors on the CPU, of float32 or float64.

    Raises ValueError in one line for what cannot be used, as probabilities in place of logits.
    """
    z = _as_logits(logits)
    if len(z) < 2:
        raise ValueError(f"logits of {len(z)} validation samples; at least 2 are needed")
    y = class_indices(targets, *z.shape)
    if y.min() == y.max():
        raise ValueError(f"targets are all of class {y[0]}; validation needs two classes at least")
    # rounding of a probability grows with the classes that were added up
    tolerance = 4 * _precision(logits) * math.sqrt(z.shape[1])
    if z.min() >= 0 and (z.sum(1) - 1).abs().max() < tolerance:
        raise ValueError(
            "logits are probabilities, rows that sum to one; pass the logits that softmax was given"
        )
    return z, y


def _as_logits(logits: Values) -> Tensor:
    """Return logits (n, K), K ≥ 2, as floats on the CPU; ValueError for another shape."""
    z = as_tensor("logits", logits)
    if z.ndim != 2 or z.shape[1] < 2:
        raise ValueError(
            f"logits must have shape (n, K), a column for each class, got {tuple(z.shape)}; "
            "for one logit z of two classes pass the columns 0 and z"
        )
    return z if z.is_floating_point() else z.double()


def _precision(values: Values) -> float:
    """Return the spacing of numbers near one in the caller's dtype, at least that of float32."""
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    half = str(dtype) == "float16"
    return torch.finfo(torch.float16 if half else torch.float32).eps


def fit_temperature(logits: Values, targets: Values, *, prior: float = 1.0) -> float:
    r"""Return T that minimises Σ CE(logits/T, targets) + prior·(1/T − 1 + ln T).

    The second term is a Gamma prior on 1/T with its mode at T = 1, of the weight of `prior` nats.
    It keeps T near 1 where the samples say nothing, as where none of them is wrong and the
    likelihood alone would let T run to zero. Against n samples with mistakes it counts little.
    `prior=0` is maximum likelihood. The objective is convex in 1/T; 1/T is kept in `BOUNDS`.

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
    return calibrate(*check_validation(logits, targets), prior=prior).temperature


def calibrate(z: Tensor, y: Tensor, *, prior: float = 1.0) -> Calibration:
    """Fit T to checked logits z (n, K) and targets y (n,); the losses before and after.

    `after` leaves every sample out of its own fit by one Newton step from the common one: with
    slopes g_i and curvatures h_i in 1/T, and H their sum with the prior's, 1/T moves by g_i/(H − h_i).
    """
    prior = real("prior", prior, low=0)
    low, high = BOUNDS
    scale, first = 1.0, _moments(z, y, 1.0)
    at, total = first, 0.0
    for step in range(60):
        slope = float(at.slope.sum()) + prior * (1 - 1 / scale)
        total = float(at.curvature.sum()) + prior / scale**2
        low, high = (scale, high) if slope < 0 else (low, scale)
        newton = scale - slope / total if total > 0 else math.nan
        before = scale
        # Newton crawls where the loss falls exponentially, and may leave the bracket: halve that
        inside = low < newton < high and step < 20
        scale = newton if inside else math.sqrt(low * high)
        at = _moments(z, y, scale)
        if abs(scale - before) <= 1e-7 * scale:
            break
    # a loss without curvature is minimal nowhere, as where no sample is wrong and prior is 0
    at_bound = total < 1e-12 or not 1.001 * BOUNDS[0] < scale < 0.999 * BOUNDS[1]
    rest = (total - at.curvature).clamp_min(1e-12)
    moved = (at.slope / rest).clamp(-0.5 * scale, 0.5 * scale)
    after = at.loss + at.slope * moved + at.curvature * moved**2 / 2
    error, gain_error = (
        float(values.std()) / math.sqrt(len(y)) for values in (after, first.loss - after)
    )
    return Calibration(
        1 / scale, float(first.loss.mean()), float(after.mean()), error, gain_error, at_bound
    )


def _moments(z: Tensor, y: Tensor, scale: float) -> _Moments:
    """Return ℓ = lse(s·z) − s·z_y, its slope E_p[z] − z_y and its curvature Var_p[z], in float64."""
    parts = []
    for gap, target in _centred(z, y):
        logp = torch.log_softmax(scale * gap, 1)
        p = logp.exp()
        mean = (p * gap).sum(1, keepdim=True)
        spread = (p * (gap - mean) ** 2).sum(1)
        loss = -logp.gather(1, target)[:, 0]
        parts.append((loss, (mean - gap.gather(1, target))[:, 0], spread))
    return _Moments(*(torch.cat(part).double() for part in zip(*parts)))


def _centred(z: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield chunks of the logits less each row's largest, and their targets as columns."""
    for logits, targets in zip(torch.split(z, _rows(z)), torch.split(y, _rows(z))):
        # beyond 1e15 a square overflows float32, and no probability is left anyway
        yield (logits - logits.amax(1, keepdim=True)).clamp_min(-1e15), targets[:, None]


def _rows(z: Tensor) -> int:
    """Return how many rows of z make a chunk."""
    return max(1, CHUNK // z.shape[1])


def expected_calibration_error(logits: Values, targets: Values, *, bins: int = 15) -> float:
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
        ValueError: shapes that disagree, no sample, NaN, `bins` below 1.

    Example:
        >>> round(expected_calibration_error([[3.0, 0.0], [0.0, 3.0]], [0, 0]), 3)
        0.453
    """
    z = _as_logits(logits)
    if not len(z):
        raise ValueError("logits of 0 samples; at least 1 is needed")
    y = class_indices(targets, *z.shape)
    bins = whole("bins", bins, 1)
    confidence, predicted = z.double().softmax(1).max(1)
    hits = (predicted == y).double()
    # the sum over a bin of hit − confidence is its size times the difference of its means
    inner = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    which = torch.bucketize(confidence, inner)
    sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, which, hits - confidence)
    return float(sums.abs().sum()) / len(y)


def scaled(z: Tensor, temperature: float) -> tuple[Tensor, float]:
    """Return the largest probability of each row at z/T, (n,) float64, and the mean entropy in nats."""
    top, entropy = [], 0.0
    for logits in torch.split(z, _rows(z)):
        logp = torch.log_softmax(logits / temperature, 1)
        p = logp.exp()
        top.append(p.amax(1).double())
        entropy -= float((p * logp).sum(dtype=torch.float64))
    return torch.cat(top), entropy / len(z)
