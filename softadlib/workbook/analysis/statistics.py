"""Intervals and exact tests of differences between paired trials.

Trials share data and initial weights between methods, so methods are compared trial by trial.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported on first use: `stats` takes seconds
from numpy.typing import ArrayLike

LEVEL = 0.95
"""Chance with which an interval covers the mean."""
EXACT = 15
"""Number of differences up to which the permutation test counts all assignments of signs, 2¹⁵."""


class Mean(NamedTuple):
    """A mean, the ends of its interval, and the number of values."""

    mean: float
    low: float
    high: float
    n: int


class Signs(NamedTuple):
    """Numbers of differences above, at and below zero; p is two-sided."""

    above: int
    equal: int
    below: int
    p: float


def _finite(values: ArrayLike) -> np.ndarray:
    """Return (n,) `values` as floats. Raises ValueError for another shape, n = 0, NaN or infinity."""
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"values must have shape (n,) with n of at least 1, got {array.shape}")
    if bad := int((~np.isfinite(array)).sum()):
        raise ValueError(f"{bad} of {array.size} values are NaN or infinite; leave those out")
    return array


def mean_interval(values: ArrayLike) -> Mean:
    """Return mean ± t·s/√n, Student's 95 % interval of the mean of (n,) values.

    s has ddof = 1; the interval is infinite for n = 1. Raises ValueError for NaN and infinity.
    """
    x = _finite(values)
    mean, n = float(x.mean()), len(x)
    if n == 1:
        return Mean(mean, -np.inf, np.inf, 1)
    half = float(scipy.special.stdtrit(n - 1, (1 + LEVEL) / 2) * x.std(ddof=1) / np.sqrt(n))
    return Mean(mean, mean - half, mean + half, n)


def paired(a: ArrayLike, b: ArrayLike) -> Mean:
    """Return `mean_interval` of a − b; a, b (n,) in the same order.

    Raises ValueError for shapes that disagree.
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.shape != b.shape:
        raise ValueError(f"pairs need as many values on either side, got {a.shape} and {b.shape}")
    return mean_interval(a - b)


def sign_test(differences: ArrayLike) -> Signs:
    """Test that a difference is as likely above zero as below: the exact two-sided binomial p.

    Zeros count for neither side; p = 1 where there is nothing else.
    """
    d = _finite(differences)
    above, below = int((d > 0).sum()), int((d < 0).sum())
    p = float(scipy.stats.binomtest(above, above + below).pvalue) if above + below else 1.0
    return Signs(above, len(d) - above - below, below, p)


def permutation_test(differences: ArrayLike, seed: int = 0) -> float:
    """Return the two-sided p of the mean under changes of sign: the share of means as far from 0 or farther.

    Exact, all 2ⁿ assignments, for n ≤ 15; beyond, 2¹⁵ draws from `seed`, the observed one counted.
    """
    return permutation_tests([differences], seed)[0]


def permutation_tests(samples: Sequence[ArrayLike], seed: int = 0) -> list[float]:
    """Return `permutation_test` of each sample; those of one size share their assignments of signs.

    Most of the time goes into making the assignments, so many tests together are hardly slower than one.
    """
    arrays = [_finite(sample) for sample in samples]
    p_values = [1.0] * len(arrays)
    for n in {len(array) for array in arrays}:
        of_size_n = [i for i, array in enumerate(arrays) if len(array) == n]
        together = _permutation_tests(np.stack([arrays[i] for i in of_size_n]), seed)
        for i, p in zip(of_size_n, together):
            p_values[i] = p
    return p_values


def _permutation_tests(d: np.ndarray, seed: int) -> list[float]:
    """Return p of each of k samples of n differences, (k, n) → k values."""
    samples, n = d.shape
    if n == 1:
        return [1.0] * samples  # both signs are as far
    unit = 1e-12 * np.abs(d).sum(1, keepdims=True)
    unit[unit == 0] = 1

    def rounded_sum(values: np.ndarray, axis: int) -> np.ndarray:
        """Return sums in whole units, so that those which differ by rounding alone are equal."""
        sums: np.ndarray = np.rint(values.sum(axis))
        return sums

    test = scipy.stats.permutation_test(
        (d / unit,),
        rounded_sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**EXACT,
        axis=1,
        random_state=np.random.default_rng(seed),
    )
    return [float(p) for p in test.pvalue]


def holm(p_values: ArrayLike) -> np.ndarray:
    """Return p-values after Holm's correction: of k tests the smallest counts k times, the next k − 1 times.

    No corrected value is below one of a smaller p, or above 1. Holm (1979).

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    corrected: np.ndarray = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return corrected.clip(max=1)


def resampled_interval(differences: ArrayLike, draws: int = 10_000, seed: int = 0) -> Mean:
    """Return the mean of (T, n) differences and its 95 % interval over new trials and new samples.

    Rows (trials) and columns (samples that all trials share) are resampled independently, with
    replacement; the interval has the 2.5 and 97.5 % quantiles of the means. It tends to be somewhat
    too wide rather than too narrow (Owen 2007, the pigeonhole bootstrap).
    """
    table = np.asarray(differences, dtype=float)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise ValueError(f"differences must be a finite table (T, n), got shape {table.shape}")
    trials, samples = table.shape
    random = np.random.default_rng(seed)
    of_trials = random.multinomial(trials, np.full(trials, 1 / trials), draws) / trials
    of_samples = random.multinomial(samples, np.full(samples, 1 / samples), draws) / samples
    means = ((of_trials @ table) * of_samples).sum(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Mean(float(table.mean()), float(low), float(high), trials)
