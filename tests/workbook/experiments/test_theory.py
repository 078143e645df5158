"""Closed forms, numbers by hand and plain loops, against the propositions' algorithms and bounds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softadlib.workbook.experiments.theory.algorithms import (
    NormClipMomentum,
    onto_ball,
    simulate,
    subgradient_step,
)
from softadlib.workbook.experiments.theory.bounds import (
    compare_rates,
    confidence,
    l_ad,
    momentum_bounds,
    subgradient_bounds,
)
from softadlib.workbook.experiments.theory.problems import (
    Distances,
    SquaredDistances,
    cloud,
    hard_gradient,
    mean_gradient,
    soft_gradient,
    softad_value,
)
from softadlib.workbook.experiments.theory.prox import (
    envelope,
    hardest_iflood,
    least_envelope,
    moreau_prox,
)
from softadlib.workbook.experiments.theory.smoothness import steepest
from softadlib.workbook.experiments.theory.stationarity import iflood_rows, softad_rows, zeroth_rows
from softadlib.workbook.experiments.theory.zeroth import (
    directions,
    smoothed_gradient,
    smoothed_value,
    zeroth_gamma,
    zeroth_gradient,
)

PROBLEM = SquaredDistances(cloud(12, 2, 3), 2.0)
steps = st.integers(1, 10**6)
positive = st.floats(0.01, 100)


class TestLAD:
    def test_by_hand(self):
        assert l_ad(3.0, 2.0) == 5.0
        assert l_ad(3.0, 2.0, 0.25, "code") == 3.5
        assert l_ad(3.0, 2.0, 0.25, "text") == 14.0

    @pytest.mark.parametrize("scale", ["code", "text"])
    @pytest.mark.parametrize("sigma", [0.25, 1.0, 4.0])
    def test_no_pair_is_steeper(self, sigma, scale):
        limit = l_ad(PROBLEM.g2, 1.0, sigma, scale)
        soft = {"kind": "softad", "sigma": sigma, "scale": scale}
        ratios = steepest(PROBLEM, 0.5, [1e-6, 1e-3, 0.1, 1.0], 500, 0, **soft)
        assert 0 < ratios.max() <= limit

    def test_the_bound_is_not_idle(self):
        # one point at 0, σ = 1, θ = 1: d/dw φ(w²/2 − 1)w at w = √2 is w² = 2 + φ(0) = 2
        problem = SquaredDistances(np.zeros((1, 1)), 2**0.5)
        soft = mean_gradient(problem, np.array([[2**0.5], [2**0.5 - 1e-6]]), 1.0, "softad")
        assert float(np.diff(soft[:, 0])[0]) / -1e-6 == pytest.approx(2.0, abs=1e-5)
        assert l_ad(problem.g2, 1.0) == pytest.approx(3.0)


class TestBounds:
    def test_confidence_by_hand(self):
        # 3T/δ = e⁴: ln is 4, 10·4 + 4·2 + 1
        assert confidence(1, 3 / math.e**4) == pytest.approx(49)

    def test_the_coefficient_of_l_is_not_three_halves(self):
        one, none = (momentum_bounds(10**4, 0.0, L, 0.0, 0.1) for L in (1.0, 0.0))
        rate = (10**4) ** 0.25
        assert (one["corrected"] - none["corrected"]) * rate == pytest.approx(1.985)
        assert (one["stated"] - none["stated"]) * rate == pytest.approx(1.5)

    @given(steps, positive, positive)
    def test_corrected_is_equation_20_written_out(self, T, smoothness, g):
        b, a, c = 1 - 1 / math.sqrt(T), T**-0.75, confidence(T, 0.05)
        whole = (
            2.0 / (T * a)
            + a * smoothness / 2
            + 2 * b * g / ((1 - b) * T)
            + 2 * b * a * smoothness / (1 - b)
            + 2 * math.sqrt((1 - b) * g**2) * c
        )
        found = momentum_bounds(T, 2.0, smoothness, g, 0.05)
        assert found["corrected"] == pytest.approx(whole)

    def test_subgradient_bound_is_the_descent_inequality_at_its_step(self):
        T, drop, g2, l_star = 50, 0.7, 3.0, 2.0
        alpha = subgradient_step(T, drop, g2, l_star)
        assert alpha**2 == pytest.approx(drop / (T * l_star * g2))
        found = subgradient_bounds(T, drop, g2, l_star)
        assert found["corrected"] == pytest.approx(
            2 * (drop + l_star * g2 * T * alpha**2) / (T * alpha)
        )
        assert found["stated"] == pytest.approx(math.sqrt(2 * l_star * g2 * drop / T))


CONSTANTS = {"drop": 1.0, "l_loss": 1.0, "l_star": 1.0, "g2": 4.0}


class TestCompareRates:
    """Remark 5: both bounds on the square of the average norm."""

    def test_by_hand(self):
        # T = 16 and 3T/δ = e⁴, so C_δ = 49; T^(-1/4) = ½, L_AD = 5, G = 2, q = √(4/16) = ½
        delta = 48 / math.e**4
        (row,) = compare_rates([16], **CONSTANTS, delta=delta, form="stated").to_dict("records")
        assert row["softad"] == pytest.approx((0.5 * (1 + 1.5 * 5 + 2 * 2 * 50)) ** 2)
        assert row["iflood"] == pytest.approx(math.sqrt(2) / 2)
        assert row["trivial"] == 4
        (row,) = compare_rates([16], **CONSTANTS, delta=delta).to_dict("records")
        assert row["iflood"] == pytest.approx(2)


class TestNormClipMomentum:
    def test_by_hand(self):
        # T = 16: b = 3/4, α = 1/8, γ = 2; (6, 8) is clipped to (1.2, 1.6), M is a quarter of it
        method = NormClipMomentum(16, 1.0)
        w = method.step(np.zeros(2), np.array([6.0, 8.0]))
        np.testing.assert_allclose(method.momentum, [0.3, 0.4])
        np.testing.assert_allclose(w, [-0.075, -0.1])
        w = method.step(w, np.array([-0.9, -1.2]))  # M = ¾(0.3, 0.4) − ¼(0.9, 1.2) = 0
        np.testing.assert_allclose(method.momentum, [0, 0], atol=1e-16)

    def test_no_step_from_nothing(self):
        method = NormClipMomentum(4, 1.0)
        assert method.step(np.ones(3), np.zeros(3)).tolist() == [1, 1, 1]
        assert method.clip(np.zeros(3)).tolist() == [0, 0, 0]


class TestTransformedGradients:
    def test_by_hand(self):
        losses, gradients = np.array([1.0, 0.0, 0.25]), np.array([[2.0, 0], [0, 4.0], [1.0, 1.0]])
        soft = soft_gradient(losses, gradients, 0.25)
        np.testing.assert_allclose(soft[0], [2 * 0.6, 0])  # φ(3/4) = 3/5
        assert soft[2].tolist() == [0, 0]
        assert hard_gradient(losses, gradients, 0.25).tolist() == [[2, 0], [0, -4], [0, 0]]

    @given(st.floats(-2, 2), st.floats(-2, 2), st.floats(0, 2))
    def test_softads_gradient_is_the_slope_of_its_value(self, a, b, theta):
        w, h = np.array([a, b]), 1e-5
        shifts = h * np.eye(2)
        slope = softad_value(PROBLEM, w + shifts, theta) - softad_value(PROBLEM, w - shifts, theta)
        np.testing.assert_allclose(
            mean_gradient(PROBLEM, w, theta, "softad"), slope / (2 * h), atol=1e-8
        )


def one_dimensional_prox(w, theta):
    """argmin |v²/2 − θ| + (v − w)²: 2w inside, ±s on the kink, 2w/3 outside, s = √(2θ)."""
    s, size = math.sqrt(2 * theta), np.abs(w)
    kink = np.sign(w) * s
    return np.where(size <= s / 2, 2 * w, np.where(size <= 3 * s / 2, kink, 2 * w / 3))


class TestMoreauProx:
    line = SquaredDistances(np.zeros((1, 1)), 100.0)

    @given(st.floats(0.05, 5), st.floats(-1, 1))
    def test_closed_form_on_the_line(self, theta, shift):
        w = np.linspace(-4, 4, 41)[:, None] + shift
        v, error = moreau_prox(self.line, w, theta, 0.5, 1.0)
        assert (error <= 1e-4).all()
        off = np.abs(v - one_dimensional_prox(w, theta))[:, 0]
        assert (off <= error + 1e-12).all()

    def test_a_tolerance_below_rounding_is_refused(self):
        with pytest.raises(ArithmeticError, match="larger tol"):
            moreau_prox(self.line, np.array([[0.9]]), 0.5, 0.5, 1.0, tol=1e-12)

    def test_the_envelope_in_closed_form(self):
        # |w| ≤ s/2: F̄ = 2θ − w²; s/2 ≤ |w| ≤ 3s/2: θ + (w − s)²; s = 1 at θ = 1/2
        w = np.array([[0.2], [0.8], [1.2]])
        value, slope = envelope(self.line, w, 0.5)
        np.testing.assert_allclose(value, [0.96, 0.54, 0.54], atol=1e-4)
        np.testing.assert_allclose(slope[:, 0], [-0.4, -0.4, 0.4], atol=2e-4)
        assert least_envelope(SquaredDistances(np.zeros((1, 1)), 1.5), 0.5) == pytest.approx(
            0.5, abs=1e-6
        )

    def test_a_prox_off_the_ball_is_refused(self):
        with pytest.raises(ValueError, match="outside"):
            envelope(SquaredDistances(np.zeros((1, 1)), 0.5), np.array([[0.4]]), 0.5)


class TestProjectedSubgradient:
    @given(st.lists(st.floats(-9, 9), min_size=3, max_size=3), positive)
    def test_projection_to_the_ball(self, w, radius):
        w = np.array(w)
        projected = onto_ball(radius)(w)
        size = np.linalg.norm(w)
        np.testing.assert_allclose(projected, w if size <= radius else w * radius / size)

    def test_step_size_by_hand(self):
        assert subgradient_step(4, 1.0, 1.0, 1.0) == 0.5
        assert subgradient_step(2, 4.0, 1.0, 0.5) == 2.0

    def test_the_stated_bound_fails_by_hand(self):
        # s = 1: w₁ = ½, F̄ = 2θ − w² = ¾, Δ = ¼, ‖∇F̄‖² = 4w² = 1, q = √(1·1·¼) = ½
        problem, start = hardest_iflood(0.5)
        (line,) = iflood_rows(problem, 0.5, start, [1], runs=1, seed=0).to_dict("records")
        assert line["mean"] == pytest.approx(1, abs=1e-3)
        assert line["q"] == pytest.approx(0.5, abs=1e-3)
        assert line["stated"] == pytest.approx(0.7071, abs=1e-3)
        assert line["stated"] < line["mean"] < line["corrected"]

    def test_it_fails_for_long_runs_too(self):
        problem, start = hardest_iflood(0.5, 0.02)
        rows = iflood_rows(problem, 0.5, start, [1000, 10000], runs=1, seed=0, count=10000)
        assert (rows["mean"] > rows["stated"]).all()
        assert (rows["mean"] < rows["corrected"]).all()
        limit = 8 * math.log(2) - 4  # ∫ of ‖∇F̄‖² along the way out, over q
        assert rows["mean"][1] / rows["q"][1] == pytest.approx(limit, rel=0.005)


class TestZerothOrder:
    def test_directions_are_on_the_sphere_and_uniform(self):
        u = directions(np.random.default_rng(0), (40000, 3))
        np.testing.assert_allclose(np.linalg.norm(u, axis=1), 1)
        np.testing.assert_allclose(u.T @ u / len(u), np.eye(3) / 3, atol=0.01)
        np.testing.assert_allclose(u.mean(0), 0, atol=0.02)

    @pytest.mark.parametrize("points", [1, 2])
    def test_unbiased_for_quadratics(self, points):
        # over ±e_i, scaled to be a design of the sphere, the mean of (d/r)·f·U is Aw exactly
        a = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 1.0]])
        w, u = np.array([0.4, -1.0, 2.0]), np.concatenate([np.eye(3), -np.eye(3)])
        f = lambda x: np.einsum("...i,ij,...j->...", x, a, x) / 2 + 7  # noqa: E731
        g = zeroth_gradient(f, np.broadcast_to(w, (6, 3)), u, 0.7, points)
        np.testing.assert_allclose(g.mean(0), a @ w)

    def test_gammas_by_hand(self):
        # d/r = 4, T = 16: T^¼ = 2
        assert zeroth_gamma(16, 2, 0.5, 9.0, 25.0) == 2 * 4 * 5
        assert zeroth_gamma(16, 2, 0.5, 9.0, 25.0, "paper") == 2 * math.sqrt(4 * 9)

    @pytest.mark.parametrize("kind", ["softad", "iflood"])
    def test_the_moment_bounds_every_value(self, kind):
        problem = Distances(cloud(12, 2, 3), 2.0, kind)
        w = onto_ball(2.0)(4 * np.random.default_rng(0).standard_normal((500, 2)))
        values = problem.value(w[:, None], 0.4, problem.points)
        assert np.square(values).mean(-1).max() <= problem.moment(0.4)


class TestAbsoluteDeviation:
    """Prop. 6 with ρ = |x|, which the paper calls Flooding: S = θ + E|ℓ − θ|, ℓ = ‖w − z‖."""

    origin = Distances(np.zeros((1, 2)), 9.0, "iflood")
    w = np.array([3.0, 4.0])  # at distance 5

    def test_value_and_gradient_by_hand(self):
        assert self.origin.value(self.w, 2.0) == 2 + 3
        assert self.origin.value(self.w, 7.0) == 7 + 2
        np.testing.assert_allclose(self.origin.gradient(self.w, 2.0), [0.6, 0.8])
        np.testing.assert_allclose(self.origin.gradient(self.w, 7.0), [-0.6, -0.8])
        assert self.origin.moment(2.0) == (2 + 7) ** 2  # ℓ from 0 to 9
        assert self.origin.moment(6.0) == (6 + 6) ** 2


class TestSmoothedObjective:
    def test_of_a_quadratic(self):
        # ‖w + rV‖² has mean ‖w‖² + r²/2 over the disc, gradient 2w
        f = lambda x: np.square(x).sum(-1)  # noqa: E731
        w = np.array([[0.5, -1.0], [2.0, 0.0]])
        np.testing.assert_allclose(smoothed_gradient(f, w, 0.3), 2 * w, atol=1e-12)
        np.testing.assert_allclose(smoothed_value(f, w, 0.3), np.square(w).sum(-1) + 0.045)

    def test_it_is_the_mean_of_the_original_gradient_over_the_ball(self):
        problem = Distances(cloud(5, 2, 1), 2.0)
        w, r = np.array([0.7, 0.9]), 0.2
        mean = smoothed_gradient(lambda x: problem.value(x, 0.5), w, r)
        rings, angle = np.meshgrid(
            np.sqrt((np.arange(64) + 0.5) / 64), 2 * np.pi * np.arange(64) / 64
        )
        disc = r * np.stack([rings * np.cos(angle), rings * np.sin(angle)], -1)
        original = problem.gradient(w + disc, 0.5).mean((0, 1))
        np.testing.assert_allclose(mean, original, atol=1e-5)


class TestRows:
    def test_follow_keeps_every_point(self):
        path = simulate(lambda w, g: w - g, lambda w, t: np.full_like(w, t), [1.0], 2, 3)
        assert path[:, 0, 0].tolist() == [1, 1, 0, -2]
        assert path.shape == (4, 2, 1)

    def test_softad_stays_below_its_bounds_and_falls(self):
        rows = softad_rows(PROBLEM, 0.5, (-1.2, 1.0), [30, 300], runs=4, seed=0)
        assert rows["inside"].all()
        assert (rows["worst"] < rows["corrected"]).all()
        assert rows["mean"][1] < rows["mean"][0]
        assert (rows["last"] > 0).all()
        assert rows.equals(softad_rows(PROBLEM, 0.5, (-1.2, 1.0), [30, 300], runs=4, seed=0))

    def test_iflood_of_one_step_by_hand(self):
        # T = 1: the average is ‖∇F̄(w₁)‖², here at w₁ = 0.8 by the closed form 4(0.8 − 1)²
        problem = SquaredDistances(np.zeros((1, 1)), 2.0)
        rows = iflood_rows(problem, 0.5, [0.8], [1], runs=2, seed=0)
        assert rows["mean"][0] == pytest.approx(0.16, abs=1e-3)
        assert rows["last"][0] == rows["mean"][0], "of one iterate the last is the average"
        assert rows["q"][0] == pytest.approx(math.sqrt(4 * 0.04), abs=1e-3)

    def test_zeroth_order_counts_what_it_clips(self):
        problem, start = Distances(cloud(12, 2, 3), 4.0), (-1.2, 1.0)
        common = {"radius": 0.1, "runs": 3, "seed": 0}
        paper = zeroth_rows(problem, 1.0, start, [50], rule="paper", **common)
        corrected = zeroth_rows(problem, 1.0, start, [50], **common)
        assert paper["clipped"].tolist() == [1.0]
        assert corrected["clipped"].tolist() == [0.0]
        # Values are taken 0.1 around an iterate, so iterates must stay in a ball of radius 3.9.
        assert corrected["inside"].all()
        outside = zeroth_rows(problem, 1.0, (3.92, 0.0), [50], points=2, **common)
        assert not outside["inside"].any()
