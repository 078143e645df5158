"""Intervals and exact tests against counting by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from softadlib.workbook.analysis.statistics import (
    holm,
    paired,
    permutation_test,
    permutation_tests,
    resampled_interval,
    sign_test,
)


def test_paired_interval_by_hand():
    # differences 1, 2, 3: mean 2, s = 1, t(.975, 2) = 4.302653 from a printed table
    found = paired([2, 4, 6], [1, 2, 3])
    half = 4.302653 / math.sqrt(3)
    assert found == pytest.approx((2, 2 - half, 2 + half, 3), abs=1e-6)


def test_one_pair_says_nothing():
    assert paired([1.0], [0.5]) == (0.5, -math.inf, math.inf, 1)


def test_sign_test_by_hand():
    # seven of eight above: 2·(1 + 8)/256
    assert sign_test([1, 2, 3, 4, 5, 6, 7, -1, 0, 0]) == (7, 2, 1, pytest.approx(18 / 256))
    assert sign_test([0.0, 0.0]) == (0, 2, 0, 1.0)


def test_permutation_test_of_few_is_exact():
    d = np.array([0.3, 0.5, -0.1, 0.4, 0.2])
    of_fifteen = [permutation_test(np.ones(15), seed) for seed in range(5)]
    assert of_fifteen == [2 / 2**15] * 5, "of all the signs only two are as far"
    assert permutation_test(d, seed=1) == permutation_test(d, seed=2)
    assert permutation_test([0.3]) == 1.0, "of one difference both signs are as far"


@settings(max_examples=30)
@given(st.lists(st.integers(-20, 20), min_size=2, max_size=9))
def test_exact_permutation_test_is_scipys(tenths):
    """SciPy gets whole numbers, whose sums are exact; ours the tenths, whose sums tie but for rounding."""
    d = np.array(tenths)
    test = stats.permutation_test(
        (d,), np.sum, permutation_type="samples", vectorized=True, n_resamples=np.inf
    )
    assert permutation_test(d / 10) == pytest.approx(test.pvalue, rel=1e-12)


def test_permutation_tests_of_several_samples_are_those_of_each():
    random = np.random.default_rng(4)
    samples = [random.normal(0.5, 1, size=n) for n in (6, 15, 1, 6, 20, 15)] + [np.zeros(6)]
    assert permutation_tests(samples) == [permutation_test(sample) for sample in samples]
    assert permutation_tests([]) == []


def test_permutation_test_of_many_draws():
    d = np.random.default_rng(3).normal(0.4, 1, size=30)
    assert permutation_test(d) == pytest.approx(stats.ttest_1samp(d, 0).pvalue, abs=0.01)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: paired([1, 2], [1]), "as many values"),
        (lambda: paired([1, np.nan], [1, 2]), "1 of 2 values are NaN"),
        (lambda: paired([], []), "n of at least 1"),
        (lambda: sign_test([np.nan]), "NaN"),
        (lambda: sign_test(np.zeros((2, 2))), r"\(2, 2\)"),
        (lambda: permutation_test([]), "n of at least 1"),
    ],
)
def test_refused_in_one_line(call, words):
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_holm_by_hand():
    """Sorted: 0.01 × 4, 0.02 × 3, 0.025 × 2 = 0.05 but not below the 0.06 before it, and 0.6 × 1."""
    np.testing.assert_allclose(holm([0.6, 0.01, 0.025, 0.02]), [0.6, 0.04, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1, 1])
    assert holm([]).shape == (0,)


def test_resampled_interval_of_one_column_is_the_bootstrap_of_scipy():
    values = np.random.default_rng(1).normal(size=15)
    mean, low, high, n = resampled_interval(values[:, None])
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert (mean, n) == (pytest.approx(values.mean()), 15)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.02)


def test_resampled_interval_adds_the_variances_of_rows_and_columns():
    """Differences a_i + b_j have means of variance var(a)/T + var(b)/n, nearly normal."""
    random = np.random.default_rng(3)
    a, b = random.normal(0, 1, 40), random.normal(0, 2, 60)
    _, low, high, _ = resampled_interval(a[:, None] + b)
    half = 1.96 * np.sqrt(a.var() / 40 + b.var() / 60)
    assert (high - low) / 2 == pytest.approx(half, rel=0.05)
    alone = 1.96 * np.sqrt(a.var() / 40)
    assert half > 1.5 * alone  # the columns matter


@pytest.mark.parametrize("table", [[1.0, 2.0], [[1.0, np.nan]]])
def test_resampled_interval_wants_a_finite_table(table):
    with pytest.raises(ValueError, match="finite table"):
        resampled_interval(table)
