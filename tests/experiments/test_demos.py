"""Closed forms, hand-made numbers and a numpy gradient descent, against the experiments on the plane."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.workspace import make_home
from hypothesis import given, settings
from hypothesis import strategies as st

from softadlib._validation import UserError
from softadlib.experiments import linear, mean_2d, pointwise, quadratic
from softadlib.models import build
from softadlib.results.schema import COLUMNS

SEED = 22993514079364
SMALL = (100, 100, 50)
unhurried = settings(deadline=None)  # the first call of torch is slow
finite = st.floats(-50, 50)
scale = st.floats(0.05, 5)
points = st.lists(st.tuples(finite, finite), min_size=1, max_size=6).map(np.array)


def phi(u):
    return u / np.sqrt(1 + u**2)


class TestSmoothedAbs:
    @given(finite, scale)
    @unhurried
    def test_both_conventions_are_their_formula(self, x, sigma):
        rho = math.sqrt(1 + (x / sigma) ** 2) - 1
        x = np.array([x])
        np.testing.assert_allclose(pointwise.smoothed_abs(x, sigma), sigma**2 * rho, atol=1e-9)
        np.testing.assert_allclose(pointwise.smoothed_abs(x, sigma, "text"), sigma * rho, atol=1e-9)

    def test_limits(self):
        x = np.linspace(-1, 1, 9)
        np.testing.assert_allclose(pointwise.smoothed_abs(x, 1e4), x**2 / 2, atol=1e-8)
        np.testing.assert_allclose(pointwise.smoothed_abs(x, 1e-6, "text"), np.abs(x), atol=1e-5)

    def test_unknown_scale_names_the_choices(self):
        with pytest.raises(ValueError, match="code, text"):
            pointwise.smoothed_abs(np.ones(1), 1.0, "paper")


class TestGradientWeights:
    losses = torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64)

    @pytest.mark.parametrize(
        ("method", "expected"),
        [
            ("erm", [1, 1, 1, 1]),
            ("flooding", [1, 1, 1, 1]),  # the mean, 1.75, lies above θ = 1
            ("iflood", [-1, 0, 1, 1]),
            ("softad", [-1 / math.sqrt(2), 0, 1 / math.sqrt(2), 3 / math.sqrt(10)]),
        ],
    )
    def test_by_hand(self, method, expected):
        weights = pointwise.gradient_weights(method, self.losses, 1.0)
        np.testing.assert_allclose(weights, expected, atol=1e-15)

    def test_flooding_turns_the_whole_batch(self):
        assert pointwise.gradient_weights("flooding", self.losses, 2.0).tolist() == [-1, -1, -1, -1]

    def test_code_multiplies_by_sigma(self):
        text, code = (
            pointwise.gradient_weights("softad", self.losses, 1.0, 0.25, s)
            for s in ("text", "code")
        )
        np.testing.assert_allclose(code, 0.25 * text)


class TestQuadratic:
    def test_values(self):
        assert quadratic.quadratic(np.array([-2.0, 0.0, 1.0])).tolist() == [2, 0, 0.5]

    def test_transformed_gradient_by_hand(self):
        # f(1.25) = 0.78125, (f − 0.5)/1.125 = 0.25
        x = np.array([1.25, -1.25])
        expected = 1.25 * 0.25 / math.sqrt(1.0625)
        soft = quadratic.transformed_gradient("softad", x, 0.5, 1.125)
        np.testing.assert_allclose(soft, [expected, -expected])
        assert quadratic.transformed_gradient("flooding", x, 0.5, 1.125).tolist() == [1.25, -1.25]
        assert quadratic.transformed_gradient("flooding", x, 1.0, 1.125).tolist() == [-1.25, 1.25]
        assert quadratic.transformed_gradient("erm", x, 0.5, 1.125).tolist() == [1.25, -1.25]

    @given(st.floats(-3, 3), st.floats(-2, 2), scale)
    @unhurried
    def test_softad_never_exceeds_flooding(self, x, theta, sigma):
        x = np.array([x])
        soft, hard = (
            quadratic.transformed_gradient(m, x, theta, sigma) for m in ("softad", "flooding")
        )
        assert np.abs(soft) <= np.abs(hard) + 1e-12
        assert soft * hard >= 0

    def test_descent_is_geometric(self):
        path = quadratic.descend("erm", 2.0, 1.0, 0.1, 0.1, 30)
        np.testing.assert_allclose(path, 2 * 0.9 ** np.arange(31))

    def test_flooding_climbs_below_the_level_and_falls_above(self):
        assert quadratic.descend("flooding", 1.0, 2.0, 1.0, 0.1, 1).tolist() == [1.0, 1.1]
        assert quadratic.descend("flooding", 3.0, 2.0, 1.0, 0.1, 1).tolist() == [3.0, 2.7]

    @given(st.floats(0.1, 2), st.floats(-2, 2).filter(lambda x: abs(x) > 0.1))
    @settings(max_examples=8, deadline=None)
    def test_softad_settles_on_the_level_where_the_step_is_small(self, theta, start):
        path = quadratic.descend("softad", start, theta, 1.0, 0.2, 400)  # αθ < σ
        assert quadratic.quadratic(path[-1]) == pytest.approx(theta, abs=1e-3)

    def test_softad_alternates_where_the_step_is_large(self):
        last = quadratic.quadratic(
            quadratic.descend("softad", 0.5, 2.0, 0.1, 0.1, 200)[-2:]
        )  # αθ = 2σ
        assert last.min() < 1.9 < 2.1 < last.max()


class TestMeanUpdates:
    def test_least_risk_of_the_figure(self):
        cloud = np.random.default_rng(SEED).multivariate_normal(np.zeros(2), 8 * np.eye(2), size=8)
        least = mean_2d.squared_distances(cloud.mean(axis=0), cloud).mean()
        assert least == pytest.approx(9.374522601254057, abs=1e-12)

    def test_by_hand(self):
        cloud = np.array([[3.0, 0.0], [0.0, 1.0]])  # losses 9 and 1 at the origin, mean 5
        w = np.zeros(2)
        assert mean_2d.squared_distances(w, cloud).tolist() == [9, 1]
        flood = mean_2d.mean_updates("flooding", w, cloud, 4.0, 0.5)
        assert flood.tolist() == [[1.5, 0], [0, 0.5]]
        assert mean_2d.mean_updates("iflood", w, cloud, 4.0, 0.5).tolist() == [[1.5, 0], [0, -0.5]]

    @given(points, finite, finite, st.floats(0, 100))
    @unhurried
    def test_softad_is_its_formula(self, cloud, a, b, theta):
        w = np.array([a, b])
        losses = ((w - cloud) ** 2).sum(axis=1)
        expected = -0.75 * phi(losses - theta)[:, None] * (w - cloud)
        np.testing.assert_allclose(
            mean_2d.mean_updates("softad", w, cloud, theta, 0.75), expected, atol=1e-9
        )

    @given(points, finite, finite, st.floats(0, 100))
    @unhurried
    def test_flooding_points_along_the_line_to_the_mean(self, cloud, a, b, theta):
        w = np.array([a, b])
        update = mean_2d.mean_updates("flooding", w, cloud, theta, 0.75).mean(axis=0)
        way = np.sign(((w - cloud) ** 2).sum(axis=1).mean() - theta) * (cloud.mean(axis=0) - w)
        np.testing.assert_allclose(update, 0.75 * way, atol=1e-9)


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
            "gaussian", [method], theta=0.25, seed=SEED, sizes=SMALL, every=200, dtype=torch.float32
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

    def test_rows_and_columns(self):
        rows = linear.linear_rows(
            "gaussian", ["softad", "erm"], theta=0.25, seed=1, sizes=SMALL, epochs=4, every=2
        )
        assert tuple(rows.columns) == COLUMNS
        assert rows["epoch"].tolist() == [0, 2, 4, 0, 2, 4]
        assert rows["method"].tolist() == ["softad"] * 3 + ["erm"] * 3
        assert rows["knob"].tolist()[:3] == [0.25] * 3
        assert rows["knob"][3:].isna().all()
        first = rows[rows["epoch"] == 0]
        assert first["loss_test"].nunique() == 1, "all methods start from the same weights"

    def test_flooding_is_erm_where_the_loss_stays_above_the_level(self):
        rows = linear.linear_rows(
            "sinusoid", ["erm", "flooding"], theta=0.25, seed=SEED, sizes=SMALL, every=50
        )
        erm, flooding = (rows.loc[rows["method"] == m, "loss_train"] for m in ("erm", "flooding"))
        assert erm.min() > 0.25
        assert erm.tolist() == flooding.tolist()

    def test_unknown_method_names_the_choices(self):
        with pytest.raises(UserError, match=r"'ishida' unknown; choose from erm, flooding"):
            linear.linear_rows("gaussian", ["ishida"], theta=0.1, seed=1, sizes=SMALL, epochs=1)


class TestLinearSensitivity:
    def test_every_cell_once(self):
        runs = linear.linear_sensitivity(
            "softad", [0.1, 0.2], [0.5, 1.0, 2.0], ("code", "text"),
            seed=1, repeats=2, sizes=SMALL, epochs=1,
        )  # fmt: skip
        assert len(runs) == 2 * 3 * 2 * 2
        assert not runs.duplicated(["method", "scale", "theta", "sigma", "repeat"]).any()
        assert runs["loss_test"].nunique() > 12 / 2, "cells have data of their own"

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

    def test_accuracy_falls_off_at_ln_2_for_softad_only(self):
        cliff = {
            method: linear.linear_sensitivity(
                method, [0.6, 0.85], [0.2], ("text",), seed=1, repeats=3, sizes=(100, 2, 1000)
            )
            .groupby("theta")["acc_test"]
            .mean()
            for method in ("softad", "flooding")
        }
        assert cliff["softad"][0.6] > 0.95
        assert cliff["softad"][0.85] < 0.05
        assert cliff["flooding"][0.85] > 0.1

    def test_a_grid_is_trained_once_and_then_read(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path)))
        grid = {"dataset": "gaussian", "seed": 1, "repeats": 2, "sizes": SMALL, "epochs": 1}
        trained, origin = linear.stored_sensitivity("fig12", [0.1, 0.2], [0.5, 1.0], **grid)
        assert len(trained) == 2 * 2 + 2 * 2 * 2 * 2
        assert origin == "20 runs, trained here and stored in outputs/fig12/gaussian.parquet"
        monkeypatch.setattr(linear, "linear_sensitivity", lambda *_, **__: trained[:1])
        read, origin = linear.stored_sensitivity("fig12", [0.1, 0.2], [0.5, 1.0], **grid, stack=3)
        pd.testing.assert_frame_equal(read, trained)
        assert origin == "20 runs, read from outputs/fig12/gaussian.parquet"
        for changed in ({"repeats": 3}, {"seed": 2}, {"epochs": 2}):
            other = linear.stored_sensitivity("fig12", [0.1, 0.2], [0.5, 1.0], **grid | changed)
            assert "trained here; outputs/fig12/gaussian.parquet keeps another grid" in other[1]
        stored = tmp_path / "outputs/fig12/gaussian.parquet"
        stored.write_bytes(stored.read_bytes()[:99])
        with pytest.raises(UserError, match=r"gaussian\.parquet is broken.*delete it"):
            linear.stored_sensitivity("fig12", [0.1, 0.2], [0.5, 1.0], **grid)

    def test_readings_follow_the_cells(self):
        def runs(scale, *cells):
            names = ["sigma", "theta", "acc_test", "loss_test"]
            method = "softad" if scale else "flooding"
            return pd.DataFrame(cells, columns=names).assign(method=method, scale=scale or "code")

        flooding = runs("", (1, 0.1, 0.95, 0.1), (1, 0.5, 0.85, 0.6), (1, 0.9, 0.4, 0.5))
        (sentence,) = linear.sensitivity_readings(flooding)
        assert sentence == (
            "Flooding: mean accuracy first falls below 90% at θ = 0.50 and below one half at θ = 0.90; "
            "at the largest θ it is 40.0%. Mean loss rises in 50% of the steps of θ."
        )
        soft = runs("text", (1, 0.1, 0.99, 0.1), (1, 0.9, 0.02, 0.5), (2, 0.1, 0.95, 0.1),
                    (2, 0.9, 0.6, 0.2), (4, 0.1, 0.7, 0.1), (4, 0.9, 0.3, 0.05))  # fmt: skip
        stuck, falls = linear.sensitivity_readings(soft)
        assert stuck == ("SoftAD, text: at 1 of 3 values of σ, 4, no θ reaches an accuracy of 90%.")
        assert falls == (
            "SoftAD, text: mean accuracy first falls below 90% at θ = 0.90 and below one half at θ = "
            "0.90 to no value; at the largest θ it is 2.0% to 60.0%. Mean loss rises in 67% of the steps of θ."
        )
