"""The gradient rules on quadratics and a network: by hand, by double backprop, by their limits."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from helpers.objectives import close
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad

from softadlib import functional as F

A = torch.tensor([[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]], dtype=torch.float64)
W = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
RULES = {
    "plain": F.plain_gradient,
    "sam": F.sam_gradient,
    "asam": F.asam_gradient,
    "gnp": F.gnp_gradient,
    "fdgr": F.fdgr_gradient,
    "centered": partial(F.fdgr_gradient, scheme="centered"),
}
CALLS = {"plain": 1, "sam": 2, "asam": 2, "gnp": 2, "fdgr": 2, "centered": 3}


def counted(function, calls=None):
    """`gradient` of a function of {"weight": w}; `calls` collects where it was asked, and `track`."""

    def gradient(params, track=True):
        if calls is not None:
            calls.append((params, track))
        return grad(function)(params)

    return gradient


def quadratic(params):
    return params["weight"] @ A @ params["weight"] / 2


def on_quadratic(rule, *args, **settings):
    return rule(counted(quadratic), {"weight": W}, *args, **settings)["weight"]


class Net:
    """A small tanh network with all its data, as a function of its parameters."""

    def __init__(self, layers=None, seed=0):
        torch.manual_seed(seed)
        self.module = layers or nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.module = self.module.double()
        self.x, self.y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
        self.params = {name: p.detach() for name, p in self.module.named_parameters()}

    def loss(self, params):
        return nn.functional.cross_entropy(functional_call(self.module, params, (self.x,)), self.y)

    def gradient(self, params, track=True):
        return grad(self.loss)(params)


def flat(params):
    return torch.cat([p.flatten() for p in params.values()])


# How many gradients, and which of them move batch norm's statistics


@pytest.mark.parametrize("bn_update", ["both", "first"])
@pytest.mark.parametrize("name", RULES)
def test_gradients_per_step_and_the_passes_that_track(name, bn_update):
    calls = []
    extra = () if name == "plain" else (bn_update,)
    params = {"weight": W}
    RULES[name](counted(quadratic, calls), params, 0.5, *extra)
    assert len(calls) == CALLS[name]
    assert calls[0][0] is params, "the first is taken at w itself"
    assert [track for _, track in calls] == [True] + [bn_update == "both"] * (CALLS[name] - 1)
    assert torch.equal(params["weight"], W)


# Quadratics


@given(st.floats(0, 3), st.floats(0.01, 2))
def test_gnp_of_a_quadratic_is_the_gradient_of_the_penalised_loss_exactly(alpha, radius):
    g = A @ W
    penalty = alpha * radius * (A @ g) / g.norm()  # λ·∇‖∇L‖ = λ·Ag/‖g‖, λ = αr
    close(on_quadratic(F.gnp_gradient, alpha, radius=radius), g + penalty, rtol=1e-9)


def test_gnp_official_mixing_normalises_the_first_gradient():
    g, alpha, radius = A @ W, 0.8, 0.1
    expected = (1 - alpha) * g / g.norm() + alpha * A @ (W + radius * g / g.norm())
    result = on_quadratic(F.gnp_gradient, alpha, radius=radius, mixing="official")
    close(result, expected, rtol=1e-10)


@given(st.floats(0, 3), st.floats(0.001, 2))
def test_fdgr_of_a_quadratic_is_g_plus_lambda_a_g_in_both_schemes(strength, step):
    g = A @ W
    for scheme in ("forward", "centered"):
        result = on_quadratic(F.fdgr_gradient, strength, step_size=step, scheme=scheme)
        close(result, g + strength * A @ g, rtol=1e-9, atol=1e-9)


def layer(weight, bias):
    return {"0.weight": torch.tensor(weight).double(), "0.bias": torch.tensor(bias).double()}


@pytest.mark.parametrize("eta", [0.0, 0.01, 0.5])
def test_asam_official_by_hand(eta):
    """Weights adapt, biases do not, and one norm goes over both."""
    params, grads = layer([2.0, -0.5], [0.3]), layer([1.0, 3.0], [-2.0])
    size = np.array([2 + eta, 0.5 + eta, 1.0])
    g = np.array([1.0, 3.0, -2.0])
    expected = 0.7 * size**2 * g / np.linalg.norm(size * g)
    there = F.asam_perturb(params, grads, 0.7, eta=eta)
    close(flat(there) - flat(params), expected, rtol=1e-9)


def test_asam_davda54_by_hand():
    params, grads = layer([2.0, -0.5], [0.0]), layer([1.0, 3.0], [-2.0])
    there = F.asam_perturb(params, grads, 0.7, "davda54", eta=5.0)
    size, g = np.array([2.0, 0.5, 0.0]), np.array([1.0, 3.0, -2.0])  # a bias of 0 is never moved
    expected = 0.7 * size**2 * g / np.linalg.norm(size * g)
    close(flat(there) - flat(params), expected, rtol=1e-9)


# ASAM does not see the scale of the layers, SAM does


@pytest.mark.parametrize("variant", ["official", "davda54"])
@pytest.mark.parametrize("c", [0.1, 4.0])
def test_asam_is_invariant_to_rescaled_layers_and_sam_is_not(c, variant):
    """Without η, that is: with it the invariance is gone."""
    layers = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False))
    net = Net(layers)
    one = net.params
    two = {"0.weight": c * one["0.weight"], "2.weight": one["2.weight"] / c}
    close(net.loss(one), net.loss(two))

    def gap(climb):
        ends = [net.loss(climb(params, net.gradient(params))) for params in (one, two)]
        assert ends[0] > net.loss(one) + 0.01
        return abs(ends[0] - ends[1])

    assert gap(partial(F.asam_perturb, radius=0.5, variant=variant, eta=0.0)) < 1e-12
    assert gap(partial(F.perturb, radius=0.5)) > 1e-2
    assert gap(partial(F.asam_perturb, radius=0.5, eta=0.1)) > 1e-3


# Limits


@pytest.mark.parametrize("name", ["sam", "asam", "gnp", "gnp, official", "fdgr", "centered"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_gradient_stays_zero_and_is_no_nan(name, dtype):
    rule = {**RULES, "gnp, official": partial(F.gnp_gradient, mixing="official")}[name]
    params = {"weight": torch.zeros(3, dtype=dtype)}
    result = rule(counted(lambda p: p["weight"].square().sum()), params, 0.5)
    assert result["weight"].tolist() == [0, 0, 0]


# FD-GR against double backprop


def regularised(net, strength):
    """∇(L + λ/2·‖∇L‖²), by differentiating the gradient."""

    def objective(params):
        grads = grad(net.loss)(params)
        return net.loss(params) + strength / 2 * sum(g.square().sum() for g in grads.values())

    return flat(grad(objective)(net.params))


@pytest.mark.parametrize(("scheme", "order"), [("forward", 1), ("centered", 2)])
def test_fdgr_tends_to_double_backprop_at_the_order_of_its_scheme(scheme, order):
    net = Net()
    exact, errors = regularised(net, 0.7), []
    for step in (0.1, 0.05, 0.025):
        result = F.fdgr_gradient(net.gradient, net.params, 0.7, step_size=step, scheme=scheme)
        errors.append((flat(result) - exact).norm().item())
    assert errors[-1] < 1e-3 * exact.norm()
    for one, half in itertools.pairwise(errors):
        assert math.log2(one / half) == pytest.approx(order, abs=0.15)


# Types, transforms, arguments
