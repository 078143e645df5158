"""The three problems on the plane: (n, label_noise, rng) → x (n, 2) float32, y (n,) int64.

Drawn in the order of the authors' code, so one seed gives one data set, theirs and ours.
Label noise flips int(n·q) labels without replacement, in every part of the data.
"""

import numpy as np

from softadlib._validation import choose
from softadlib.workbook.data.label_noise import flip_two_classes

Arrays = tuple[np.ndarray, np.ndarray]


def gaussian(n: int, label_noise: float, rng: np.random.Generator) -> Arrays:
    """Draw n/2 points of N((k, k), I/10) for each class k ∈ {0, 1}.

    Noise is drawn per class, so 5 % of 50 is 2.
    """
    x = []
    y = []
    for label in (0, 1):
        x.append(rng.multivariate_normal(np.full(2, float(label)), np.eye(2) / 10, size=n // 2))
        y.append(flip_two_classes(np.full(n // 2, label), label_noise, rng))
    return np.vstack(x).astype(np.float32), np.concatenate(y)


def sinusoid(n: int, label_noise: float, rng: np.random.Generator) -> Arrays:
    """Draw x ~ N(0, I) with y = 1[x₀ + x₁ + sin(x₁ − x₀) > 0]."""
    x = rng.multivariate_normal(np.zeros(2), np.eye(2), size=n).astype(np.float32)
    y = (x[:, 0] + x[:, 1] + np.sin(x[:, 1] - x[:, 0]) > 0).astype(np.int64)
    return x, flip_two_classes(y, label_noise, rng)


def _arms(points: int) -> list[np.ndarray]:
    """Return the arms of class 1 and class 0 without noise: (points, 2) each."""
    r = np.linspace(0, 4 * np.pi, points)[:, None]
    circle = np.hstack([np.cos(r), np.sin(r)])
    return [(r + shift) * circle for shift in (0, np.pi)]


def spiral(n: int, label_noise: float, rng: np.random.Generator) -> Arrays:
    """Draw r over [0, 4π]: class 1 at r(cos r, sin r), class 0 at (r+π)(cos r, sin r), plus N(0, I)."""
    half = n // 2
    x = [arm + rng.multivariate_normal(np.zeros(2), np.eye(2), half) for arm in _arms(half)]
    y = np.repeat([1, 0], half)
    return np.vstack(x).astype(np.float32), flip_two_classes(y, label_noise, rng)


SYNTHETIC = {"gaussian": gaussian, "sinusoid": sinusoid, "spiral": spiral}
EVEN_SETS = ("gaussian", "spiral")
"""Sets with n/2 points a class: n must be even."""


POSTERIORS = ("gaussian", "sinusoid", "spiral")
"""Sets whose class probabilities are known, see `posterior`."""


def posterior(dataset: str, x: np.ndarray, curve: int = 2000) -> np.ndarray:
    """Return P(class 1 | x) of the noise-free sets: (n, 2) → (n,).

    `gaussian` by its densities, `sinusoid` by its border, `spiral` with `curve` points on each arm.
    Raises UserError for another set.
    """
    from scipy.special import expit

    choose("dataset", dataset, POSTERIORS)
    x = np.asarray(x, dtype=float)
    if dataset == "gaussian":
        log_odds = 10 * (x.sum(1) - 1)
    elif dataset == "sinusoid":
        log_odds = np.where(x.sum(1) + np.sin(x[:, 1] - x[:, 0]) > 0, np.inf, -np.inf)
    else:
        first, second = (_log_density(x, arm) for arm in _arms(curve))
        log_odds = first - second
    return np.asarray(expit(log_odds))


def _log_density(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Log density of a mixture of N(centre, I), up to a constant."""
    from scipy.spatial.distance import cdist
    from scipy.special import logsumexp

    out = []
    for chunk in np.array_split(x, max(1, len(x) // 500)):
        squares = cdist(chunk, centres, "sqeuclidean")
        out.append(logsumexp(-squares / 2, axis=1))
    return np.concatenate(out)
