"""What a network's validation logits say once they are calibrated, and what SoftAD would make of them.

Arrays or tensors in, float64 numbers out; nothing here is differentiated.
"""

import math

import numpy as np

from softadlib.functional import LN2
from softadlib.losses.threshold.bayes import Values, array, between, class_indices

SCALES = (0.05, 50.0)
"""1/T is sought between these."""


def logsumexp(z: np.ndarray) -> np.ndarray:
    """ln Σ exp, (…, K) → (…)."""
    top = z.max(-1)
    return top + np.log(np.exp(z - top[..., None]).sum(-1))


def cross_entropy_at(z: np.ndarray, y: np.ndarray, scale: float | np.ndarray = 1.0) -> np.ndarray:
    """Cross-entropies in nats at the logits times `scale`: (…, n, K), (n,), (…) → (…, n)."""
    z = z * np.asarray(scale)[..., None, None]
    return logsumexp(z) - np.take_along_axis(z, _columns(z, y), -1)[..., 0]


def _columns(z: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return np.broadcast_to(targets[:, None], (*z.shape[:-1], 1))


def inverse_temperature(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """1/T by Newton's method inside a shrinking bracket: the objective is convex in 1/T."""
    n, classes = z.shape[-2:]
    doubt = 1 / (n + 2)
    own = np.take_along_axis(z, _columns(z, y), -1)
    others = (z.sum(-1, keepdims=True) - own) / (classes - 1)
    gap = z - ((1 - doubt) * own + doubt * others)
    low, high = (np.full(z.shape[:-2], end) for end in SCALES)
    scale = np.ones(z.shape[:-2])
    for _ in range(100):
        p = softmax(scale[..., None, None] * z)
        first = (p * gap).sum(-1)
        slope, bend = first.mean(-1), ((p * gap**2).sum(-1) - first**2).mean(-1)
        low, high = np.where(slope < 0, scale, low), np.where(slope < 0, high, scale)
        newton = scale - slope / np.where(bend > 0, bend, 1)
        inside = (bend > 0) & (low < newton) & (newton < high)
        before, scale = scale, np.where(inside, newton, np.sqrt(low * high))
        if (np.abs(scale - before) <= 1e-10 * scale).all():
            break
    return scale


def softmax(z: np.ndarray) -> np.ndarray:
    """Probabilities, (…, K) → (…, K)."""
    return np.exp(z - logsumexp(z)[..., None])


def validation(logits: Values, targets: Values) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, K) and targets (n,) as arrays; ValueError in one line for what cannot be used."""
    z = array("logits", logits).astype(np.float64)
    if z.ndim != 2 or z.shape[1] < 2:
        raise ValueError(f"logits must have shape (n, K), a column for each class, got {z.shape}")
    if len(z) < 2:
        raise ValueError(f"logits of {len(z)} validation samples; at least 2 are needed")
    y = class_indices(targets, *z.shape)
    if y.min() == y.max():
        raise ValueError(f"targets are all of class {y[0]}; validation needs two classes at least")
    return z, y


def temperature_scale(logits: Values, targets: Values) -> float:
    """T that minimises the cross-entropy of logits/T, (n, K) and (n,) → a positive number.

    The target class counts (n+1)/(n+2), the others share the rest, so that T stays positive where
    the classes are separated. 1/T is kept in [0.05, 50]. Raises ValueError for shapes, NaN, targets
    out of range, or one class alone. Guo et al. (2017); the smoothing is Platt's (1999).
    """
    return 1 / float(inverse_temperature(*validation(logits, targets)))


def minimiser_loss(confidence: Values, theta: float) -> float:
    """The mean cross-entropy, in nats, of the minimiser of SoftAD at θ (σ = 1, "code" or "text").

    `confidence` (n,): probabilities η of one of two classes. SoftAD is no proper loss: it is least
    at p with η·φ(−ln p − θ)/p = (1−η)·φ(−ln(1−p) − θ)/(1−p), 1 − e^−θ ≤ p ≤ e^−θ, so that without any
    memorising it holds the loss at max(θ, mean h(η)) or above, even at θ = 0. Rises with θ.
    Raises ValueError unless 0 ≤ θ < ln 2.
    """
    theta = between("theta", theta, 0, LN2, "h")
    eta = array("confidence", confidence).astype(np.float64)
    if eta.ndim != 1 or not len(eta) or eta.min() < 0 or eta.max() > 1:
        raise ValueError("confidence must be (n,) probabilities")
    # in ln(p/(1−p)), where both ends keep their digits; sure to within 1e-15 counts as sure
    end = min(36.0, -theta - math.log(-math.expm1(-theta)) if theta else math.inf)
    low, high = np.full(eta.shape, -end), np.full(eta.shape, end)
    for _ in range(60):
        middle = (low + high) / 2
        own, other = np.logaddexp(0, -middle), np.logaddexp(0, middle)
        rising = eta * _pull(own, theta) > (1 - eta) * _pull(other, theta)
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return float((eta * own + (1 - eta) * other).mean())


def _pull(loss: np.ndarray, theta: float) -> np.ndarray:
    """φ(ℓ − θ)/p at p = e^−ℓ: minus the slope of ρ(ℓ − θ) in p."""
    x = loss - theta
    return x / np.hypot(1, x) * np.exp(loss)
