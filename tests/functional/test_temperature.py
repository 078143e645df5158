"""SoftAD is a temperature of two: what a criterion asks for, against numeric minimisers and random search.

Two classes, of which one has probability p; q is the softmax at the minimum of p·f(−ln q) + (1 − p)·f(−ln(1 − q)).
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize, minimize_scalar

from softadlib import ERM, Focal, IFlood, SoftAD
from softadlib import functional as F

LN2 = math.log(2)
TRUE = np.array([0.501, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999])
softad_at_0 = partial(F.softad_derivative, theta=0.0)


def logit(p):
    return np.log(p / (1 - p))


def rho(x):
    return np.sqrt(1 + x**2) - 1


def asked(f, p):
    """The logit of the minimiser of two classes, by scipy."""

    def risk(z):
        return p * f(np.logaddexp(0, -z)) + (1 - p) * f(np.logaddexp(0, z))

    return minimize_scalar(risk, bounds=(0, 60), method="bounded", options={"xatol": 1e-10}).x


def minimiser(f, p, start=None):
    """The softmax of K classes at the minimum of Σ p_k f(−ln q_k), by scipy."""

    def risk(free):
        z = np.append(free, 0.0)
        return (p * f(np.logaddexp.reduce(z) - z)).sum()

    start = np.log(p[:-1] / p[-1]) if start is None else start
    found = minimize(risk, start, method="BFGS", options={"gtol": 1e-10, "maxiter": 10_000})
    q = np.exp(np.append(found.x, 0.0))
    return q / q.sum()


# The function


@pytest.mark.parametrize(
    ("derivative", "f"),
    [
        (softad_at_0, rho),
        (partial(F.softad_derivative, theta=0.1, sigma=0.5), lambda v: rho((v - 0.1) / 0.5)),
        (partial(F.softad_derivative, theta=0.5), lambda v: rho(v - 0.5)),
        (partial(F.focal_derivative, gamma=2.0), lambda v: (1 - np.exp(-v)) ** 2 * v),
        (F.erm_derivative, lambda v: v),
    ],
    ids=["softad", "softad, narrow", "softad, high", "focal", "erm"],
)
@pytest.mark.parametrize("p", [0.6, 0.9])
def test_it_is_the_ratio_of_logits_at_the_minimum(derivative, f, p):
    assert F.temperature_asked(derivative, p) == pytest.approx(logit(p) / asked(f, p), rel=1e-5)


def test_the_temperature_of_iflood_by_hand():
    """Its minimiser is p, and e^−θ where that is less."""
    derivative = partial(F.iflood_derivative, theta=0.25)
    assert F.temperature_asked(derivative, 0.7) == pytest.approx(1, abs=1e-12)
    at_theta = logit(0.95) / logit(math.exp(-0.25))
    assert F.temperature_asked(derivative, 0.95) == pytest.approx(at_theta, rel=1e-9)


def test_from_ln_2_on_no_logits_have_the_right_order():
    for theta in (LN2, 1.0, 3.0):
        assert F.temperature_asked(partial(F.softad_derivative, theta=theta)) == math.inf


def test_smoothed_targets_by_hand():
    """The minimiser of cross-entropy is (1 − α)p + α/2."""
    found = F.temperature_asked(F.erm_derivative, 0.9, smoothing=0.2)
    assert found == pytest.approx(logit(0.9) / logit(0.8 * 0.9 + 0.1), rel=1e-9)


@pytest.mark.parametrize(
    "criterion",
    [ERM(), SoftAD(0.01), SoftAD(0.1, sigma=0.3, scale="text"), IFlood(0.1), Focal(2.0)],
)
def test_every_additive_criterion_has_it(criterion):
    z = torch.linspace(0.01, 3, 2991, dtype=torch.float64)
    logits = torch.stack([z, torch.zeros_like(z)], 1)
    right, wrong = (criterion.per_sample(logits, torch.full((2991,), y)) for y in (0, 1))
    best = z[(0.8 * right + 0.2 * wrong).argmin()].item()
    assert criterion.temperature(0.8) == pytest.approx(logit(0.8) / best, rel=0.01)


# Statement A: θ = 0, σ = 1


def test_two_classes_have_a_temperature_between_1_9745_and_2():
    lowest = 1 + 1 / (LN2 * (1 + LN2**2))
    assert lowest == pytest.approx(1.9745, abs=5e-5)
    found = [F.temperature_asked(softad_at_0, p) for p in TRUE]
    assert min(found) >= lowest - 1e-6
    assert max(found) < 2
    assert F.temperature_asked(softad_at_0, 0.5 + 1e-6) == pytest.approx(lowest, abs=1e-4)
    assert (np.diff(found) > 0).all(), "towards 2 as p goes to 1"


def test_the_probability_asked_for_is_that_of_a_temperature_of_two_to_0_0022():
    p = np.linspace(0.5, 1, 2001)[1:-1]
    z = np.array([brentq(lambda z, v=v: gap(z) - logit(v), 0, 60) for v in p])
    off = np.abs(1 / (1 + np.exp(-z)) - 1 / (1 + np.exp(-logit(p) / 2)))
    assert 0.0021 < off.max() <= 0.0022


def gap(z):
    """logit p of the true probability, from z = logit q: z + ln φ(ln(1+e^z)) − ln φ(ln(1+e^−z))."""
    high, low = np.logaddexp(0, z), np.logaddexp(0, -z)
    return z + np.log(high / np.hypot(1, high)) - np.log(low / np.hypot(1, low))


def by_multiplier(p):
    """The minimiser of Σ p_k ρ(−ln q_k): p_k φ(−ln q_k)/q_k = λ for all k, with λ such that Σ q_k = 1."""

    def shares(log_multiplier):
        def left(log_q, p_k):
            return np.log(p_k * -log_q / np.hypot(1, log_q)) - log_q - log_multiplier

        return np.exp([brentq(left, -200, -1e-15, args=(p_k,), xtol=1e-15) for p_k in p])

    return shares(brentq(lambda v: shares(v).sum() - 1, -30, 30, xtol=1e-13))


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("missing", [1e-2, 1e-4, 1e-8, 1e-12])
def test_with_k_classes_the_miss_is_the_root_and_the_others_keep_their_ratios(classes, missing):
    """1 − q ≈ √(1 − p), which no temperature gives: two would ask for √((K−1)(1−p))."""
    others = np.arange(1.0, classes)
    p = np.append(1 - missing, missing * others / others.sum())
    q = by_multiplier(p)
    missed = q[1:].sum()
    phi = -np.log(missed) / np.hypot(
        1, np.log(missed)
    )  # of the others at least this, and 1 at most
    assert np.sqrt(phi) * (1 - missed) <= missed / np.sqrt(missing) < 1
    ratios = q[1:] / q[-1] / (p[1:] / p[-1])
    assert phi <= ratios.min()
    assert ratios.max() <= 1 / phi


def test_ten_classes_of_which_one_has_nine_tenths():
    p = np.append(0.9, np.full(9, 0.1 / 9))
    assert minimiser(rho, p)[0] == pytest.approx(0.734, abs=5e-4)
    assert by_multiplier(p)[0] == pytest.approx(0.734, abs=5e-4)
    at_two = p**0.5 / (p**0.5).sum()
    assert at_two[0] == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize(
    ("sigma", "expected"), [(0.03, 1.02), (0.1, 1.12), (0.3, 1.39), (1.0, 1.98), (3.0, 2.35)]
)
def test_the_temperature_by_sigma(sigma, expected):
    found = SoftAD(0.0, sigma=sigma).temperature()
    assert found == pytest.approx(expected, abs=0.005)


def test_focal_loss_asks_for_2_7_and_none_for_1():
    assert Focal(2.0).temperature() == pytest.approx(2.7, abs=0.05)
    assert ERM().temperature() == pytest.approx(1, abs=1e-12)
    assert SoftAD(0.0, sigma=1e-6, scale="text").temperature() == pytest.approx(1, abs=1e-3)


# Statement B: one minimiser, and the classes in the order of p


def random_problem(rng):
    """Sorted probabilities of three to six classes, and a θ and σ within θ + θ³/σ² < 1."""
    p = np.sort(rng.dirichlet(np.ones(rng.integers(3, 7))))
    sigma = np.exp(rng.uniform(-1, 1))
    most = brentq(lambda theta: theta + theta**3 / sigma**2 - 1, 0, 1)
    return p, rng.uniform(0, 0.99) * min(most, LN2), sigma


@pytest.mark.parametrize("seed", range(12))
def test_there_is_one_minimiser_wherever_the_search_begins(seed):
    rng = np.random.default_rng(seed)
    p, theta, sigma = random_problem(rng)

    def f(losses):
        return rho((losses - theta) / sigma)

    starts = [rng.normal(0, 3, len(p) - 1) for _ in range(6)]
    found = np.array([minimiser(f, p, start) for start in starts])
    assert np.ptp(found, 0).max() < 1e-4


def test_the_risk_is_convex_in_q_below_the_bound_and_not_above():
    """h(q) = f(−ln q) has h″ = (f″ + f′)/q², least at −ln q = 0: positive iff θ + θ³/σ² < 1."""
    q = np.linspace(0.2, 1, 4001)
    for sigma in (0.5, 1.0, 2.0):
        edge = brentq(lambda theta, s=sigma: theta + theta**3 / s**2 - 1, 0, 1)
        least = [np.diff(rho((-np.log(q) - t * edge) / sigma), 2).min() for t in (0.98, 1.02)]
        assert least[0] > 0 > least[1]
    assert brentq(lambda theta: theta + theta**3 - 1, 0, 1) == pytest.approx(0.6823, abs=5e-5)


@pytest.mark.parametrize("f", ["softad", "iflood"])
@pytest.mark.parametrize("seed", range(6))
def test_below_ln_2_the_classes_keep_their_order(seed, f):
    """By random search: exchanging two classes that stand in the wrong order always lowers the risk."""
    rng = np.random.default_rng(seed)
    for _ in range(200):
        p, _, sigma = random_problem(rng)
        theta = rng.uniform(0, LN2)
        q = rng.dirichlet(np.ones(len(p)))
        value = rho((-np.log(q) - theta) / sigma) if f == "softad" else abs(-np.log(q) - theta)
        j, k = rng.choice(len(p), 2, replace=False)
        exchanged = value.copy()
        exchanged[[j, k]] = value[[k, j]]
        if (p[j] - p[k]) * (q[j] - q[k]) < 0:
            assert p @ exchanged < p @ value


def test_above_ln_2_an_exchange_may_raise_it():
    """What the test above could not say if it held for every θ: the cliff."""
    p, q, theta = np.array([0.4, 0.6]), np.array([0.6, 0.4]), 1.0
    assert p @ rho(-np.log(q[::-1]) - theta) > p @ rho(-np.log(q) - theta)


# Statement D: what concentration says on errors


@pytest.mark.parametrize("seed", range(8))
def test_the_error_is_at_most_the_mean_over_that_of_ln_2(seed):
    """err ≤ E ρ(ℓ−θ)/ρ(ln 2−θ): a wrong sample has a loss of at least ln 2."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        classes = rng.integers(2, 8)
        z = rng.normal(0, np.exp(rng.uniform(-1, 2)), (100, classes))
        y = rng.integers(classes, size=100)
        losses = np.logaddexp.reduce(z, 1) - z[np.arange(100), y]
        wrong = z.argmax(1) != y
        assert losses[wrong].min(initial=math.inf) >= LN2
        for theta in rng.uniform(0, 0.99 * LN2, 5):
            assert wrong.mean() <= rho(losses - theta).mean() / rho(LN2 - theta)
            assert wrong.mean() <= ((losses - theta) ** 2).mean() / (LN2 - theta) ** 2


def test_the_bound_is_attained_by_ties_and_losses_of_theta():
    """Half of the samples at θ and half wrong by a hair: nothing smaller holds for all."""
    theta = 0.2
    losses = np.array([theta] * 5 + [LN2] * 5)
    assert rho(losses - theta).mean() / rho(LN2 - theta) == pytest.approx(0.5)
