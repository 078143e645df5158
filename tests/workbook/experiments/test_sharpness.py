"""Finite differences and Flooding's two steps on quadratics by hand, and on a network."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from softadlib.workbook.experiments import sharpness as H

A = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
W = torch.tensor([1.0, -2.0], dtype=torch.float64)
BOWL = SimpleNamespace(
    value=lambda w: w @ A @ w / 2,
    gradient=lambda w: A @ w,
    penalty_gradient=lambda w: A @ A @ w,
)
"""R = ½wᵀAw: both differences are ∇½‖∇R‖² = A²w exactly."""
RISK = H.plane_risk("gaussian", 40, 0)


class TestRisk:
    def test_is_the_cross_entropy_of_its_network(self):
        w = RISK.start(3)
        nn.utils.vector_to_parameters(w, RISK.network.parameters())
        expected = nn.functional.cross_entropy(RISK.network(RISK.x), RISK.y)
        assert RISK.value(w).item() == pytest.approx(expected.item(), abs=1e-15)

    def test_gradients_against_central_differences(self):
        w, u = RISK.start(1), RISK.start(2)
        u, h = u / u.norm(), 1e-5
        slope = (RISK.value(w + h * u) - RISK.value(w - h * u)) / (2 * h)
        assert (RISK.gradient(w) @ u).item() == pytest.approx(slope.item(), abs=1e-9)
        half = [RISK.gradient(w + s * h * u).square().sum() / 2 for s in (1, -1)]
        expected = (half[0] - half[1]) / (2 * h)
        assert (RISK.penalty_gradient(w) @ u).item() == pytest.approx(expected.item(), abs=1e-8)


class TestDifferences:
    @pytest.mark.parametrize("a", [0.5, 0.01, -0.1])
    def test_forward_is_exact_on_a_quadratic(self, a):
        torch.testing.assert_close(H.forward_difference(BOWL.gradient, W, a), A @ A @ W)

    @pytest.mark.parametrize("scheme", ["forward", "centered"])
    def test_the_training_rule_agrees(self, scheme):
        torch.testing.assert_close(H.rule_difference(BOWL.gradient, W, 0.1, scheme), A @ A @ W)

    def test_orders_of_the_error(self):
        rows = H.error_rows(RISK, RISK.start(0), [1e-2, 1e-3])
        forward, centered = (rows[name].iloc[0] / rows[name].iloc[1] for name in rows)
        assert forward == pytest.approx(10, rel=0.1)
        assert centered == pytest.approx(100, rel=0.1)

    def test_the_step_is_on_half_the_squared_norm(self):
        assert H.two_step_ratio(BOWL, W, 0.3) == pytest.approx(1)
        assert H.two_step_ratio(RISK, RISK.start(0), 1e-3) == pytest.approx(1, abs=0.01)

    def test_sam_is_a_finite_difference_of_its_own_length(self):
        size = (A @ W).norm().item()
        assert H.sam_gap(BOWL, W, 0.1, 0.1 / size) < 1e-9
        # g(w + ag) = Aw + aA²w; SAM has a = r/‖g‖
        gap = (0.1 - 0.1 / size) * (A @ A @ W).norm() / (A @ W + 0.1 / size * (A @ A @ W)).norm()
        assert H.sam_gap(BOWL, W, 0.1, 0.1) == pytest.approx(gap.item(), rel=1e-6)


class TestTheIdentity:
    def test_flood_by_hand(self):
        # R = w², gradient 2w, from w = 1: below θ = 4, up to 2, at R = θ no step
        line = SimpleNamespace(value=lambda w: w @ w, gradient=lambda w: 2 * w)
        path = H.flood(line, torch.tensor([1.0]), 4.0, 0.5, 2)
        assert [w.item() for w in path] == [1, 2, 2]
        heavy = H.flood(line, torch.tensor([1.0]), 4.0, 0.5, 2, momentum=0.5)
        assert [w.item() for w in heavy] == [1, 2, 2.5]

    @given(st.floats(0.05, 0.5), st.floats(0.05, 0.3))
    def test_on_a_quadratic_two_steps_are_w_minus_a2A2w(self, theta_share, step):
        start = W * theta_share
        level = BOWL.value(start).item()
        theta = (level + BOWL.value(start + step * BOWL.gradient(start)).item()) / 2
        path = H.flood(BOWL, start, theta, step, 2)
        torch.testing.assert_close(path[2], start - step**2 * (A @ A @ start), rtol=0, atol=1e-14)

    @pytest.mark.parametrize("step", [0.1, 0.4])
    def test_on_a_network_exactly_where_the_condition_holds(self, step):
        rows = H.identity_rows(RISK, H.flood(RISK, RISK.start(0), 0.3, step, 40), 0.3, step)
        met = rows["case"] == "below, above"
        assert met.sum() > 3
        assert (rows["forward"][met] < 1e-12).all()
        assert (rows["forward"][~met] > 1e-8).all()
        mirror = rows["case"] == "above, below"
        assert (rows["backward"][mirror] < 1e-12).all()
        assert (rows["backward"][~mirror] > 1e-8).all()

    def test_it_fails_with_momentum(self):
        path = H.flood(RISK, RISK.start(0), 0.3, 0.1, 20, momentum=0.9)
        rows = H.identity_rows(RISK, path, 0.3, 0.1)
        assert (rows[["forward", "backward"]] > 1e-6).all(axis=None)
        assert rows["moved"][0] == pytest.approx((path[2] - path[0]).abs().max().item())
