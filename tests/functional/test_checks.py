"""What the objectives refuse, and what an empty batch gives: each class of error as a property."""

import inspect
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import vmap

from softadlib import functional as F
from softadlib import losses, optim
from softadlib.methods import METHODS

OBJECTIVES = {
    "erm": F.erm,
    "flooding": F.flooding,
    "iflood": F.iflood,
    "softad": F.softad,
    "softad, sigma 2": partial(F.softad, sigma=2.0),
    "cvar": F.cvar,
    "chi2": F.chi2_dro,
    "tilted": F.tilted,
}
every = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


@every
@given(n=st.integers(1, 5), shape=st.lists(st.integers(0, 5), max_size=3))
def test_weights_of_another_shape_are_refused(objective, n, shape):
    losses, weights = torch.rand(n), torch.ones(shape)
    if weights.shape == losses.shape:
        assert objective(losses, 0.1, weights=weights).shape == ()
        return
    with pytest.raises(ValueError, match=r"weights must be a tensor of shape .*one per loss, got"):
        objective(losses, 0.1, weights=weights)


@every
def test_weights_that_are_no_tensor_are_refused(objective):
    with pytest.raises(ValueError, match=r"weights must be a tensor .*got list"):
        objective(torch.rand(2), 0.1, weights=[1.0, 1.0])


@every
@pytest.mark.parametrize("weights", [None, torch.ones(0)], ids=["plain", "weights"])
def test_an_empty_batch_is_nan_as_torchs(objective, weights):
    assert nn.CrossEntropyLoss()(torch.ones(0, 3), torch.ones(0).long()).isnan()
    assert objective(torch.ones(0), 0.1, weights=weights).isnan()


def test_sums_of_an_empty_batch_are_zero_as_torchs():
    for objective in (F.erm, F.iflood, F.softad):
        assert objective(torch.ones(0), 0.1, reduction="sum") == 0
        assert objective(torch.ones(0), 0.1, reduction="none").shape == (0,)


@given(st.floats(-10, 10, width=32), st.sampled_from(F.SCALES))
def test_tensor_sigma_that_is_not_positive_is_refused_or_nan(sigma, scale):
    """Read on a CPU it is refused; under `vmap` it gives NaN and never another sign."""
    losses = torch.tensor([0.0, 0.5, 3.0])
    for function in (F.softad, F.softad_weights):
        each = vmap(lambda s, f=function: f(losses, 0.1, s, scale=scale))(torch.tensor([sigma]))
        if sigma >= 1e-12:
            value = function(losses, 0.1, torch.tensor(sigma), scale=scale)
            torch.testing.assert_close(value, function(losses, 0.1, sigma, scale=scale))
            torch.testing.assert_close(each[0], value)
            continue
        with pytest.raises(ValueError, match="sigma must be a number of at least 1e-12, got"):
            function(losses, 0.1, torch.tensor(sigma), scale=scale)
        if sigma <= 0:
            assert each.isnan().all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: F.softad_weights(torch.ones(2), 0.1, scale="txt"), "scale 'txt' unknown; choose"),
        (lambda: F.softad_weights(torch.ones(2), 0.1, 0.0), "sigma must be a number of at least"),
        (lambda: F.softad(torch.ones(2), 0.1, True), "sigma must be a number of at least"),
        (lambda: F.softad(torch.ones(2), 0.1, -1.0), "sigma must be .* at least 1e-12, got -1.0"),
        (lambda: F.softad(torch.ones(2), 0.1, math.inf), "sigma must be a number of at least"),
        (lambda: F.cvar(torch.ones(2), torch.tensor(1.0)), "beta must be a number of at least 0"),
        (lambda: F.chi2_dro(torch.ones(2), torch.tensor(-1.0)), "radius must be a number of at"),
        (lambda: F.tilted(torch.ones(2), torch.tensor(math.nan)), "t must be a finite number"),
        (lambda: F.flood_levels(torch.ones(2), torch.tensor(1.5)), "gamma must be a number of"),
        (lambda: F.softad(torch.ones(2), None), "theta must be a finite number, got None"),
        (lambda: F.softad(torch.ones(2), math.nan), "theta must be a finite number, got nan"),
        (lambda: F.softad(torch.ones(2), 0.1, eta="1"), "eta must be a finite number, got '1'"),
        (lambda: F.flooding(torch.ones(2), "0.1"), "theta must be a finite number, got '0.1'"),
        (lambda: F.iflood(torch.ones(2), True), "theta must be a finite number, got True"),
    ],
)
def test_tensors_and_words_out_of_range_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("objective", [F.cvar, F.chi2_dro, F.tilted, F.softad, F.erm, F.focal])
@pytest.mark.parametrize("one", [1, 1.0])
def test_weights_below_zero_are_refused(objective, one):
    with pytest.raises(ValueError, match="weights must be a number of at least 0, got -1"):
        objective(torch.ones(2), 0.5, weights=torch.tensor([one, -one]))


