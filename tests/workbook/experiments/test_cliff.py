"""The minimiser of a pointwise criterion by independent means: closed forms, brute force, sampling."""

import math

import numpy as np
import pytest

from softadlib.workbook.data import synthetic
from softadlib.workbook.experiments import cliff

ETAS = np.array([0.55, 0.7, 0.9, 0.99])


@pytest.mark.parametrize("method", cliff.POINTWISE)
def test_below_ln2_the_likelier_class_and_above_it_the_other(method):
    for theta in (0.01, 0.3, 0.65):
        assert (cliff.minimiser(method, ETAS, theta) > 0.5).all()
        assert (cliff.minimiser(method, 1 - ETAS, theta) < 0.5).all()
    for theta in (0.72, 1.0, 2.0):
        assert (cliff.minimiser(method, ETAS, theta) < 0.5).all()
        assert (cliff.minimiser(method, 1 - ETAS, theta) > 0.5).all()
    at = cliff.minimiser(method, ETAS, math.log(2))
    assert at == pytest.approx(np.full(4, 0.5), abs=1e-4)


def test_iflood_closed_form():
    """Between the kinks at 1 − e^−θ and e^−θ it is cross-entropy, least at p = η."""
    low, high = 1 - math.exp(-0.3), math.exp(-0.3)
    expected = np.clip(ETAS, low, high)
    assert cliff.minimiser("iflood", ETAS, 0.3) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", cliff.POINTWISE)
@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
def test_no_probability_does_better(method, sigma):
    """Also with two valleys, above ln 2: against two million probabilities, evenly spaced."""
    p = np.linspace(1e-6, 1 - 1e-6, 2_000_001)
    for eta, theta in [(0.6, 0.4), (0.6, 0.8), (0.52, 1.4), (0.95, 2.5)]:
        x = {own: (-np.log(q) - theta) / sigma for own, q in ((True, p), (False, 1 - p))}
        cost = {own: np.abs(v) if method == "iflood" else np.sqrt(1 + v**2) for own, v in x.items()}
        best = p[(eta * cost[True] + (1 - eta) * cost[False]).argmin()]
        found = cliff.minimiser(method, [eta], theta, sigma)
        assert found == pytest.approx([best], abs=2e-5)


def test_outcome_steps_from_one_minus_the_bayes_error_to_it():
    eta = np.array([0.0, 0.1, 0.8, 1.0])
    table = cliff.outcome("softad", eta, [0.2, math.log(2), 1.0])
    assert table["acc_test"].to_numpy() == pytest.approx([0.925, 0.5, 0.075])
    p = cliff.minimiser("softad", eta, 0.2)
    loss = -(eta * np.log(p) + (1 - eta) * np.log(1 - p)).mean()
    assert table.loc[0.2, "loss_test"] == pytest.approx(loss)


@pytest.mark.parametrize("dataset", ["gaussian", "spiral", "sinusoid"])
def test_posteriors_are_calibrated_on_drawn_data(dataset):
    """Among points where P(class 1 | x) is about p, a share p is of class 1."""
    x, y = synthetic.SYNTHETIC[dataset](3000, 0.0, np.random.default_rng(3))
    eta = synthetic.posterior(dataset, x, curve=1500)
    assert eta[y == 1].mean() > 0.8
    assert eta[y == 0].mean() < 0.2
    for low, high in ((0, 0.05), (0.05, 0.35), (0.35, 0.65), (0.65, 0.95), (0.95, 1.0001)):
        inside = (low <= eta) & (eta < high)
        spread = math.sqrt(max((eta[inside] * (1 - eta[inside])).sum(), 1e-12))
        assert abs((y[inside] - eta[inside]).sum()) <= 4 * spread + 1e-3


def test_many_classes_by_brute_force_on_three():
    grid = np.linspace(0.002, 0.996, 498)
    a, b = np.meshgrid(grid, grid)
    p = np.stack([a, b, 1 - a - b])
    p = p[:, p[2] > 1e-3]
    for eta, theta in [((0.6, 0.3, 0.1), 0.5), ((0.6, 0.3, 0.1), 0.9), ((0.5, 0.3, 0.2), 1.3)]:
        x = -np.log(p) - theta
        best = p[:, (np.array(eta) @ np.sqrt(1 + x**2)).argmin()]
        assert cliff.multiclass_minimiser(eta, theta) == pytest.approx(best, abs=3e-3)


def test_two_of_ten_tie_above_ln2_and_all_ten_turn_above_ln10():
    pair, spread = [0.7, 0.3] + [0.0] * 8, [0.91] + [0.01] * 9
    assert cliff.margin(pair, 0.6, starts=4) > 0.01
    assert cliff.margin(pair, 1.0, starts=4) == pytest.approx(0, abs=1e-5)
    assert cliff.margin(spread, 2.0, starts=4) > 0.01
    assert cliff.margin(spread, 2.6, starts=4) < -0.01
