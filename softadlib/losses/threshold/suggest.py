"""θ without a grid: from the validation logits of one ordinary training run.

Losses below R*, the least cross-entropy the data allow, are had by memorising alone; θ keeps them
from falling so low, and below ln 2 the criterion does not turn over. Works on any network's logits;
arrays or tensors in, numbers out.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from softadlib.functional import LN2 as LN2
from softadlib.losses.threshold.bayes import (
    Values,
    array,
    between,
    entropy,
    flip_risk,
    neighbour_bayes,
    psi,
    risk_bracket,
)
from softadlib.losses.threshold.bayes import bayes_error as bayes_error
from softadlib.losses.threshold.calibration import (
    cross_entropy_at,
    inverse_temperature,
    minimiser_loss,
    softmax,
    validation,
)
from softadlib.losses.threshold.calibration import temperature_scale as temperature_scale

FLOOR = 0.01
"""θ_low where nothing else is known, a convention: no sample bounds R* from below."""
RULE = 1
"""Raised by hand whenever the same logits would give another θ: stored suggestions are made anew."""
LOWER = ("balanced", "neighbour", "floor")
REPEATS = 10
"""Random halvings of a validation set of up to 2,000 samples."""


def certificate(losses: Values, theta: float, *, delta: float = 0.05) -> float:
    """mean min(1, ρ(ℓ−θ)/ρ(ln 2−θ)) + √(ln(1/δ)/2n): bounds the error with probability 1 − δ.

    `losses` (n,) cross-entropies in nats on samples that chose neither the network nor `theta` < ln 2.
    A misclassified sample has ℓ ≥ ln 2. This ties SoftAD's own value to the error; the share of
    mistakes + √(ln(1/δ)/2n) is never larger. Raises ValueError for θ ≥ ln 2 and negative losses.
    """
    theta = between("theta", theta, -math.inf, LN2, "h")
    found = array("losses", losses).astype(np.float64)
    if found.ndim != 1 or not len(found) or found.min() < 0:
        raise ValueError("losses must be (n,) cross-entropies, at least 0 each")
    spread = math.sqrt(math.log(1 / between("delta", delta, 0, 1, "lh")) / (2 * len(found)))
    ratio = (np.hypot(1, found - theta) - 1) / (math.hypot(1, LN2 - theta) - 1)
    # a loss that rounding left just under ln 2 may be a mistake
    ratio = np.where(found >= LN2 - 1e-6, 1, np.minimum(1, ratio))
    return float(min(1.0, ratio.mean() + spread))


class Low(NamedTuple):
    """θ_low, the β̂ behind it, and why."""

    theta: float
    beta: float
    why: str


@dataclass(frozen=True)
class Suggestion:
    """θ, the bracket it was taken from, and why; `str` gives the reasons a line each."""

    theta: float
    theta_low: float
    theta_high: float
    beta: float
    """β̂, the Bayes error behind θ_low."""
    margin: float
    """m̂, the 10th percentile of the margin between the two likeliest classes."""
    temperature: float
    memorised: float
    """Nats of validation cross-entropy that the run lost by memorising."""
    certificate: float
    """`certificate` of the given logits at θ; for the network trained with θ call `certify`."""
    reasons: tuple[str, ...]

    def certify(self, losses: Values, *, delta: float = 0.05) -> float:
        """`certificate` of these losses (n,) at θ."""
        return certificate(losses, self.theta, delta=delta)

    def __str__(self) -> str:
        return "\n".join(self.reasons)


def suggest_theta(
    logits: Values,
    targets: Values,
    *,
    drop: float = 0.01,
    kappa: float = 0.9,
    flip_rate: float | None = None,
    soft_labels: Values | None = None,
    epochs: Values | None = None,
    lower: str = "balanced",
    seed: int = 0,
) -> Suggestion:
    """θ = min(κ ln 2, √(θ_low·θ_high) + ψ(m̂)/m̂·drop), from an ordinary run's validation logits.

    `logits` (n, K) after training, `targets` (n,) class indices. θ_high: validation cross-entropy
    after temperature scaling, of the best of `epochs` where given, as logits (E, n, K), losses (E, n)
    scaled already, or means (E,); chosen on one half and scored on the other, both ways, over random
    halvings from `seed`, but for means. θ_low: R* itself for a known `flip_rate`; 2 ln 2·β̂ for
    `soft_labels`, of these or of other samples; else by `lower`. "neighbour" is 2 ln 2·β̂ with the
    `neighbour_bayes` of the validation error, "floor" is 0.01, and "balanced" the former, but no
    higher than the θ at which `minimiser_loss` costs as much as the run lost by memorising. `drop`:
    tolerated loss of accuracy, in [0, 1]; `kappa` in (0, 1). Raises ValueError for shapes that
    disagree, NaN, one class, n = 1, probabilities in place of logits.
    """
    z, y = validation(logits, targets)
    if z.min() >= 0 and np.abs(z.sum(1) - 1).max() < 1e-6:
        raise ValueError("logits are probabilities, rows that sum to one; pass their logarithms")
    drop, kappa = between("drop", drop, 0, 1), between("kappa", kappa, 0, 1, "lh")
    if lower not in LOWER:
        raise ValueError(f"lower {lower!r} unknown; choose from {', '.join(LOWER)}")
    cap, scale = kappa * LN2, float(inverse_temperature(z, y))
    p = np.sort(softmax(scale * z), -1)
    margin = float(np.clip(np.quantile(p[:, -1] - p[:, -2], 0.1), 0.05, 1))
    high, why = _upper(z, y, epochs, seed)
    memorised = max(0.0, float(cross_entropy_at(z, y).mean()) - high)
    low = _known(z, y, flip_rate, soft_labels) or _unknown(z, y, lower, p[:, -1], memorised, cap)
    reasons = [why, low.why]
    if high > cap:
        high = cap
        reasons.append(f"θ_high is held at {kappa:g}·ln 2 = {cap:.3g}: at ln 2 a wrong class wins")
    if low.theta > high:
        reasons.append("θ_low came out above θ_high and is set to it")
    start = min(low.theta, high)
    slack = float(psi(margin)) / margin * drop
    theta = min(cap, math.sqrt(start * high) + slack)
    reasons.append(
        f"θ = {theta:.3g}: √({start:.3g}·{high:.3g}), the least wrong by a factor, and {slack:.2g} for "
        f"the tolerated drop of {drop:g} at a margin of {margin:.2g}"
    )
    bound = certificate(cross_entropy_at(z, y), theta)
    reasons.append(
        f"certificate: error of at most {bound:.3g} for these logits (95 %, had θ been fixed)"
    )
    return Suggestion(
        theta, start, high, low.beta, margin, 1 / scale, memorised, bound, tuple(reasons)
    )


def _mistakes(z: np.ndarray, y: np.ndarray) -> float:
    """The share of mistakes by the rule of succession, (wrong + 1)/(n + 2)."""
    return ((z.argmax(1) != y).sum() + 1) / (len(y) + 2)


def _known(
    z: np.ndarray, y: np.ndarray, flip_rate: float | None, soft_labels: Values | None
) -> Low | None:
    """θ_low from what is known of the labels; None where nothing is, or nothing that can be."""
    if flip_rate is not None:
        risk = max(FLOOR, flip_risk(flip_rate, z.shape[1]))
        return Low(risk, flip_rate, f"θ_low = {risk:.3g}: R* of labels flipped at {flip_rate:g}")
    if soft_labels is None:
        return None
    beta = bayes_error(soft_labels)
    shape = np.shape(soft_labels)
    if (shape[1] if len(shape) == 2 else 2) != z.shape[1]:
        raise ValueError(f"soft labels are of shape {tuple(shape)}, logits of {z.shape[1]} classes")
    if beta.low > _mistakes(z, y):
        raise ValueError(
            f"soft labels claim a Bayes error of {beta.value:.3g}, but the network errs on "
            f"{_mistakes(z, y):.3g}; calibrate them, or leave them out"
        )
    low = max(FLOOR, risk_bracket(beta.value, z.shape[1])[0])
    return Low(low, beta.value, f"θ_low = {low:.3g}: soft labels give β̂ = {beta.value:.3g}")


def _unknown(
    z: np.ndarray, y: np.ndarray, lower: str, confidence: np.ndarray, memorised: float, cap: float
) -> Low:
    error, beta, price = _mistakes(z, y), 0.0, math.inf
    if lower != "floor":
        beta = neighbour_bayes(error, z.shape[1])
    if lower == "balanced":
        price = _worth(confidence, memorised, cap)
    low = max(FLOOR, min(2 * LN2 * beta, price))
    why = f"θ_low = {low:.3g}: "
    if low == FLOOR:
        why += "the floor, a convention"
    elif price < 2 * LN2 * beta:
        why += "there SoftAD costs what was lost by memorising"
    else:
        why += f"an error of {error:.3g} is a nearest neighbour's at β̂ = {beta:.3g}"
    return Low(low, beta, why + f"; memorising lost {memorised:.3g} nats")


def _worth(confidence: np.ndarray, memorised: float, cap: float) -> float:
    """The largest θ up to `cap` at which `minimiser_loss` is above the entropy by `memorised` or less."""
    most = float(entropy(confidence).mean()) + memorised
    low, high = 0.0, cap
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if minimiser_loss(confidence, middle) <= most else (low, middle)
    return low


def _upper(z: np.ndarray, y: np.ndarray, epochs: Values | None, seed: int) -> tuple[float, str]:
    n = len(y)
    found = None if epochs is None else array("epochs", epochs).astype(np.float64)
    if found is not None and (found.shape[1:] not in (z.shape, (n,), ()) or not found.size):
        raise ValueError(
            f"epochs must have shape (E, {n}, {z.shape[1]}), (E, {n}) or (E,), got {found.shape}"
        )
    if found is not None and found.ndim < 3 and found.min() < 0:
        raise ValueError("epochs must be cross-entropies, at least 0, where they are not logits")
    if found is not None and found.ndim == 1:
        best = float(found.min())
        return best, f"θ_high = {best:.3g}: least of the {len(found)} given, selection and all"
    curve = z[None] if found is None else found
    rng, scores = np.random.default_rng(seed), []
    for _ in range(max(1, min(REPEATS, 2000 // n))):
        order = rng.permutation(n)
        for fit, score in ((order[: n // 2], order[n // 2 :]), (order[n // 2 :], order[: n // 2])):
            scores.append(_half(curve, y, fit, score))
    best = float(np.mean(scores))
    which = f"best of {len(curve)} epochs" if found is not None else "network"
    return (
        best,
        f"θ_high = {best:.3g}: cross-entropy of the {which}, chosen and scaled out of sample",
    )


def _half(curve: np.ndarray, y: np.ndarray, fit: np.ndarray, score: np.ndarray) -> float:
    """Cross-entropy on `score` of the epoch and the temperature that are best on `fit`."""
    if curve.ndim == 2:
        return curve[curve[:, fit].mean(1).argmin(), score].mean()
    scales = inverse_temperature(curve[:, fit], y[fit])
    best = cross_entropy_at(curve[:, fit], y[fit], scales).mean(1).argmin()
    return cross_entropy_at(curve[best, score], y[score], scales[best]).mean()
