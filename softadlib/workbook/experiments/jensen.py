"""Section 3.2: the sign of single losses is unbiased for a bound that follows by Jensen's inequality.

ℓ(w; Z) = ½(w − Z)² with Z ~ N(0, 1), so R(w) = (w² + 1)/2. Flooding's objective is θ + |R − θ|; a batch
of one has the gradient sign(ℓ − θ)·∇ℓ, whose mean is that of the bound θ + E|ℓ − θ|, iFlood's.
"""

import numpy as np
from scipy.stats import norm

from softadlib._validation import choose
from softadlib.workbook.analysis.statistics import Mean, mean_interval
from softadlib.workbook.experiments.theory.problems import phi
from softadlib.workbook.experiments.toy import gradient_weights

METHODS = ("flooding", "iflood", "softad")


def population_gradient(method: str, w: float, theta: float) -> float:
    """Return the gradient of a method's objective at w, in closed form.

    "flooding": sign(R − θ)·∇R = sign(R − θ)·w. "iflood": E sign(ℓ − θ)∇ℓ, which is w minus twice the
    mean of (w − Z) over |w − Z| < s = √(2θ). "softad": E φ(ℓ − θ)∇ℓ by Gauss–Hermite quadrature.
    """
    choose("method", method, METHODS)
    if method == "flooding":
        return float(np.sign((w * w + 1) / 2 - theta) * w)
    if method == "iflood":
        s = np.sqrt(2 * max(theta, 0.0))
        inside = norm.cdf(w + s) - norm.cdf(w - s)
        edges = norm.pdf(w + s) - norm.pdf(w - s)
        return float(w - 2 * (w * inside + edges))
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    ways = w - nodes
    return float(weights @ (phi(ways**2 / 2 - theta) * ways) / weights.sum())


def drawn_gradient(method: str, w: float, theta: float, batch: int, draws: int, seed: int) -> Mean:
    """Return the mean of a method's gradient on `draws` batches, with Student's 95 % interval.

    The gradient is that of the registered objective on `batch` losses.
    """
    ways = w - np.random.default_rng(seed).standard_normal((draws, batch))
    weights = gradient_weights(method, ways**2 / 2, theta)
    return mean_interval((weights * ways).mean(axis=1))
