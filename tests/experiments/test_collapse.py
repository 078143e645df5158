"""Remark 2 against closed forms: where SoftAD's minimiser is ERM's."""

import math

import numpy as np
import pytest

from softadlib.experiments import collapse

TWO = np.array([-1.0, 1.0])  # at w = 0, ERM's minimiser, both losses are ½


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


class TestDistanceToERM:
    def test_flooding_and_iflood_leave_at_the_loss_of_erm(self):
        table = collapse.distance_to_erm(TWO, [0.4, 0.5, 0.6], ["flooding", "iflood"])
        assert table.loc[:0.5].to_numpy() == pytest.approx(np.zeros((2, 2)), abs=1e-9)
        # above: mean loss (w² + 1)/2 = θ at w = √0.2
        assert table.loc[0.6, "flooding"] == pytest.approx(math.sqrt(0.2), abs=1e-3)
        # the nearer loss (w + 1)²/2 = θ at w = √1.2 − 1
        assert table.loc[0.6, "iflood"] == pytest.approx(math.sqrt(1.2) - 1, abs=1e-3)

    def test_softad_stays_until_its_curvature_changes_sign(self):
        """At w = 0 the second derivative is φ′(x) + φ(x), x = ½ − θ, of the sign of x³ + x + 1."""
        root = np.roots([1, 0, 1, 1])
        (x,) = root[np.abs(root.imag) < 1e-12].real
        leaves = 0.5 - x
        assert leaves == pytest.approx(1.1823, abs=1e-4)
        table = collapse.distance_to_erm(TWO, [-1.0, 0.5, leaves + 0.02], ["softad"])["softad"]
        assert table.iloc[:2].tolist() == pytest.approx([0, 0], abs=1e-9)
        assert table.iloc[2] > 0.05

    def test_without_symmetry_it_tends_to_erm_as_theta_falls(self):
        points = np.array([0.0, 0.0, 1.5])
        table = collapse.distance_to_erm(points, [0.2, -2.0, -100.0], ["softad"])["softad"]
        assert table.iloc[0] > table.iloc[1] > 0.005
        assert table.iloc[2] <= 0.001  # a point of the grid
