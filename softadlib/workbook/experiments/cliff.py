"""Which class the minimiser of a pointwise criterion predicts: θ < ln 2 the likelier one, above the other.

A network that fits perfectly minimises, at every x, E[f(ℓ)] over the probabilities it gives to the
classes, ℓ = −ln p of the observed class and f(ℓ) = ρ((ℓ − θ)/σ) or |ℓ − θ|/σ. In float64.
"""

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import expit, log_softmax

from softadlib._validation import choose

POINTWISE = ("softad", "iflood")
"""Flooding is not pointwise: it constrains the mean loss alone."""
LOGIT_RANGE, GRID, ITERATIONS = 30.0, 3001, 60
"""Range of the logit ln(p/(1−p)), points of its grid, and how often the bracket then shrinks by 2/3."""


def pointwise_value(
    method: str, losses: np.ndarray, theta: float, sigma: float = 1.0
) -> np.ndarray:
    """Return f(ℓ), any shape: ρ((ℓ−θ)/σ) of SoftAD, |ℓ−θ|/σ of iFlood."""
    choose("method", method, POINTWISE)
    x = (losses - theta) / sigma
    return np.abs(x) if method == "iflood" else x * (x / (1 + np.hypot(1, x)))


def expected(
    method: str, eta: np.ndarray, z: np.ndarray, theta: float, sigma: float = 1.0
) -> np.ndarray:
    """Return η·f(−ln p) + (1−η)·f(−ln(1−p)) at p = 1/(1+e^−z), of shapes that broadcast."""
    positive = pointwise_value(method, np.logaddexp(0, -z), theta, sigma)
    negative = pointwise_value(method, np.logaddexp(0, z), theta, sigma)
    return np.asarray(eta * positive + (1 - eta) * negative)


def minimiser(method: str, eta: object, theta: float, sigma: float = 1.0) -> np.ndarray:
    """Return p*(η, θ), the probability of class 1 that minimises `expected`: (m,) → (m,).

    The best of a grid in ln(p/(1−p)), narrowed by thirds.
    """
    eta = np.asarray(eta, dtype=float)
    grid = np.linspace(-LOGIT_RANGE, LOGIT_RANGE, GRID)
    values = [
        pointwise_value(method, np.logaddexp(0, sign * grid), theta, sigma) for sign in (-1, 1)
    ]
    best = np.array([(e * values[0] + (1 - e) * values[1]).argmin() for e in eta])
    low, high = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, GRID - 1)]
    for _ in range(ITERATIONS):
        third = (high - low) / 3
        a, b = low + third, high - third
        right = expected(method, eta, a, theta, sigma) > expected(method, eta, b, theta, sigma)
        low, high = np.where(right, a, low), np.where(right, high, b)
    return np.asarray(expit((low + high) / 2))


def outcome(method: str, eta: object, thetas: object, sigma: float = 1.0) -> pd.DataFrame:
    """Return accuracy and cross-entropy of the minimiser where class 1 has probability η at the points (m,).

    Indexed by θ. A prediction of exactly a half counts as half right.
    """
    eta = np.asarray(eta, dtype=float)
    lines = {}
    for theta in np.asarray(thetas, dtype=float):
        p = minimiser(method, eta, theta, sigma)
        side = np.where(np.abs(p - 0.5) < 1e-6, 0.5, p > 0.5)
        with np.errstate(divide="ignore", invalid="ignore"):
            likely = np.where(eta > 0, eta * np.log(p), 0)
            loss = -likely - np.where(eta < 1, (1 - eta) * np.log1p(-p), 0)
        lines[theta] = ((side * eta + (1 - side) * (1 - eta)).mean(), loss.mean())
    return pd.DataFrame.from_dict(lines, orient="index", columns=["acc_test", "loss_test"])


def multiclass_minimiser(eta: object, theta: float, starts: int = 12, seed: int = 0) -> np.ndarray:
    """Return p* (K,) of SoftAD (σ = 1) for class probabilities `eta` (K,), the best of several descents."""
    eta = np.asarray(eta, dtype=float)

    def value(z: np.ndarray) -> tuple[float, np.ndarray]:
        logp = log_softmax(z)
        x = -logp - theta
        w = eta * x / np.hypot(1, x)
        return float(eta @ pointwise_value("softad", -logp, theta)), w.sum() * np.exp(logp) - w

    rng = np.random.default_rng(seed)
    initial = [np.log(eta + 1e-3), *rng.normal(0, 3, (starts, len(eta)))]
    minima = [minimize(value, z, jac=True, tol=1e-14, options={"maxiter": 2000}) for z in initial]
    best = min(minima, key=lambda minimum: minimum.fun)
    return np.asarray(np.exp(log_softmax(best.x)))


def margin(eta: object, theta: float, **options: int) -> float:
    """Return p* of the likeliest class minus the largest p* of another class with η > 0; 0 is a tie.

    Classes with η = 0 do not count: the minimum does not determine how they share what is left.
    """
    eta = np.asarray(eta, dtype=float)
    p = multiclass_minimiser(eta, theta, **options)
    first = int(np.argmax(eta))
    others = (eta > 0) & (np.arange(len(eta)) != first)
    return float(p[first] - p[others].max())
