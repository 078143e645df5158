"""The minimiser of a pointwise criterion by independent means: closed forms, brute force, sampling."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from softadlib._validation import UserError
from softadlib.data import synthetic
from softadlib.experiments.cliff import figures as cliff_figures
from softadlib.experiments.cliff import minimiser

ETAS = np.array([0.55, 0.7, 0.9, 0.99])


@pytest.mark.parametrize("method", minimiser.POINTWISE)
def test_below_ln2_the_likelier_class_and_above_it_the_other(method):
    for theta in (0.01, 0.3, 0.65):
        assert (minimiser.minimiser(method, ETAS, theta) > 0.5).all()
        assert (minimiser.minimiser(method, 1 - ETAS, theta) < 0.5).all()
    for theta in (0.72, 1.0, 2.0):
        assert (minimiser.minimiser(method, ETAS, theta) < 0.5).all()
        assert (minimiser.minimiser(method, 1 - ETAS, theta) > 0.5).all()
    at = minimiser.minimiser(method, ETAS, math.log(2))
    assert at == pytest.approx(np.full(4, 0.5), abs=1e-4)


@pytest.mark.parametrize("method", minimiser.POINTWISE)
@pytest.mark.parametrize("theta", [0.05, 0.5, 1.5])
def test_a_sure_class_is_held_at_loss_theta(method, theta):
    p = minimiser.minimiser(method, [1.0, 0.0], theta)
    assert p == pytest.approx([math.exp(-theta), 1 - math.exp(-theta)], abs=1e-7)


def test_iflood_closed_form():
    """Between the kinks at 1 − e^−θ and e^−θ it is cross-entropy, least at p = η."""
    low, high = 1 - math.exp(-0.3), math.exp(-0.3)
    expected = np.clip(ETAS, low, high)
    assert minimiser.minimiser("iflood", ETAS, 0.3) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", minimiser.POINTWISE)
@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
def test_no_probability_does_better(method, sigma):
    """Also with two valleys, above ln 2: against two million probabilities, evenly spaced."""
    p = np.linspace(1e-6, 1 - 1e-6, 2_000_001)
    for eta, theta in [(0.6, 0.4), (0.6, 0.8), (0.52, 1.4), (0.95, 2.5)]:
        x = {own: (-np.log(q) - theta) / sigma for own, q in ((True, p), (False, 1 - p))}
        cost = {own: np.abs(v) if method == "iflood" else np.sqrt(1 + v**2) for own, v in x.items()}
        best = p[(eta * cost[True] + (1 - eta) * cost[False]).argmin()]
        found = minimiser.minimiser(method, [eta], theta, sigma)
        assert found == pytest.approx([best], abs=2e-5)


def test_outcome_steps_from_one_minus_the_bayes_error_to_it():
    eta = np.array([0.0, 0.1, 0.8, 1.0])
    table = minimiser.outcome("softad", eta, [0.2, math.log(2), 1.0])
    assert table["acc_test"].to_numpy() == pytest.approx([0.925, 0.5, 0.075])
    p = minimiser.minimiser("softad", eta, 0.2)
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
        assert minimiser.multiclass_minimiser(eta, theta) == pytest.approx(best, abs=3e-3)


def test_two_of_ten_tie_above_ln2_and_all_ten_turn_above_ln10():
    pair, spread = [0.7, 0.3] + [0.0] * 8, [0.91] + [0.01] * 9
    assert minimiser.margin(pair, 0.6, starts=4) > 0.01
    assert minimiser.margin(pair, 1.0, starts=4) == pytest.approx(0, abs=1e-5)
    assert minimiser.margin(spread, 2.0, starts=4) > 0.01
    assert minimiser.margin(spread, 2.6, starts=4) < -0.01


def rows_of(accuracy, dataset="gaussian", method="softad"):
    """{θ: accuracy of each trial}."""
    return pd.DataFrame(
        [{"dataset": dataset, "method": method, "label_noise": 0.0, "trial": t, "knob": theta,
          "epoch": 9, "acc_test": a}
         for theta, accuracies in accuracy.items() for t, a in enumerate(accuracies)]
    )  # fmt: skip


def test_drops_take_the_neighbours_of_ln2_and_pair_trials():
    known = {0.5: [1.0, 1.0], 0.6: [0.9, 0.8], 0.7: [0.2, 0.3], 1.0: [0.0, 0.0]}
    sets = [
        rows_of(known),
        rows_of(known, "digits", "flooding"),
        rows_of(known, "digits", "iflood"),
    ]
    sets += [rows_of({0.1: [1.0], 0.5: [1.0]}, "spiral"), rows_of(known, method="sam")]
    table = minimiser.accuracy_drops(pd.concat(sets, ignore_index=True))
    assert table["dataset"].tolist() == ["gaussian", "digits", "digits"]
    assert table["method"].tolist() == ["SoftAD", "iFlood", "Flooding"]
    line = table.iloc[0]
    assert (line["θ below"], line["θ above"], line["n"]) == (0.6, 0.7, 2)
    assert line[["accuracy", "there", "drop"]].tolist() == pytest.approx([0.85, 0.25, 0.6])
    assert (line["low"], line["high"]) == pytest.approx((0.6 - 12.7062 * 0.1, 0.6 + 12.7062 * 0.1))
    assert minimiser.accuracy_drops(rows_of({0.1: [1.0]})).empty


def test_bad_input_is_one_line():
    for bad in (
        lambda: minimiser.minimiser("flooding", [0.5], 0.1),
        lambda: minimiser.minimiser("softad", [1.2], 0.1),
        lambda: minimiser.minimiser("softad", [math.nan], 0.1),
        lambda: synthetic.posterior("digits", np.zeros((2, 2))),
        lambda: minimiser.multiclass_minimiser([0.5, 0.6], 0.1),
    ):
        with pytest.raises(UserError) as error:
            bad()
        assert "\n" not in str(error.value)


def test_pictures_mark_ln2_and_ln_k_and_draw_means():
    known = {0.5: [1.0, 0.8], 1.0: [0.1, 0.3]}
    both = {"gaussian": rows_of(known), "digits": rows_of(known, "digits")}
    tables = {d: r.assign(loss_test=r["acc_test"]) for d, r in both.items()}
    line = pd.DataFrame({"acc_test": [1.0, 0.0], "loss_test": [0.5, 1.0]}, index=[0.5, 1.0])
    fig = cliff_figures.through(
        tables, {"gaussian": 2, "digits": 10}, {"gaussian": line}, ["softad"]
    )
    accuracy = fig.axes[:2]
    for ax, ends in zip(accuracy, ([math.log(2)], [math.log(2), math.log(10)])):
        dotted = [float(one.get_xdata()[0]) for one in ax.lines if one.get_linestyle() == ":"]
        assert dotted == pytest.approx(ends)
        (mean,) = [one for one in ax.lines if one.get_marker() == "o"]
        assert mean.get_ydata() == pytest.approx([0.9, 0.2])
    grey = [[one for one in ax.lines if one.get_linewidth() == 5] for ax in accuracy]
    assert [len(some) for some in grey] == [1, 0]
    plt.close(fig)


def test_the_sentences_turn_round_with_the_falls():
    line = {"dataset": "gaussian", "method": "SoftAD", "θ below": 0.68, "θ above": 0.71, "n": 3}
    fall = {"accuracy": 0.95, "there": 0.05, "drop": 0.9, "low": 0.8, "high": 1.0}
    none = {"accuracy": 0.95, "there": 0.94, "drop": 0.01, "low": -0.1, "high": 0.12}
    falls = pd.DataFrame([line | fall, line | none])
    first, second = minimiser.readings(falls)
    assert (
        "0.95 at θ = 0.68, 0.05 at 0.71; a fall of 0.90 [0.80, 1.00], n = 3: apart from zero"
        in first
    )
    assert "0.94 at 0.71; a fall of 0.01 [-0.10, 0.12], n = 3: zero is within" in second
