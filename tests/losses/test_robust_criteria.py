"""CVaR, χ²-DRO and tilted: primal against dual by grids, closed forms, and that they never ascend."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from helpers.objectives import SPREAD, close, losses, weights
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck
from torch.func import grad, vmap

from softadlib import functional as F
from softadlib.losses.robust import ChiSquareDRO, CVaR, Tilted

betas = st.floats(0, 0.99)
radii = st.floats(0, 8)
tilts = st.floats(-20, 20)
KNOBS = {"cvar": betas, "chi2": radii, "tilted": tilts}
FUNCTIONS = {"cvar": F.cvar, "chi2": F.chi2_dro, "tilted": F.tilted}
MODERATE = {"cvar": 0.4, "chi2": 0.5, "tilted": 2.0}
every = pytest.mark.parametrize("name", FUNCTIONS)


def least(value, low, high):
    """Minimum over a grid of θ, narrowed down three times."""
    for _ in range(4):
        grid = np.linspace(low, high, 2001)
        at = value(grid).argmin()
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, 2000)]
    return value(grid).min()


def cvar_dual(values, beta, theta):
    return theta + np.maximum(values[:, None] - theta, 0).mean(0) / (1 - beta)


def chi2_dual(values, radius, theta):
    return theta + np.sqrt((1 + 2 * radius) * (np.maximum(values[:, None] - theta, 0) ** 2).mean(0))


# Values


def test_cvar_by_hand():
    values = torch.tensor([4.0, 1.0, 3.0, 2.0])
    expected = {0.0: 2.5, 0.5: 3.5, 0.75: 4.0, 0.9: 4.0, 0.25: 3.0, 0.375: (4 + 3 + 2 / 2) / 2.5}
    for beta, value in expected.items():
        assert F.cvar(values, beta).item() == pytest.approx(value, rel=1e-6), beta
    # the item on the boundary counts by the fraction left
    close(weights(F.cvar, values, 0.375), np.array([1, 0, 1, 0.5]) * 4 / 2.5, rtol=1e-6)


def test_halves_of_samples_count_as_halves():
    """Every function here takes the same of weights that are all halved."""
    values = torch.tensor([4.0, 1.0, 3.0, 2.0])
    halves = torch.full((4,), 0.5)
    assert F.cvar(values, 0.5, sample_weight=halves).item() == pytest.approx(3.5)
    for name, function in FUNCTIONS.items():
        found = function(values, MODERATE[name], sample_weight=halves)
        close(found, function(values, MODERATE[name]), rtol=1e-6)


def test_cvar_of_several_infinite_losses_is_infinite():
    values = torch.tensor([1.0, math.inf, 2.0, math.inf])
    assert [F.cvar(values, beta).item() for beta in (0.0, 0.5, 0.75)] == [math.inf] * 3


@given(losses, betas)
def test_cvar_is_its_dual(values, beta):
    numbers = values.numpy()
    close(F.cvar(values, beta), cvar_dual(numbers, beta, numbers).min())  # kinks are at the losses
    dual = least(partial(cvar_dual, numbers, beta), numbers.min() - 1, numbers.max() + 1)
    close(F.cvar(values, beta), dual, atol=1e-6)


@given(losses, st.floats(0.01, 8))
def test_chi2_is_its_dual(values, radius):
    numbers = values.numpy()
    low = numbers.mean() - numbers.std() / math.sqrt(2 * radius)  # where no sample is left out
    dual = least(partial(chi2_dual, numbers, radius), min(low, numbers.min()) - 1, numbers.max())
    close(F.chi2_dro(values, radius), dual, atol=1e-5)


@given(losses, st.floats(0, 0.5))
def test_chi2_without_truncation_is_mean_and_deviation(values, radius):
    mean, deviation = values.mean().item(), values.std(correction=0).item()
    assume(deviation > 1e-6)
    # every weight 1 + √(2r)(ℓ − mean)/deviation is positive
    assume(math.sqrt(2 * radius) * (mean - values.min().item()) < 0.99 * deviation)
    close(F.chi2_dro(values, radius), mean + math.sqrt(2 * radius) * deviation, atol=1e-9)


@given(losses, st.floats(0, 1))
def test_chi2_puts_everything_on_the_maximum_from_n_at_most_1_plus_2r(values, extra):
    radius = (len(values) - 1) / 2 + extra + 1e-6
    assume(len(set(values.tolist())) == len(values))
    assert F.chi2_dro(values, radius) == values.max()
    assert sorted(weights(F.chi2_dro, values, radius).tolist())[-1] == len(values)


def test_chi2_of_a_shared_maximum():
    values = torch.tensor([1.0, 1.0, 1.0, 0.2, 0.1], dtype=torch.float64)
    assert F.chi2_dro(values, 0.5) == 1  # three of five hold all the mass from 1 + 2r = 5/3
    close(weights(F.chi2_dro, values, 0.5), [5 / 3, 5 / 3, 5 / 3, 0.0, 0.0])
    assert F.chi2_dro(values, 0.3) < 1 - 1e-3


@pytest.mark.parametrize(("name", "knob"), [("cvar", 0.0), ("chi2", 0.0), ("tilted", 0.0)])
@given(values=losses)
def test_knob_zero_is_erm(name, knob, values):
    close(FUNCTIONS[name](values, knob), values.mean())
    close(weights(FUNCTIONS[name], values, knob), torch.ones(len(values)))
    level = torch.tensor(knob, dtype=torch.float64)
    close(weights(FUNCTIONS[name], values, level), torch.ones(len(values)))


def test_tilted_by_hand_where_exp_overflows():
    pair = torch.tensor([0.0, 50.0])
    assert torch.isinf((2 * pair).exp().mean().log())  # the formula as it is written
    assert F.tilted(pair, 2.0).item() == pytest.approx((100 - math.log(2)) / 2, rel=1e-6)
    assert F.tilted(pair, 2.0).item() == pytest.approx(49.65, abs=0.005)
    assert F.tilted(pair, -2.0).item() == pytest.approx(math.log(2) / 2, rel=1e-5)
    close(weights(F.tilted, pair, 2.0), [0.0, 2.0])
    assert F.tilted(pair, 1e6).item() == pytest.approx(50)


@pytest.mark.parametrize("t", [1e-3, 1e-6, 1e-12, -1e-8, 1e-30])
def test_tilted_at_small_t_keeps_its_digits_in_float32(t):
    values = SPREAD.float()
    exact = values.double().mean() + t / 2 * values.double().var(correction=0)
    assert F.tilted(values, t).item() == pytest.approx(exact.item(), rel=2e-6 if t > 1e-4 else 2e-7)
    close(weights(F.tilted, values, t), torch.ones(5), rtol=2e-3)


@given(losses, tilts)
def test_tilted_weights_are_a_softmax(values, t):
    expected = len(values) * torch.softmax(t * values, 0)
    close(weights(F.tilted, values, t), expected, rtol=1e-9, atol=1e-9)


# Never ascend


@every
@given(values=losses, data=st.data())
def test_no_sample_gets_a_negative_weight_and_all_sum_to_n(name, values, data):
    result = weights(FUNCTIONS[name], values, data.draw(KNOBS[name]))
    assert result.min() >= -1e-9
    assert result.sum().item() == pytest.approx(len(values), rel=1e-9)


# Types, shapes, transforms


@every
@pytest.mark.parametrize("size", [0.1, 1.0, 3.0])
def test_gradients_by_finite_differences(name, size):
    knob = {"cvar": 0.45, "chi2": 0.3 * size, "tilted": size}[name]
    assert gradcheck(lambda v: FUNCTIONS[name](v, knob), SPREAD.clone().requires_grad_())


@every
def test_vmap_gives_every_run_its_own_knob(name):
    values = torch.from_numpy(np.random.default_rng(1).uniform(0, 2, (6, 5)))
    knobs = torch.tensor([0.0, 0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)
    function = FUNCTIONS[name]
    close(vmap(function)(values, knobs), [function(v, k) for v, k in zip(values, knobs.tolist())])
    slopes = vmap(grad(function))(values, knobs)
    for row, v, k in zip(slopes, values, knobs.tolist()):
        close(5 * row, weights(function, v, k))


@every
def test_a_lost_run_stays_lost_and_disturbs_no_other(name):
    values = torch.from_numpy(np.random.default_rng(1).uniform(0, 2, (3, 5)))
    sick = values.clone()
    sick[1, 2] = math.nan
    function = vmap(lambda v: FUNCTIONS[name](v, MODERATE[name]))
    assert function(sick)[1].isnan()
    assert torch.equal(function(values)[[0, 2]], function(sick)[[0, 2]])


CRITERIA = {"cvar": CVaR, "chi2": ChiSquareDRO, "tilted": Tilted}


# The criteria


@every
def test_criteria_are_their_functions_over_the_base(name):
    torch.manual_seed(0)
    logits, targets = torch.randn(8, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    criterion = CRITERIA[name](MODERATE[name])
    values = nn.functional.cross_entropy(logits, targets, reduction="none")
    assert criterion(logits, targets) == FUNCTIONS[name](values, MODERATE[name])
    assert f"={MODERATE[name]:g}" in repr(criterion)


@pytest.mark.parametrize("t", [0.5, 4.0])
def test_tilted_weighs_each_term_of_its_mean(t):
    """(1/t)·ln(¼ + ¾·e^(t/2)): at t = 0.5 all exponents are below 1, at t = 4 they are not."""
    found = F.tilted(torch.tensor([0.0, 0.5]), t, sample_weight=torch.tensor([1.0, 3.0]))
    assert found.item() == pytest.approx(math.log(0.25 + 0.75 * math.exp(t / 2)) / t)


def test_tilted_of_one_outlier_among_many():
    """ln((20 + e³)/21): the mean of the exponents is small, one of them is not."""
    values = torch.tensor([0.0] * 20 + [3.0])
    assert F.tilted(values, 1.0).item() == pytest.approx(math.log((20 + math.exp(3)) / 21))
