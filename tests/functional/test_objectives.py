"""Every formula, gradient, limit and trap of the criteria, by closed form and by hand."""

import math
from decimal import Decimal, localcontext
from functools import partial

import numpy as np
import pytest
import torch
from helpers.objectives import SPREAD, close, losses, weights
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap

from softadlib import functional as F

thetas = st.floats(-1, 5, allow_subnormal=False)
sigmas = st.floats(0.01, 100)
scales = st.sampled_from(["code", "text"])
THRESHOLDED = {"flooding": F.flooding, "iflood": F.iflood, "softad": F.softad}


# ρ and φ


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_rho_and_its_gradient_to_full_precision_from_1e_18_to_1e30(dtype, rtol):
    sizes = torch.cat(
        [torch.logspace(-18, 30, 97, dtype=torch.float64), torch.tensor([1e19, 1e-4])]
    )
    x = torch.cat([sizes, -sizes]).to(dtype).requires_grad_()
    value = F.rho(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    with localcontext(prec=120):
        roots = [(1 + Decimal(v) ** 2).sqrt() for v in x.tolist()]
        expected = [float(r - 1) for r in roots]
        expected_slope = [float(Decimal(v) / r) for v, r in zip(x.tolist(), roots)]
    close(value.double(), expected, rtol=rtol, atol=0)
    close(slope.double(), expected_slope, rtol=rtol, atol=0)
    close(F.phi(x).double(), expected_slope, rtol=rtol, atol=0)
    assert F.rho(torch.zeros(1, dtype=dtype)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rho_and_its_slope_and_the_weights_at_infinity(dtype):
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.75], dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(F.rho(x).sum(), x)
    close(F.rho(x), [math.inf, math.inf, math.nan, 0.25], equal_nan=True)
    for found in (slope, F.phi(x), F.softad_derivative(x, 0.0, scale="text")):
        close(found, [1.0, -1.0, math.nan, 0.6], rtol=1e-6, equal_nan=True)
    lost = F.softad_derivative(x, 0.0, 0.5)
    close(lost[:3], [0.5, -0.5, math.nan], equal_nan=True)


# Gradients by finite differences, weights by closed form


@pytest.mark.parametrize("scale", ["code", "text"])
def test_softad_differentiates_twice_in_losses_theta_and_sigma(scale):
    inputs = [SPREAD, torch.tensor(0.4), torch.tensor(0.7)]
    inputs = [v.double().clone().requires_grad_() for v in inputs]
    objective = partial(F.softad, eta=0.3, scale=scale)
    assert gradcheck(objective, inputs)
    assert gradgradcheck(objective, inputs)


@given(losses, thetas, sigmas)
def test_softad_weights_are_phi_scaled(values, theta, sigma):
    z = (values.numpy() - theta) / sigma
    phi = z / np.sqrt(1 + z * z)
    for scale, expected in (("code", sigma * phi), ("text", phi)):
        close(weights(F.softad, values, theta, sigma, scale=scale), expected)
        close(F.softad_derivative(values, theta, sigma, scale), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function", [F.erm_derivative, F.flooding_derivative, F.iflood_derivative, F.softad_derivative]
)
def test_weights_of_half_precision_are_those_of_the_criterion(function, dtype):
    """In float32, as the criteria are: 0.7 lies 0.004 from the nearest bfloat16."""
    values = torch.tensor([0.25, 0.703125, 300.0], dtype=dtype)
    assert torch.equal(function(values, 0.7), function(values.float(), 0.7))


def test_hand_example():
    values = torch.tensor([0.0, 1.0, 2.0])
    assert F.softad(values, 1.0).item() == pytest.approx(1 + 2 * (math.sqrt(2) - 1) / 3)
    half = 1 / math.sqrt(2)
    close(weights(F.softad, values, 1.0), [-half, 0.0, half], rtol=1e-6)
    assert F.iflood(values, 1.0).item() == pytest.approx(1 + 2 / 3)
    assert weights(F.iflood, values, 1.0).tolist() == [-1, 0, 1]
    assert F.flooding(values, 1.5).item() == 2.0
    assert weights(F.flooding, values, 1.5).tolist() == [-1, -1, -1]
    assert F.erm(values).item() == 1.0


# SoftAD: bounds, limits, η


@given(losses, thetas, sigmas, scales)
def test_softad_is_zero_above_eta_theta_only_where_all_losses_are_theta(
    values, theta, sigma, scale
):
    level = torch.full_like(values, theta)
    assert F.softad(level, theta, sigma, 0.7, scale) == pytest.approx(0.7 * theta, rel=1e-15)
    assert F.softad(level, theta, sigma, 0.0, scale) == 0
    assume((values - theta).abs().max() > 1e-6)
    assert F.softad(values, theta, sigma, 0.0, scale) > 0


@given(losses, thetas, st.floats(1e-6, 1e-3))
def test_for_a_small_sigma_text_is_iflood(values, theta, sigma):
    """√(x²+σ²) − σ lies within σ below |x|."""
    text, hard = F.softad(values, theta, sigma, scale="text"), F.iflood(values, theta)
    assert -sigma - 1e-12 <= text - hard <= 1e-12


@given(losses, thetas)
def test_log_cosh_weighs_by_tanh(values, theta):
    close(weights(F.softad_logcosh, values, theta), np.tanh(values.numpy() - theta))
    close(F.softad_logcosh_derivative(values, theta), np.tanh(values.numpy() - theta))


@pytest.mark.parametrize(
    ("objective", "weights_of", "parent"),
    [
        (F.softad_no_ascent, F.softad_no_ascent_derivative, F.softad_derivative),
        (F.iflood_no_ascent, F.iflood_no_ascent_derivative, F.iflood_derivative),
    ],
)
@given(values=losses, theta=thetas)
def test_without_ascent_losses_above_theta_weigh_as_before_and_the_others_nothing(
    objective, weights_of, parent, values, theta
):
    expected = np.where(values > theta, parent(values, theta), 0)
    close(weights(objective, values, theta), expected)
    close(weights_of(values, theta), expected)


@given(losses, thetas, sigmas, st.floats(-3, 3), st.floats(-3, 3), scales)
def test_eta_moves_the_value_only(values, theta, sigma, one, two, scale):
    arguments = {"theta": theta, "sigma": sigma, "scale": scale}
    first, second = (partial(F.softad, eta=eta, **arguments) for eta in (one, two))
    close(first(values) - second(values), (one - two) * theta, atol=1e-9)
    assert torch.equal(weights(first, values), weights(second, values))


@given(losses, thetas, sigmas, st.floats(-1, 1), scales)
def test_slope_in_theta_is_eta_minus_mean_weight_hence_never_learnable_at_eta_one(
    values, theta, sigma, eta, scale
):
    z = (values.numpy() - theta) / sigma
    mean = (z / np.sqrt(1 + z * z)).mean() * (sigma if scale == "code" else 1)
    level = torch.tensor(theta, dtype=torch.float64)
    close(grad(lambda t: F.softad(values, t, sigma, eta, scale))(level), eta - mean, atol=1e-10)
    assert grad(lambda t: F.softad(values, t))(level) > 0


# Flooding and iFlood


@given(losses, thetas)
def test_flooding_is_plus_or_minus_erm_and_exactly_zero_at_theta(values, theta):
    assume(abs(values.mean().item() - theta) > 1e-9)
    sign = 1.0 if values.mean() > theta else -1.0
    erm = weights(F.erm, values)
    assert torch.equal(weights(F.flooding, values, theta), sign * erm)
    at = values.mean().item()
    assert not weights(F.flooding, values, at).any()
    assert F.flooding(values, at) == at


# AdaFlood


@given(losses, st.floats(0, 1), st.floats(0, 3), st.floats(0, 1))
def test_flood_levels_are_the_formula_between_0_and_minus_ln_gamma(aux, gamma, alpha, beta):
    levels = F.flood_levels(aux, gamma, alpha, beta)
    x = alpha * aux.numpy() + beta
    close(levels, -np.log((1 - gamma) * np.exp(-x) + gamma), rtol=1e-9)
    assert levels.min() >= -1e-12
    if gamma > 0:
        assert levels.max() <= -math.log(gamma) + 1e-12
    if gamma >= 0.5:
        assert levels.max() <= F.LN2 + 1e-12
    assert (levels <= torch.from_numpy(x) + 1e-9).all()


def test_flood_levels_at_both_ends_and_where_exp_underflows():
    aux = torch.tensor([0.0, 0.3, 2.0, 800.0, math.inf])
    assert F.flood_levels(aux, 0.0).tolist() == aux.tolist()
    assert F.flood_levels(aux, 1.0).tolist() == [0] * 5
    assert torch.isinf(-torch.log(torch.exp(-aux[3])))  # the formula as it is written, at γ = 0
    assert F.flood_levels(aux, 0.5)[3:].tolist() == pytest.approx([math.log(2)] * 2)
    each = vmap(F.flood_levels, in_dims=(None, 0))(aux, torch.tensor([0.0, 0.5, 1.0]))
    assert torch.equal(each[1], F.flood_levels(aux, 0.5))


@given(losses, st.data())
def test_adaflood_is_flooding_of_every_sample_by_itself(values, data):
    levels = data.draw(st.lists(thetas, min_size=len(values), max_size=len(values)))
    levels = torch.tensor(levels, dtype=torch.float64)
    each = [F.flooding(v[None], t) for v, t in zip(values, levels)]
    close(F.adaflood(values, levels), torch.stack(each).mean())
    expected = np.sign(values.numpy() - levels.numpy())
    close(weights(F.adaflood, values, levels), expected)


# Types, shapes, transforms


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [F.erm, F.flooding, F.iflood, F.softad])
def test_half_precision_is_computed_in_float32(function, dtype):
    values = torch.tensor(
        [0.5, 300.0, 1000.0], dtype=dtype, requires_grad=True
    )  # 300² overflows float16
    found, expected = function(values, 0.125), function(values.float(), 0.125)
    assert found.dtype == torch.float32
    assert found == expected
    (slope,) = torch.autograd.grad(found, values)
    assert torch.equal(slope, torch.autograd.grad(expected, values)[0])
    assert slope.isfinite().all()


