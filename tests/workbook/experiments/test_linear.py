"""The linear classifier of Figures 11 and 12 against the authors' numbers and a numpy gradient descent."""

import numpy as np
import pytest

from softadlib.models import build
from softadlib.workbook.experiments import linear

SEED = 22993514079364
SMALL = (100, 100, 50)


def phi(u):
    return u / np.sqrt(1 + u**2)


def probabilities(x, weight, bias):
    logits = x @ weight.T + bias
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def cross_entropies(x, y, weight, bias):
    return -np.log(probabilities(x, weight, bias)[np.arange(len(y)), y])


def numpy_descent(x, y, weight, bias, weigh, steps, lr=0.1):
    """Full-batch descent of softmax regression; `weigh` turns losses into gradient weights."""
    for _ in range(steps):
        weights = weigh(cross_entropies(x, y, weight, bias))[:, None]
        error = weights * (probabilities(x, weight, bias) - np.eye(2)[y]) / len(y)
        weight, bias = weight - lr * error.T @ x, bias - lr * error.sum(axis=0)
    return weight, bias


def start_of(seed):
    net = build("linear", (2,), 2, seed).double()
    return net.weight.detach().numpy(), net.bias.detach().numpy()


def gaussian_pair(rng):
    x = [rng.multivariate_normal([k, k], np.eye(2) / 10, size=50) for k in (0, 1)]
    return np.vstack(x).astype(np.float32).astype(float), np.repeat([0, 1], 50)


class TestLinearRows:
    @pytest.mark.parametrize(
        ("method", "expected"),
        [("erm", 0.15544981), ("flooding", 0.25065106), ("softad", 0.36922014)],
    )
    def test_final_losses_stored_by_the_authors(self, method, expected):
        rows = linear.linear_rows(
            "gaussian", [method], theta=0.25, seed=SEED, sizes=SMALL, every=200
        )
        assert rows["loss_train"].iloc[-1] == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize(
        ("method", "weigh"),
        [
            ("erm", np.ones_like),
            ("flooding", lambda losses: np.sign(losses.mean() - 0.5) * np.ones_like(losses)),
            ("softad", lambda losses: 0.5 * phi((losses - 0.5) / 0.5)),
        ],
    )
    def test_agrees_with_numpy(self, method, weigh):
        rows = linear.linear_rows(
            "gaussian", [method], theta=0.5, sigma=0.5, seed=3, sizes=SMALL, epochs=40, every=40
        )
        x, y = gaussian_pair(np.random.default_rng(3))
        trained = numpy_descent(x, y, *start_of(3), weigh, 40)
        expected = cross_entropies(x, y, *trained).mean()
        assert rows["loss_train"].iloc[-1] == pytest.approx(expected, rel=1e-9)


class TestLinearSensitivity:
    def test_conventions_agree_at_one_and_nowhere_else(self):
        runs = linear.linear_sensitivity(
            "softad", [0.1, 0.4], [0.5, 1.0], ("code", "text"), seed=1, sizes=SMALL, epochs=10
        )
        wide = runs.pivot(index=["theta", "sigma"], columns="scale", values="loss_test")
        same = wide["code"] == wide["text"]
        assert same.xs(1.0, level="sigma").all()
        assert not same.xs(0.5, level="sigma").any()

    def test_stacking_bounds_memory_not_results(self):
        few, many = (
            linear.linear_sensitivity(
                "flooding", [0.1, 0.3, 0.5], seed=1, repeats=3, sizes=SMALL, epochs=10, stack=stack
            )
            for stack in (4, 100)
        )
        assert few["theta"].tolist() == many["theta"].tolist()
        np.testing.assert_allclose(few["loss_test"], many["loss_test"], rtol=1e-12)

    def test_a_cell_agrees_with_numpy(self):
        runs = linear.linear_sensitivity(
            "softad", [0.1, 0.4], [0.5, 2.0], seed=7, repeats=2, sizes=(100, 2, 100), epochs=30
        )
        cell = runs.query("theta == 0.4 and sigma == 0.5 and repeat == 1")["loss_test"].item()
        sequence = np.random.SeedSequence(7, spawn_key=(1, 0, 1))
        rng = np.random.default_rng(sequence)
        x, y = gaussian_pair(rng)
        for k in (0, 1):  # the two validation points
            rng.multivariate_normal([k, k], np.eye(2) / 10, size=1)
        x_test, y_test = gaussian_pair(rng)
        start = start_of(int(sequence.generate_state(1)[0]))
        trained = numpy_descent(x, y, *start, lambda losses: 0.5 * phi((losses - 0.4) / 0.5), 30)
        expected = cross_entropies(x_test, y_test, *trained).mean()
        assert cell == pytest.approx(expected, rel=1e-9)

    def test_accuracy_falls_off_at_ln_2(self):
        given = {"seed": 1, "sizes": (100, 2, 1000)}
        runs = linear.linear_sensitivity("softad", [0.6, 0.85], [0.2], ("text",), **given)
        below, above = runs["acc_test"]
        assert below > 0.95
        assert above < 0.05


@pytest.mark.parametrize("dataset", linear.STORED)
def test_stored_runs_are_those_of_a_training_today(dataset):
    """The first cell has its own data and weights; the others are trained the same way."""
    stored = linear.stored_sensitivity(dataset)
    case = {"seed": SEED, "dataset": dataset, "repeats": 1}
    again = linear.linear_sensitivity("softad", [0.05], [0.05], ("code", "text"), **case)
    both = again.merge(stored, on=["method", "scale", "theta", "sigma", "repeat"])
    assert len(both) == 2
    np.testing.assert_allclose(both["loss_test_x"], both["loss_test_y"], rtol=1e-9)
