"""Figures 1 to 3 against closed forms and numbers by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softadlib.workbook.experiments import toy

SEED = 22993514079364
unhurried = settings(deadline=None)  # the first call of torch is slow
finite = st.floats(-50, 50)
scale = st.floats(0.05, 5)
points = st.lists(st.tuples(finite, finite), min_size=1, max_size=6).map(np.array)


def phi(u):
    return u / np.sqrt(1 + u**2)


class TestGradientWeights:
    losses = np.array([0.0, 1.0, 2.0, 4.0])

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
        weights = toy.gradient_weights(method, self.losses, 1.0)
        np.testing.assert_allclose(weights, expected, atol=1e-15)

    def test_flooding_turns_the_whole_batch(self):
        assert toy.gradient_weights("flooding", self.losses, 2.0).tolist() == [-1, -1, -1, -1]

    def test_code_multiplies_by_sigma(self):
        text, code = (
            toy.gradient_weights("softad", self.losses, 1.0, 0.25, s) for s in ("text", "code")
        )
        np.testing.assert_allclose(code, 0.25 * text)


class TestQuadratic:
    def test_transformed_gradient_by_hand(self):
        # f(1.25) = 0.78125, (f − 0.5)/1.125 = 0.25
        x = np.array([1.25, -1.25])
        expected = 1.25 * 0.25 / math.sqrt(1.0625)
        soft = toy.transformed_gradient("softad", x, 0.5, 1.125)
        np.testing.assert_allclose(soft, [expected, -expected])
        assert toy.transformed_gradient("flooding", x, 0.5, 1.125).tolist() == [1.25, -1.25]
        assert toy.transformed_gradient("flooding", x, 1.0, 1.125).tolist() == [-1.25, 1.25]
        assert toy.transformed_gradient("erm", x, 0.5, 1.125).tolist() == [1.25, -1.25]

    def test_descent_is_geometric(self):
        path = toy.descend("erm", 2.0, 1.0, 0.1, 0.1, 30)
        np.testing.assert_allclose(path, 2 * 0.9 ** np.arange(31))

    @given(st.floats(0.1, 2), st.floats(-2, 2).filter(lambda x: abs(x) > 0.1))
    @settings(max_examples=3, deadline=None)
    def test_softad_settles_on_the_level_where_the_step_is_small(self, theta, start):
        path = toy.descend("softad", start, theta, 1.0, 0.2, 400)  # αθ < σ
        assert toy.quadratic(path[-1]) == pytest.approx(theta, abs=1e-3)


class TestQuadraticPanels:
    x = np.array([-2.0, 0.5, 1.5])  # f(x) = 2, 0.125, 1.125

    @pytest.fixture
    def panels(self):
        return toy.quadratic_panels(self.x, 0.5, 1.0, [0.1, 1.5], [0.25, 2.0])

    def test_first_panel_is_the_function(self, panels):
        assert panels.query("panel == 'f'")["y"].tolist() == [2, 0.125, 1.125]

    @pytest.mark.parametrize(
        ("panel", "value", "expected"),
        [
            ("theta", 0.1, [-2, 0.5, 1.5]),  # every f(x) is above
            ("theta", 1.5, [-2, -0.5, -1.5]),  # 0.125 and 1.125 lie below
            ("sigma", 0.25, [-2, -0.5, 1.5]),  # θ = 0.5
            ("sigma", 2.0, [-2, -0.5, 1.5]),
        ],
    )
    def test_sign_curves_by_hand(self, panels, panel, value, expected):
        curve = panels.query("panel == @panel and method == 'flooding' and value == @value")
        assert curve["y"].tolist() == expected

    def test_soft_curves_by_hand(self, panels):
        curve = panels.query("panel == 'sigma' and method == 'softad' and value == 2")
        expected = phi((np.array([2, 0.125, 1.125]) - 0.5) / 2) * self.x
        np.testing.assert_allclose(curve["y"], expected)


class TestPlaneProblem:
    def test_of_the_paper(self):
        scene = toy.plane_problem(SEED)
        assert scene.points.shape == (8, 2)
        assert scene.theta == pytest.approx(1.5 * 9.374522601254057, abs=1e-12)
        assert scene.risk(scene.minimiser) == pytest.approx(9.374522601254057, abs=1e-12)
        assert scene.risk(scene.candidates["red"]) > scene.theta  # Flooding descends here
        assert scene.risk(scene.candidates["green"]) < scene.theta  # and ascends here


class TestMeanUpdates:
    def test_by_hand(self):
        cloud = np.array([[3.0, 0.0], [0.0, 1.0]])  # losses 9 and 1 at the origin, mean 5
        w = np.zeros(2)
        assert toy.squared_distances(w, cloud).tolist() == [9, 1]
        flood = toy.mean_updates("flooding", w, cloud, 4.0, 0.5)
        assert flood.tolist() == [[1.5, 0], [0, 0.5]]
        assert toy.mean_updates("iflood", w, cloud, 4.0, 0.5).tolist() == [[1.5, 0], [0, -0.5]]

    @given(points, finite, finite, st.floats(0, 100))
    @unhurried
    def test_softad_is_its_formula(self, cloud, a, b, theta):
        w = np.array([a, b])
        losses = ((w - cloud) ** 2).sum(axis=1)
        expected = -0.75 * phi(losses - theta)[:, None] * (w - cloud)
        found = toy.mean_updates("softad", w, cloud, theta, 0.75)
        np.testing.assert_allclose(found, expected, atol=1e-9)
