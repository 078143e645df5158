"""What the functions refuse, and what an empty batch gives."""

import inspect
import math
from functools import partial

import pytest
import torch
from helpers.objectives import SPREAD
from helpers.refusals import refused
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
    "focal": F.focal,
    "cvar": F.cvar,
    "chi2": F.chi2_dro,
    "tilted": F.tilted,
}
every = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


@every
@pytest.mark.parametrize(
    ("weights", "word"),
    [
        (torch.ones(2, 1), "(2, 1)"),
        (torch.ones(()), "()"),
        ([1.0, 1.0], "list"),
        (torch.tensor([1, -1]), "at least 0, got -1"),
        (torch.tensor([1.0, -1.0]), "at least 0, got -1.0"),
    ],
)
def test_weights_of_another_shape_or_below_0_are_refused(objective, weights, word):
    refused(
        lambda: objective(torch.rand(2), 0.1, sample_weight=weights),
        "sample_weight must be a ",
        word,
    )


@every
@pytest.mark.parametrize("bad", [torch.tensor(1.0), [0.1, 0.2], torch.tensor([1, 2]), None])
def test_anything_but_a_vector_of_losses_is_refused(objective, bad):
    word = str(bad.dtype) if isinstance(bad, torch.Tensor) else type(bad).__name__
    refused(lambda: objective(bad, 0.1), "losses", "shape (n,)", "reduction='none'", word)


@every
@pytest.mark.parametrize("weights", [None, torch.ones(0)], ids=["plain", "weights"])
def test_an_empty_batch_is_nan_as_torchs(objective, weights):
    assert nn.CrossEntropyLoss()(torch.ones(0, 3), torch.ones(0).long()).isnan()
    assert objective(torch.ones(0), 0.1, sample_weight=weights).isnan()


def test_sums_of_an_empty_batch_are_zero_as_torchs():
    for objective in (F.erm, F.iflood, F.softad):
        assert objective(torch.ones(0), 0.1, reduction="sum") == 0
        assert objective(torch.ones(0), 0.1, reduction="none").shape == (0,)


# Numbers

NUMBERS = {  # name in the message → functions of a number, and values out of its range
    "theta": ([partial(f, SPREAD) for f in (F.softad, F.flooding, F.iflood)], []),
    "sigma": (
        [partial(F.softad, SPREAD, 0.1), partial(F.softad_derivative, SPREAD, 0.1)],
        [-1.0, 0.0],
    ),
    "eta": ([lambda eta: F.softad(SPREAD, 0.1, eta=eta)], []),
    "gamma": ([partial(F.focal, SPREAD)], [-0.1]),
    "beta": ([partial(F.cvar, SPREAD)], [-0.1, 1.0, 1.5]),
    "radius": ([partial(F.chi2_dro, SPREAD)], [-0.1]),
    "t": ([partial(F.tilted, SPREAD)], []),
    "alpha": ([lambda alpha: F.flood_levels(SPREAD, 0.5, alpha)], []),
    "smoothing": (
        [partial(F.class_probabilities, torch.zeros(1, 2), F.erm_derivative)],
        [-0.1, 1.0],
    ),
}
BAD = [math.nan, math.inf, "0.1", True, None]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_none_or_out_of_range_are_refused(name):
    functions, out_of_range = NUMBERS[name]
    for function in functions:
        for bad in [*BAD, *out_of_range]:
            refused(partial(function, bad), f"{name} must be a ", f"got {bad!r}")
        for bad in out_of_range:
            refused(partial(function, torch.tensor(bad)), f"{name} must be a ")


@pytest.mark.parametrize("bad", [*BAD, -0.1, 1.1, torch.tensor(1.5)], ids=repr)
def test_flood_levels_take_a_gamma_of_0_to_1(bad):
    refused(
        lambda: F.flood_levels(SPREAD, bad), "gamma must be a number of at least 0 and at most 1"
    )


@given(st.floats(-10, 10, width=32), st.sampled_from(F.SCALES))
def test_tensor_sigma_that_is_not_positive_is_refused_or_nan(sigma, scale):
    """Read on a CPU it is refused; under `vmap` it gives NaN and never another sign."""
    losses = torch.tensor([0.0, 0.5, 3.0])
    for function in (F.softad, F.softad_derivative):
        each = vmap(lambda s, f=function: f(losses, 0.1, s, scale=scale))(torch.tensor([sigma]))
        if sigma >= 1e-12:
            value = function(losses, 0.1, torch.tensor(sigma), scale=scale)
            torch.testing.assert_close(value, function(losses, 0.1, sigma, scale=scale))
            torch.testing.assert_close(each[0], value)
        elif sigma <= 0:
            assert each.isnan().all()


# Shapes, words, gradients

PARAMS = {"weight": torch.ones(2)}
HALF = {"weight": torch.zeros(2, dtype=torch.float16)}
RULES = {
    "sam": F.sam_gradient,
    "asam": F.asam_gradient,
    "gnp": F.gnp_gradient,
    "fdgr": F.fdgr_gradient,
}


def gradient(params, track=True):
    return params


def logits(values):
    return F.class_probabilities(values, F.erm_derivative)


