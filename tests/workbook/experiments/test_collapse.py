"""Remark 2 against closed forms: where SoftAD's minimiser is ERM's."""

import math

import pytest

from softadlib.workbook.experiments import collapse


class TestPriceOfAnError:
    @pytest.mark.parametrize(
        ("theta", "expected"), [(0.0, math.sqrt(2) - 1), (0.5, 0.0), (1.0, 1 - math.sqrt(2))]
    )
    def test_by_hand(self, theta, expected):
        assert collapse.price_of_an_error(theta) == pytest.approx(expected, abs=1e-15)

    def test_it_is_the_slope_in_the_error_rate(self):
        """Two candidates whose error rates are 0.1 and 0.4, at θ = 0.3 and σ = 2."""
        price = collapse.price_of_an_error(0.3, 2.0)

        def criterion(rate):
            return rate * (math.hypot(1, 0.35) - 1) + (1 - rate) * (math.hypot(1, 0.15) - 1)

        assert criterion(0.4) - criterion(0.1) == pytest.approx(0.3 * price)
