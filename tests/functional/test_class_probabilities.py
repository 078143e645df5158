"""p from q against the numerical minimum of Σ_k p_k f(−ln q_k), published closed forms and by hand."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, root
from torch.func import vmap

from softadlib import functional as F

FLOAT64 = partial(torch.tensor, dtype=torch.float64)
TWO = [[0.5, 0.5], [0.6, 0.4], [0.9, 0.1], [0.02, 0.98], [0.999, 0.001]]
THREE = [[0.5, 0.3, 0.2], [0.8, 0.15, 0.05], [0.34, 0.33, 0.33], [0.01, 0.98, 0.01]]
TEN = [
    [0.1] * 10,
    [0.02] * 9 + [0.82],
    [0.3, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.04, 0.03, 0.03],
]
TRUTHS = [*TWO, *THREE, *TEN]


def softad(losses, theta, sigma):
    return np.sqrt(1 + ((losses - theta) / sigma) ** 2)


def focal(losses, gamma):
    return (1 - np.exp(-losses)) ** gamma * losses


def minimiser(p, f, smoothing=0.0):
    """Return the logits at which Σ_k p_k f(ℓ_k) is smallest, ℓ_k of smoothed targets; in numpy alone.

    Derivatives are complex steps, Im risk(z + ih)/h, exact to rounding.
    """
    p = np.array(p)

    def risk(free):
        z = np.append(free, 0)
        log_q = z - np.log(np.exp(z).sum())
        return (p * f(-(1 - smoothing) * log_q - smoothing * log_q.mean())).sum()

    def gradient(free):
        return np.array([risk(free + 1e-30j * unit).imag / 1e-30 for unit in np.eye(len(free))])

    start = np.log((1 - smoothing) * p + smoothing / len(p))
    start = (start - start[-1])[:-1]
    near = minimize(risk, start, jac=gradient, method="BFGS", options={"gtol": 1e-6}).x
    z = root(gradient, near, tol=1e-14).x
    assert abs(gradient(z)).max() < 1e-12
    around = z + 1e-3 * np.random.default_rng(0).standard_normal((20, len(z)))
    assert all(risk(other) > risk(z) for other in around), "a minimum"
    return FLOAT64(np.append(z, 0))


def assert_is(found, p, atol=1e-6):
    torch.testing.assert_close(found, FLOAT64(p), rtol=0, atol=atol)


@pytest.mark.parametrize("p", TRUTHS, ids=str)
@pytest.mark.parametrize("theta", [0.0, 0.01, 0.35])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 3.0])
def test_softad_gives_back_the_probabilities_at_its_minimum(p, theta, sigma):
    logits = minimiser(p, lambda losses: softad(losses, theta, sigma))
    for scale in F.SCALES:
        weight = partial(F.softad_derivative, theta=theta, sigma=sigma, scale=scale)
        assert_is(F.class_probabilities(logits, weight), p)


@pytest.mark.parametrize("p", TRUTHS, ids=str)
@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_focal_gives_back_the_probabilities_at_its_minimum(p, gamma):
    logits = minimiser(p, lambda losses: focal(losses, gamma))
    assert_is(F.class_probabilities(logits, partial(F.focal_derivative, gamma=gamma)), p)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_focal_is_the_published_closed_form(gamma):
    """Ψ(v)_k ∝ v_k/φ(v_k), φ(v) = (1−v)^γ − γ(1−v)^(γ−1) v ln v: Charoenphakdee et al. (2021), Theorem 11."""
    v = torch.softmax(torch.randn(200, 5, generator=torch.manual_seed(1), dtype=torch.float64), 1)
    phi = (1 - v) ** gamma - gamma * (1 - v) ** (gamma - 1) * v * v.log()
    published = (v / phi) / (v / phi).sum(1, keepdim=True)
    found = F.class_probabilities(v.log(), partial(F.focal_derivative, gamma=gamma))
    torch.testing.assert_close(found, published, rtol=1e-12, atol=0)


@pytest.mark.parametrize("p", TRUTHS, ids=str)
@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_smoothed_labels_give_back_the_probabilities(p, alpha):
    logits = minimiser(p, lambda losses: losses, alpha)
    smoothed = (1 - alpha) * FLOAT64(p) + alpha / len(p)
    torch.testing.assert_close(logits.softmax(0), smoothed, rtol=0, atol=1e-10)
    assert_is(F.class_probabilities(logits, F.erm_derivative, smoothing=alpha), p)


@pytest.mark.parametrize("p", [TWO[2], THREE[0], TEN[1]], ids=str)
@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_softad_of_smoothed_labels_gives_back_the_probabilities(p, alpha):
    logits = minimiser(p, lambda losses: softad(losses, 0.01, 0.5), alpha)
    weight = partial(F.softad_derivative, theta=0.01, sigma=0.5)
    assert_is(F.class_probabilities(logits, weight, smoothing=alpha), p)
    plain = F.class_probabilities(logits, weight)
    assert abs(plain - FLOAT64(p)).max() > 1e-3, "the targets count"


@pytest.mark.parametrize("weight", [F.iflood_derivative, F.softad_derivative])
def test_beyond_theta_all_that_is_left_goes_to_the_class(weight):
    q = FLOAT64([[0.97, 0.02, 0.01], [0.6, 0.3, 0.1]])
    p = F.class_probabilities(q.log(), partial(weight, theta=0.1))
    assert p[0, 0] > 1 - 1e-6
    assert (p > 0).all()
    if weight is F.iflood_derivative:  # no q exceeds e^−0.1: all weigh 1
        torch.testing.assert_close(p[1], q[1])


def test_the_least_weight_is_by_hand():
    """1e-6 of the largest: p = (0.97, 1e-6·0.03)/(0.97 + 3e-8)."""
    q = FLOAT64([0.97, 0.03])
    p = F.class_probabilities(q.log(), partial(F.iflood_derivative, theta=0.1))
    torch.testing.assert_close(p[1], FLOAT64(3e-8 / (0.97 + 3e-8)), rtol=1e-9, atol=0)


def test_a_constant_weight_and_a_factor_change_nothing():
    logits = torch.randn(50, 4, generator=torch.manual_seed(0))
    torch.testing.assert_close(F.class_probabilities(logits, F.erm_derivative), logits.softmax(1))
    one = F.class_probabilities(logits, lambda losses: losses)
    torch.testing.assert_close(F.class_probabilities(logits, lambda losses: 1e-9 * losses), one)


WEIGHTS = {
    "erm": F.erm_derivative,
    "softad": partial(F.softad_derivative, theta=0.01),
    "narrow": partial(F.softad_derivative, theta=0.01, sigma=1e-3, scale="text"),
    "iflood": partial(F.iflood_derivative, theta=0.01),
    "focal": partial(F.focal_derivative, gamma=2.0),
    "above ln 2": partial(F.iflood_derivative, theta=5.0),
}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_extreme_logits_give_finite_logarithms(dtype, name, smoothing):
    large = torch.finfo(dtype).max / 4
    rows = [[large, -large, 0], [0, 0, 0], [100, 0, -100], [1e-3, 0, 0], [large, large, -large]]
    logits = torch.tensor(rows, dtype=dtype)
    log_p = F.class_log_probabilities(logits, WEIGHTS[name], smoothing)
    assert log_p.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert log_p.isfinite().all()
    p = F.class_probabilities(logits, WEIGHTS[name], smoothing)
    torch.testing.assert_close(p.sum(1), torch.ones(5, dtype=p.dtype))
    assert (p.argmax(1)[[0, 2]] == 0).all()


def test_vmap_takes_a_theta_for_each_run():
    logits = torch.randn(3, 20, 4, generator=torch.manual_seed(0))
    theta, sigma = torch.tensor([0.0, 0.1, 0.3]), torch.tensor([1.0, 0.3, 3.0])

    def of_run(logits, theta, sigma):
        return F.class_probabilities(logits, lambda v: F.softad_derivative(v, theta, sigma))

    expected = torch.stack([of_run(*run) for run in zip(logits, theta, sigma)])
    torch.testing.assert_close(vmap(of_run)(logits, theta, sigma), expected)


def test_it_compiles_whole():
    logits = torch.randn(20, 4, generator=torch.manual_seed(0))

    def function(logits):
        weight = partial(F.softad_derivative, theta=0.1, sigma=0.5)
        return F.class_probabilities(logits, weight, smoothing=0.05)

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(logits), function(logits))


def test_a_batch_of_any_shape():
    logits = torch.randn(2, 3, 4, generator=torch.manual_seed(0))
    weight = partial(F.softad_derivative, theta=0.1)
    flat = F.class_probabilities(logits.view(6, 4), weight)
    torch.testing.assert_close(F.class_probabilities(logits, weight), flat.view(2, 3, 4))


def test_the_least_weight_is_that_of_the_row():
    """ln p₀ − ln p₁ = −z − ln w₀ + ln(1e-6·w₀) where w₁ = 0: the weight w₀ of the row cancels."""
    logits = torch.tensor([[0.0, 5.0], [0.0, 50.0]], dtype=torch.float64)
    log_p = F.class_log_probabilities(logits, lambda losses: torch.where(losses < 1, 0, losses))
    expected = torch.tensor([-5.0, -50.0], dtype=torch.float64) + math.log(1e-6)
    torch.testing.assert_close(log_p[:, 0] - log_p[:, 1], expected)
