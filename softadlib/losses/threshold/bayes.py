"""How small an error or a cross-entropy can get on data: the Bayes error β*, the Bayes risk R*.

Arrays or tensors in, float64 numbers out; nothing here is differentiated. Logarithms are natural.
"""

import math
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from softadlib.functional import LN2

Values = ArrayLike | Tensor
"""What `array` makes an array of."""


class Interval(NamedTuple):
    """An estimate and the interval that holds the truth with probability 1 − δ."""

    value: float
    low: float
    high: float


def array(name: str, values: Values | None) -> np.ndarray:
    """`values` as a numpy array on the CPU, floats as float64; ValueError for NaN and infinity."""
    if values is None:
        raise ValueError(f"{name} are missing")
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    found = np.asarray(values)
    if found.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers, got {found.dtype}")
    if found.dtype.kind == "f":
        found = found.astype(np.float64)
        bad = ~np.isfinite(found)
        if bad.any():
            first = ", ".join(map(str, np.argwhere(bad)[0]))
            raise ValueError(
                f"{name} hold NaN or infinity in {bad.sum()} places, first at [{first}]"
            )
    return found


def class_indices(targets: Values, n: int, classes: int) -> np.ndarray:
    """`targets` as (n,) integers in 0 … classes−1; ValueError otherwise."""
    y = array("targets", targets)
    if y.shape != (n,):
        raise ValueError(f"targets must have shape ({n},), one per sample, got {y.shape}")
    if y.dtype.kind not in "iu":
        raise ValueError(f"targets must be class indices, whole numbers, got {y.dtype}")
    if not 0 <= y.min() <= y.max() < classes:
        raise ValueError(
            f"targets run from {y.min()} to {y.max()}; they must lie in 0 to {classes - 1}"
        )
    return y


def between(name: str, value: float, low: float, high: float, open_ends: str = "") -> float:
    """`value` as a float; ValueError outside [low, high], `open_ends` ⊂ "lh" leaves ends out."""
    plain = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    inside = plain and low <= value <= high
    if not inside or ("l" in open_ends and value == low) or ("h" in open_ends and value == high):
        least = "above" if "l" in open_ends else "at least"
        most = "below" if "h" in open_ends else "at most"
        raise ValueError(f"{name} must be {least} {low:g} and {most} {high:g}, got {value!r}")
    return float(value)


@overload
def psi(t: float) -> float: ...
@overload
def psi(t: np.ndarray) -> np.ndarray: ...
def psi(t: float | np.ndarray) -> float | np.ndarray:
    """ψ(t) = ½[(1+t)ln(1+t) + (1−t)ln(1−t)], elementwise on [−1, 1].

    ψ(err − err*) ≤ R − R* for cross-entropy with any number of classes, and, where no margin is
    below m, err − err* ≤ (m/ψ(m))·(R − R*). ψ(1) = ln 2, ψ(t) ≥ t²/2. Bartlett et al. (2006).
    """
    t = np.asarray(t, dtype=np.float64)
    if not (np.abs(t) <= 1).all():
        raise ValueError("psi takes numbers from -1 to 1")
    # ln(1−0) is never asked for; log1p keeps small t exact
    parts = [(1 + s) * np.log1p(np.where(s > -1, s, 0)) for s in (t, -t)]
    return ((parts[0] + parts[1]) / 2)[()]


@overload
def entropy(p: float) -> float: ...
@overload
def entropy(p: np.ndarray) -> np.ndarray: ...
def entropy(p: float | np.ndarray) -> float | np.ndarray:
    """h(p) = −p ln p − (1−p) ln(1−p) in nats, elementwise; 0 at 0 and 1."""
    p = np.asarray(p, dtype=np.float64)
    out = [np.where(q > 0, -q * np.log(np.where(q > 0, q, 1)), 0) for q in (p, 1 - p)]
    return (out[0] + out[1])[()]


def risk_bracket(beta: float, classes: int = 2) -> tuple[float, float]:
    """2β ln 2 ≤ R* ≤ h(β) + β ln(K−1): the Bayes risk in nats, from the Bayes error.

    Below: entropy is at least 2 ln 2 times the error, with equality where every sample is either
    certain or a coin between two classes. Above: Fano. Raises ValueError unless 0 ≤ β ≤ 1 − 1/K.
    """
    beta = between("beta", beta, 0, 1 - 1 / classes)
    return 2 * LN2 * beta, flip_risk(beta, classes)