@pytest.mark.parametrize("name", THRESHOLDED)
def test_theta_as_float_0d_and_per_sample(name):
    function, plain = THRESHOLDED[name], THRESHOLDED[name](SPREAD, 0.5)
    assert function(SPREAD, torch.tensor(0.5, dtype=torch.float64)) == plain
    if name != "flooding":
        assert function(SPREAD, torch.full((5,), 0.5, dtype=torch.float64)) == plain
        levels = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
        each = [function(v[None], t.item()) for v, t in zip(SPREAD, levels)]
        close(function(SPREAD, levels), torch.stack(each).mean())


def test_eta_weighs_each_samples_own_theta():
    levels = torch.tensor([0.1, 0.3], dtype=torch.float64)
    assert F.softad(levels, levels, eta=2.0).item() == pytest.approx(0.4)


@pytest.mark.parametrize("name", ["erm", *THRESHOLDED])
def test_vmap_gives_every_run_its_own_theta(name):
    function = {"erm": F.erm, **THRESHOLDED}[name]
    values = torch.from_numpy(np.random.default_rng(1).uniform(0, 2, (6, 5)))
    levels = torch.linspace(0.2, 1.8, 6, dtype=torch.float64)
    alone = [function(v, t.item()) for v, t in zip(values, levels)]
    close(vmap(function)(values, levels), torch.stack(alone))
    slopes = vmap(grad(function))(values, levels)
    for row, v, t in zip(slopes, values, levels):
        close(5 * row, weights(function, v, t.item()))


