"""Falling through θ: the flow against closed forms, the escape time against the flow."""

import numpy as np
import pytest

from softadlib.workbook.experiments import falling


@pytest.mark.parametrize("theta", [0.05, 0.35, 0.6])
def test_a_small_loss_grows_as_derived(theta):
    """For ℓ ≪ θ: 1/ℓ(t) = 1/ℓ₀ − |φ(−θ)| t, held up to half of the escape time."""
    start = 1e-6
    weight = theta / np.sqrt(1 + theta**2)
    times = np.linspace(0, 0.5 / (start * weight), 9)
    assert falling.climb(start, theta, times) == pytest.approx(
        1 / (1 / start - weight * times), rel=1e-3
    )


def test_the_escape_time_is_when_the_loss_is_back():
    for theta, start in ((0.05, 1e-4), (0.35, 1e-4)):
        end = falling.escape_time(start, theta)
        early, late = falling.climb(start, theta, np.array([0, 0.9, 1.1]) * end)[1:]
        assert early < theta / 10
        assert late > 0.95 * theta


def test_the_flow_ends_at_theta_and_stays():
    assert falling.climb(0.01, 0.2, np.array([0.0, 1e5]))[-1] == pytest.approx(0.2, rel=1e-6)


def test_on_digits_sgd_falls_through_theta_and_adam_stays():
    sgd = falling.train_digits(0.05, [10]).iloc[0]
    assert sgd["median"] < 0.05 / 1000
    adam = falling.train_digits(0.05, [10], optimizer="adam", lr=1e-3).iloc[0]
    assert 0.05 / 3 < adam["median"] < 0.05 * 2
    assert adam["held"] > 0.3 > sgd["held"]


@pytest.mark.filterwarnings("ignore::softadlib.CalibrationWarning")
def test_held_are_the_losses_above_half_of_theta():
    """With hardly a step all losses lie around ln 10 = 2.3, above 1.5 and most of them below 3."""
    line = falling.train_digits(3.0, [1], lr=1e-9).iloc[0]
    assert line["held"] == 1
    assert line["median"] == pytest.approx(np.log(10), abs=0.1)