def flip_risk(flip_rate: float, classes: int = 2) -> float:
    """h(q) + q ln(K−1), the least R* in nats where labels flip evenly to the others at rate q.

    R* is exactly this where the clean label is a function of the input. Raises ValueError unless
    0 ≤ q ≤ 1 − 1/K, beyond which the flipped label is the likelier one.
    """
    q = between("flip_rate", flip_rate, 0, 1 - 1 / classes)
    return float(entropy(q)) + (q * math.log(classes - 1) if classes > 2 else 0.0)


def neighbour_bayes(error: float, classes: int = 2) -> float:
    """β = (K−1)/K·(1 − √(1 − K·err/(K−1))): the least Bayes error for a nearest-neighbour error.

    The inverse of err ≤ β(2 − Kβ/(K−1)), Cover & Hart (1967), so err/2 ≤ β ≤ err. Errors from
    (K−1)/K, those of guessing, give (K−1)/K.
    """
    most = (classes - 1) / classes
    return most * (1 - math.sqrt(max(0.0, 1 - between("error", error, 0, 1) / most)))


def _soft_labels(soft: Values) -> np.ndarray:
    c = array("soft labels", soft).astype(np.float64)
    if c.ndim not in (1, 2) or not c.size or (c.ndim == 2 and c.shape[1] < 2):
        raise ValueError(
            f"soft labels must have shape (n, K) or (n,) for class 1 of two, got {c.shape}"
        )
    if c.min() < 0 or c.max() > 1:
        raise ValueError(f"soft labels run from {c.min():g} to {c.max():g}; they are probabilities")
    if c.ndim == 1:
        return np.stack([1 - c, c], 1)
    off = np.abs(c.sum(1) - 1)
    if off.max() > 1e-3:
        row = off.argmax()
        raise ValueError(
            f"soft labels must sum to one in every row; row {row} sums to {c[row].sum():g}"
        )
    return c


def bayes_error(soft: Values, targets: Values | None = None, *, delta: float = 0.05) -> Interval:
    """β̂ = 1 − mean max_k c_k with Hoeffding's interval, from soft labels c of shape (n, K).

    (n,) is the probability of class 1 of two, and β̂ = mean min(c, 1−c). With hard `targets` (n,)
    two-class soft labels are first calibrated on them by `isotonic`, whose own error the interval
    leaves out. An average of m votes is biased low. ± (1−1/K)·√(ln(2/δ)/2n). Raises ValueError for
    what is no probability. Ishida et al. (2023); calibration: Ushio et al. (2025).
    """
    c = _soft_labels(soft)
    n, classes = c.shape
    if targets is not None:
        y = class_indices(targets, n, classes)
        if classes != 2:
            raise ValueError(f"calibration on hard labels takes two classes, got {classes}")
        c = _soft_labels(isotonic(c[:, 1], y))
    reach = 1 - 1 / classes
    return _hoeffding(1 - c.max(1).mean(), reach, reach, n, delta)


def bayes_error_positive(confidence: Values, prior: float, *, delta: float = 0.05) -> Interval:
    """β̂ = π(1 − mean max(0, 2 − 1/c)) from the confidences c = P(+ | x) of positive samples alone.

    `confidence` (n,) in (0, 1], `prior` π = P(+). Raises ValueError outside. Ishida et al. (2023).
    """
    c = array("confidence", confidence).astype(np.float64)
    if c.ndim != 1 or not c.size or c.min() <= 0 or c.max() > 1:
        raise ValueError("confidence must be (n,) numbers above 0 and at most 1")
    prior = between("prior", prior, 0, 1)
    value = prior * (1 - np.maximum(0, 2 - 1 / c).mean())
    return _hoeffding(value, prior, min(prior, 0.5), len(c), delta)


def _hoeffding(value: float, spread: float, most: float, n: int, delta: float) -> Interval:
    half = spread * math.sqrt(math.log(2 / between("delta", delta, 0, 1, "lh")) / (2 * n))
    value = float(np.clip(value, 0, most))
    return Interval(value, max(0.0, value - half), min(most, value + half))


def isotonic(scores: Values, targets: Values) -> np.ndarray:
    """The least-squares increasing function of `scores` to `targets` 0 and 1, at the scores, (n,).

    Pool adjacent violators; equal scores get equal values.
    """
    scores = array("scores", scores)
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"scores must have shape (n,), got {scores.shape}")
    y = class_indices(targets, len(scores), 2)
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    blocks: list[list[float]] = []  # [sum, samples, distinct scores]
    for total, count in zip(np.bincount(place, y), counts):
        blocks.append([total, count, 1])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last)]
    fitted = np.repeat([s / m for s, m, _ in blocks], [int(d) for *_, d in blocks])
    return fitted[place]
