"""Intervals and exact tests against counting by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from softadlib.analysis.statistics import (
    paired,
    permutation_test,
    permutation_tests,
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
    assert permutation_test(np.ones(15)) == 2 / 2**15  # exact: of all the signs only two are as far
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
