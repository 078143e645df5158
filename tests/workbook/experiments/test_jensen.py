"""Jensen's bias against quadrature, numbers by hand and draws."""

import numpy as np
import pytest
from scipy import integrate, stats

from softadlib.workbook.experiments import jensen

W = 0.8
THETA = 1.0  # above R(W) = 0.82: Flooding ascends there


def bound(w, theta):
    """E|½(w − Z)² − θ| by adaptive quadrature, its kinks named."""
    s = np.sqrt(2 * theta)
    value, _ = integrate.quad(
        lambda z: abs((w - z) ** 2 / 2 - theta) * stats.norm.pdf(z),
        -12,
        12,
        points=[w - s, w + s],
        limit=200,
    )
    return value


def test_flooding_by_hand():
    assert jensen.population_gradient("flooding", W, THETA) == -W
    assert jensen.population_gradient("flooding", W, 0.8) == W


@pytest.mark.parametrize("theta", [0.3, THETA, 2.5])
@pytest.mark.parametrize("w", [-1.5, 0.0, W])
def test_mean_of_the_signs_is_the_slope_of_the_bound(w, theta):
    h = 1e-4
    slope = (bound(w + h, theta) - bound(w - h, theta)) / (2 * h)
    assert jensen.population_gradient("iflood", w, theta) == pytest.approx(slope, abs=1e-6)


def test_softad_is_the_slope_of_its_objective():
    def objective(w):
        rho = lambda z: np.hypot(1, (w - z) ** 2 / 2 - THETA) - 1  # noqa: E731
        return integrate.quad(lambda z: rho(z) * stats.norm.pdf(z), -12, 12, limit=200)[0]

    slope = (objective(W + 1e-4) - objective(W - 1e-4)) / 2e-4
    assert jensen.population_gradient("softad", W, THETA) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize(
    ("method", "batch", "expected"),
    [
        ("flooding", 1, "iflood"),  # a batch of one: Flooding is iFlood
        ("iflood", 7, "iflood"),
        ("softad", 7, "softad"),  # unbiased at every size of the batch
    ],
)
def test_draws_agree_with_the_closed_form(method, batch, expected):
    drawn = jensen.drawn_gradient(method, W, THETA, batch, draws=40000, seed=0)
    half = drawn.high - drawn.mean
    exact = jensen.population_gradient(expected, W, THETA)
    assert abs(drawn.mean - exact) < 2 * half  # four standard errors
    assert half < 0.02


def test_flooding_is_biased_until_the_batch_is_large():
    exact = jensen.population_gradient("flooding", W, 2.0)
    one = jensen.drawn_gradient("flooding", W, 2.0, 1, draws=40000, seed=0)
    large = jensen.drawn_gradient("flooding", W, 2.0, 400, draws=400, seed=0)
    assert one.low > exact + 0.1
    assert large.mean == pytest.approx(exact, abs=0.01)
