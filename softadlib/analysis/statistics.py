"""What a handful of paired trials can say: intervals and exact tests of differences.

Trials share data and initial weights between methods, so methods are compared trial by trial.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

EXACT = 15
"""Up to so many differences every assignment of signs is counted, 2¹⁵ of them."""


class Mean(NamedTuple):
    """A mean difference, its interval, and over how many pairs."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:+.3g} [{self.low:+.3g}, {self.high:+.3g}] n={self.n}"


class Estimate(NamedTuple):
    """A statistic and its bootstrap interval."""

    value: float
    low: float
    high: float


class Signs(NamedTuple):
    """How many differences are above, at and below zero; p is two-sided."""

    above: int
    equal: int
    below: int
    p: float


def _differences(values: object) -> np.ndarray:
    d = np.asarray(values, dtype=float)
    if d.ndim != 1 or not len(d):
        raise ValueError(f"differences must have shape (n,) with n of at least 1, got {d.shape}")
    _finite(d)
    return d


def _finite(values: np.ndarray) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(f"{bad.sum()} of {bad.size} values are NaN or infinite; leave those out")


def _level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    return level


def paired(a: object, b: object, level: float = 0.95) -> Mean:
    """mean(a − b) ± t·s/√n, Student's interval of paired differences; a, b (n,) in the same order.

    s has ddof = 1; infinite for n = 1. Raises ValueError for shapes that disagree, NaN, infinity.
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.shape != b.shape:
        raise ValueError(f"pairs need as many values on either side, got {a.shape} and {b.shape}")
    d, level = _differences(a - b), _level(level)
    if len(d) == 1:
        return Mean(float(d[0]), -np.inf, np.inf, 1)
    half = stats.t.ppf((1 + level) / 2, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d))
    return Mean(float(d.mean()), float(d.mean() - half), float(d.mean() + half), len(d))


def bootstrap(
    values: object,
    statistic: Callable[[np.ndarray], float] = np.mean,
    seed: int = 0,
    level: float = 0.95,
    repeats: int = 9999,
) -> Estimate:
    """statistic(values) and the percentile interval of it over `repeats` resamples of the rows.

    `values` (n,) or (n, k), a row per trial: what is paired stays together. The same `seed` gives the
    same interval. Raises ValueError for fewer than two rows, NaN, infinity.
    """
    rows, level = np.asarray(values, dtype=float), _level(level)
    if rows.ndim not in (1, 2) or len(rows) < 2:
        raise ValueError(f"a bootstrap needs two rows at least, (n,) or (n, k), got {rows.shape}")
    _finite(rows)
    draws = np.random.default_rng(seed).integers(len(rows), size=(repeats, len(rows)))
    ends = np.quantile(
        [statistic(rows[draw]) for draw in draws], [(1 - level) / 2, (1 + level) / 2]
    )
    return Estimate(float(statistic(rows)), *map(float, ends))


def sign_test(differences: object) -> Signs:
    """Exact two-sided binomial test that a difference is as likely above zero as below.

    Zeros count for neither side; p = 1 where there is nothing else.
    """
    d = _differences(differences)
    above, below = int((d > 0).sum()), int((d < 0).sum())
    p = float(stats.binomtest(above, above + below).pvalue) if above + below else 1.0
    return Signs(above, len(d) - above - below, below, p)


def permutation_test(differences: object, seed: int = 0) -> float:
    """Two-sided p of the mean under changes of sign: the share of means as far from 0 or farther.

    Exact, all 2ⁿ assignments, for n ≤ 15; beyond, 2¹⁵ draws from `seed`, the observed one counted.
    """
    d = _differences(differences)
    test = stats.permutation_test(
        (d,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**EXACT,
        random_state=np.random.default_rng(seed),
    )
    return float(test.pvalue)