@pytest.mark.parametrize("scale", ["code", "text"])
def test_vmap_gives_every_run_its_own_sigma(scale):
    sigma = torch.tensor([0.1, 1.0, 7.0], dtype=torch.float64)
    many = vmap(lambda s: F.softad(SPREAD, 0.4, s, scale=scale))(sigma)
    close(many, [F.softad(SPREAD, 0.4, s, scale=scale).item() for s in sigma.tolist()])


@pytest.mark.parametrize("function", [F.softad, F.flooding, F.cvar, F.chi2_dro, F.tilted])
def test_compiles_without_graph_breaks(function):
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    for knob in (0.4, 0.3, 0.2):  # from the second on a number is a symbol to the compiler
        assert torch.equal(compiled(SPREAD, knob), function(SPREAD, knob))
    level = torch.tensor(0.4, dtype=torch.float64)
    assert torch.equal(weights(compiled, SPREAD, level), weights(function, SPREAD, level))


def test_softad_compiles_for_one_sigma_after_the_other():
    compiled = torch.compile(F.softad, backend="eager", fullgraph=True)
    for sigma in (0.5, 2.0, 3.0):
        assert torch.equal(compiled(SPREAD, 0.4, sigma), F.softad(SPREAD, 0.4, sigma))


# Focal loss


@given(losses, st.floats(0, 5))
def test_focal_and_its_weights_are_the_formulas(values, gamma):
    """By a loop; a loss of 0 has the value 0, and the slope 0^γ, which is 1 for γ = 0."""
    expected, slopes = [], []
    for loss in values.tolist():
        miss = -math.expm1(-loss)
        expected.append(miss**gamma * loss)
        inner = loss * math.exp(-loss) / miss if loss else 1.0
        slopes.append(miss**gamma * (1 + gamma * inner))
    close(F.focal(values, gamma), np.mean(expected))
    close(F.focal(values, gamma, reduction="none"), expected)
    close(F.focal_derivative(values, gamma), slopes)
    close(weights(F.focal, values, gamma), slopes)


def test_focal_at_the_ends():
    close(F.focal(SPREAD, 0.0), SPREAD.mean())
    each = vmap(F.focal, in_dims=(None, 0))(SPREAD, torch.tensor([0.0, 0.5, 2.0]).double())
    close(each, [F.focal(SPREAD, g) for g in (0.0, 0.5, 2.0)])


# SoftAD over a robust loss


@pytest.mark.parametrize("theta", [0.1, 1.6])
def test_softad_over_cvar_and_chi_square_is_rho_of_their_value(theta):
    """CVaR of the worst two of five by sorting; χ² by the mean and √(2r·variance), where all keep weight."""
    worst = np.sort(SPREAD.numpy())[-2:].mean()
    chi = SPREAD.mean().item() + math.sqrt(2 * 0.02 * SPREAD.var(correction=0).item())
    for inner, value in ((F.cvar(SPREAD, 0.6), worst), (F.chi2_dro(SPREAD, 0.02), chi)):
        close(F.softad(inner.view(1), theta), theta + math.sqrt(1 + (value - theta) ** 2) - 1)
    composed = lambda v: F.softad(F.cvar(v, 0.6).view(1), theta)  # noqa: E731
    slope = (worst - theta) / math.sqrt(1 + (worst - theta) ** 2)  # negative: the tail ascends
    close(weights(composed, SPREAD), 5 * slope * np.array([0, 0, 0.5, 0, 0.5]))