def test_norms_of_float16_gradients_are_refused():
    grads = {"weight": torch.zeros(2, dtype=torch.float16)}
    for rule in (F.perturb, F.asam_perturb):
        with pytest.raises(ValueError, match="gradient of weight is float16, whose norm overflows"):
            rule(grads, grads, 0.1)


def test_a_bfloat16_gradient_of_zero_does_not_move():
    zeros = {"weight": torch.zeros(2, dtype=torch.bfloat16)}
    assert F.perturb(zeros, zeros, 0.05)["weight"].tolist() == [0, 0]


@pytest.mark.parametrize("function", [F.softad, F.softad_weights])
def test_a_sigma_or_theta_of_another_shape_is_refused(function):
    losses = torch.ones(3)
    with pytest.raises(ValueError, match=r"sigma must have shape \(\) or \(3,\), got \(3, 1\)"):
        function(losses, 0.1, torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"theta must have shape \(\) or \(3,\), got \(3, 1\)"):
        function(losses, torch.zeros(3, 1))
    each = function(losses, 0.1, torch.tensor([0.5, 1.0, 2.0]), scale="text")
    assert each.isfinite().all()


@given(st.floats(-12, 30), st.sampled_from(F.SCALES))
def test_float32_gradients_are_those_of_float64_at_every_sigma(exponent, scale):
    sigma = 10.0**exponent
    found = []
    for dtype in (torch.float32, torch.float64):
        losses = torch.tensor([0.0, 0.5, 2.0, 1e4], dtype=dtype, requires_grad=True)
        F.softad(losses, 0.1, sigma, scale=scale, reduction="sum").backward()
        found.append(losses.grad.double())
    torch.testing.assert_close(*found, rtol=1e-4, atol=0)


@pytest.mark.parametrize("rule", [F.sam_gradient, F.asam_gradient, F.gnp_gradient, F.fdgr_gradient])
def test_an_unknown_bn_update_is_refused(rule):
    params = {"weight": torch.ones(2)}
    with pytest.raises(ValueError, match="bn_update 'Both' unknown; choose from both, first"):
        rule(lambda params, track=True: params, params, 0.1, bn_update="Both")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_weigh_as_exactly_as_others(dtype):
    losses = torch.full((70_000,), 10.0)
    assert F.erm(losses, weights=torch.ones(70_000, dtype=dtype)).item() == pytest.approx(10, 1e-6)


CLASSES = {
    "flooding": losses.Flooding,
    "iflood": losses.IFlood,
    "softad": losses.SoftAD,
    "cvar": losses.CVaR,
    "chi2": losses.ChiSquareDRO,
    "tilted": losses.Tilted,
    "adaflood": None,  # takes levels, made of gamma
    "sam": optim.SAM,
    "asam": optim.ASAM,
    "gnp": optim.GNP,
    "fdgr": optim.FDGR,
    "focal": losses.Focal,
    "msam": optim.MSAM,
}


@pytest.mark.parametrize("name", [name for name in CLASSES if name in METHODS])
def test_a_knob_has_one_name_in_sweeps_functions_and_classes(name):
    method = METHODS[name]
    function = method.objective if method.rule is F.plain_gradient else method.rule
    assert method.knob in inspect.signature(function).parameters
    if CLASSES[name]:
        assert method.knob in inspect.signature(CLASSES[name]).parameters