REFUSALS = {
    "theta": (lambda: F.softad(SPREAD, torch.zeros(5, 1)), "theta", "() or (5,)", "(5, 1)"),
    "theta of weights": (lambda: F.softad_derivative(SPREAD, torch.zeros(5, 1)), "theta", "(5, 1)"),
    "sigma": (lambda: F.softad(SPREAD, 0.1, torch.ones(5, 1)), "sigma", "() or (5,)", "(5, 1)"),
    "sigma of weights": (lambda: F.softad_derivative(SPREAD, 0.1, torch.ones(5, 1)), "(5, 1)"),
    "flooding": (lambda: F.flooding(torch.ones(3), torch.ones(3)), "theta", "()", "(3,)"),
    "cvar": (lambda: F.cvar(SPREAD, torch.full((5,), 0.1)), "beta must have shape ()", "(5,)"),
    "adaflood, number": (lambda: F.adaflood(SPREAD, 0.1), "theta", "(5,)", "float"),
    "adaflood, one": (lambda: F.adaflood(SPREAD, torch.tensor(0.1)), "(5,)", "()"),
    "adaflood, four": (lambda: F.adaflood(SPREAD, torch.ones(4)), "(5,)", "(4,)"),
    "scale": (lambda: F.softad_derivative(SPREAD, 0.1, scale="txt"), "'txt'", "code, text"),
    "reduction": (lambda: F.erm(SPREAD, reduction="average"), "'average'", "mean, sum, none"),
    "perturb": (lambda: F.perturb(HALF, HALF, 0.1), "weight is float16", "use float32"),
    "asam": (lambda: F.asam_perturb(HALF, HALF, 0.1), "weight is float16", "use float32"),
    "variant": (lambda: F.asam_perturb(PARAMS, PARAMS, 0.1, "own"), "'own'", "official, davda54"),
    "eta": (lambda: F.asam_perturb(PARAMS, PARAMS, 0.1, eta=-0.1), "eta", "at least 0", "-0.1"),
    "mixing": (lambda: F.gnp_gradient(gradient, PARAMS, 0.1, mixing=True), "True", "paper, official"),
    "scheme": (
        lambda: F.fdgr_gradient(gradient, PARAMS, 0.1, scheme="back"), "'back'", "forward, centered"
    ),
    "step": (lambda: F.fdgr_gradient(gradient, PARAMS, 0.1, step_size=0.0), "step_size", "above 0, got 0.0"),
    "logits of integers": (lambda: logits(torch.tensor([1, 2])), "logits", "int64"),
    "logits in a list": (lambda: logits([[0.0, 1.0]]), "logits", "list"),
    "one column": (lambda: logits(torch.zeros(5, 1)), "(5, 1)", "columns 0 and z"),
    "one number": (lambda: logits(torch.tensor(0.0)), "shape ()"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "words"), [(c, w) for c, *w in REFUSALS.values()], ids=REFUSALS)
def test_the_message_has_the_value_and_what_is_allowed(call, words):
    refused(call, *words)


@pytest.mark.parametrize("name", RULES)
def test_an_unknown_bn_update_is_refused(name):
    rule = RULES[name]
    refused(lambda: rule(gradient, PARAMS, 0.1, bn_update="Both"), "'Both'", "both, first")


# Precision


def test_a_bfloat16_gradient_of_zero_does_not_move():
    zeros = {"weight": torch.zeros(2, dtype=torch.bfloat16)}
    assert F.perturb(zeros, zeros, 0.05)["weight"].tolist() == [0, 0]


@given(st.floats(-12, 30), st.sampled_from(F.SCALES))
def test_float32_gradients_are_those_of_float64_at_every_sigma(exponent, scale):
    found = []
    for dtype in (torch.float32, torch.float64):
        losses = torch.tensor([0.0, 0.5, 2.0, 1e4], dtype=dtype, requires_grad=True)
        F.softad(losses, 0.1, 10.0**exponent, scale=scale, reduction="sum").backward()
        found.append(losses.grad.double())
    torch.testing.assert_close(*found, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_weigh_as_exactly_as_others(dtype):
    losses = torch.full((70_000,), 10.0)
    assert F.erm(losses, sample_weight=torch.ones(70_000, dtype=dtype)).item() == pytest.approx(
        10, 1e-6
    )


# One name for a knob

CLASSES = {
    "flooding": losses.Flooding,
    "iflood": losses.IFlood,
    "softad": losses.SoftAD,
    "focal": losses.Focal,
    "cvar": losses.CVaR,
    "chi2": losses.ChiSquareDRO,
    "tilted": losses.Tilted,
    "sam": optim.SAM,
    "asam": optim.ASAM,
    "msam": optim.MSAM,
    "gnp": optim.GNP,
    "fdgr": optim.FDGR,
}


@pytest.mark.parametrize("name", [name for name in CLASSES if name in METHODS])
def test_a_knob_has_one_name_in_sweeps_functions_and_classes(name):
    method = METHODS[name]
    function = method.objective if method.rule is F.plain_gradient else method.rule
    assert method.hyperparameter in inspect.signature(function).parameters
    assert method.hyperparameter in inspect.signature(CLASSES[name]).parameters
