"""Temperature and calibration error: closed forms, numeric minimisation and bins counted by hand."""

import math

import numpy as np
import pytest
import torch
from helpers.refusals import refused
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from softadlib import expected_calibration_error, fit_temperature


def draw(n, classes, spread, seed):
    """Logits (n, K) and labels drawn from their softmax: a calibrated network."""
    rng = np.random.default_rng(seed)
    z = spread * rng.standard_normal((n, classes))
    return z, (z + rng.gumbel(size=z.shape)).argmax(1)


def cross_entropy(z, y):
    return -log_softmax(z, 1)[np.arange(len(y)), y].mean()


Z, Y = draw(200, 2, 2.0, 0)


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("t", [0.25, 1.0, 50.0])
def test_the_temperature_of_a_calibrated_network_is_found(classes, t):
    z, y = draw(20000, classes, 2.0, 3)
    for prior in (0.0, 1.0):
        assert fit_temperature(t * z, y, prior=prior) == pytest.approx(t, rel=0.04)


@given(st.integers(2, 5), st.integers(0, 99), st.floats(0.3, 5), st.sampled_from([0.3, 1.0, 4.0]))
def test_it_is_the_minimum_of_the_penalised_loss(classes, seed, spread, prior):
    z, y = draw(30, classes, spread, seed)
    y[:2] = 0, 1

    def penalised(log_scale):
        s = math.exp(log_scale)
        return 30 * cross_entropy(s * z, y) + prior * (s - 1 - log_scale)

    best = minimize_scalar(penalised, bounds=(-6, 6), method="bounded").x
    assert fit_temperature(z, y, prior=prior) == pytest.approx(math.exp(-best), rel=1e-3)


def test_without_a_mistake_it_does_not_run_away():
    # right by a margin of 2 with n = 100: the likelihood alone wants T = 0
    y = np.arange(100) % 2
    z = 2 * np.eye(2)[y]
    assert fit_temperature(z, y, prior=0) < 0.01
    # 1/T = s where 2n/(1+e^2s) = prior·(1 − 1/s)
    s = 1 / fit_temperature(z, y)
    assert 200 / (1 + math.exp(2 * s)) == pytest.approx(1 - 1 / s, rel=1e-4)
    assert fit_temperature(10 * z, y) == pytest.approx(1, abs=1e-3)
    assert math.isfinite(fit_temperature(np.zeros((8, 2)), y[:8]))


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_logits_stay_finite(size):
    assert math.isfinite(fit_temperature((size * Z).astype(np.float32), Y))


def test_arrays_tensors_and_precisions_agree():
    z = torch.tensor(Z, dtype=torch.float32, requires_grad=True)
    same = fit_temperature(z.detach().numpy(), Y)
    assert fit_temperature(z, torch.tensor(Y, dtype=torch.int32)) == same
    assert fit_temperature(Z.tolist(), Y.tolist()) == pytest.approx(same, rel=1e-4)
    assert fit_temperature(z.bfloat16(), torch.tensor(Y)) == pytest.approx(same, rel=0.02)
    assert fit_temperature(Z[::-1], Y[::-1]) == pytest.approx(same, rel=1e-4)
    whole = np.round(3 * Z)
    for dtype in (np.int8, np.int64):
        assert fit_temperature(whole.astype(dtype), Y) == fit_temperature(whole, Y)
    for dtype in (np.uint8, np.uint16, np.uint64):
        assert fit_temperature(z, Y.astype(dtype)) == same


def test_one_logit_pixels_and_ignored_targets_are_those_of_columns():
    same, error = fit_temperature(Z, Y), expected_calibration_error(Z, Y)
    one = Z[:, 1] - Z[:, 0]
    for z, y in (
        (one, Y),
        (one, Y * 1.0),  # as BCEWithLogitsLoss takes them
        (one[:, None], Y),
        (one.reshape(20, 10), Y.reshape(20, 10)),  # ten labels per sample
        (np.moveaxis(Z.reshape(20, 10, 2), -1, 1), Y.reshape(20, 10)),
        (np.concatenate([Z, 9 * Z]), np.concatenate([Y, 0 * Y - 100])),
    ):
        assert fit_temperature(z, y) == pytest.approx(same, rel=1e-6)
        assert expected_calibration_error(z, y) == pytest.approx(error, abs=1e-12)


def test_the_temperature_scales_with_the_logits():
    """From gaps of 0.2 to gaps of 2,000."""
    small = fit_temperature(0.05 * Z, Y, prior=0)
    assert fit_temperature(500 * Z, Y, prior=0) == pytest.approx(1e4 * small, rel=1e-4)


def logits_of(confidence):
    """Rows (0, z) whose larger probability is `confidence`, exactly where 0.5 or 0.75."""
    return [[0.0, math.log(c / (1 - c))] for c in confidence]


def test_the_calibration_error_by_hand():
    # bins (½, 1] and (0, ½] of two: .75 and .8 once right, once wrong; .5 right by the first class
    z = logits_of([0.75, 0.8])
    assert expected_calibration_error(z, [1, 0], bins=2) == pytest.approx(abs(1 - 0.75 - 0.8) / 2)
    # (¾, 1] holds .8, (½, ¾] holds .6 and .7
    z = logits_of([0.6, 0.7, 0.8])
    wanted = (abs(1 - 0.6 + 0 - 0.7) + abs(1 - 0.8)) / 3
    assert expected_calibration_error(z, [1, 0, 1], bins=4) == pytest.approx(wanted)


def test_bins_are_closed_on_the_right():
    # a confidence of ½ belongs to (¼, ½] and .6 to (½, ¾]: errors of either sign do not cancel
    z = [[0.0, 0.0], *logits_of([0.6])]
    assert expected_calibration_error(z, [0, 0], bins=4) == pytest.approx((0.5 + 0.6) / 2)


@pytest.mark.parametrize("call", [fit_temperature, expected_calibration_error])
@pytest.mark.parametrize("change", [
    lambda p: p, lambda p: p.half(), lambda p: p.bfloat16(), lambda p: p.double(),
    lambda p: (p * 1e4).round() / 1e4, lambda p: p.half().numpy(),
])  # fmt: skip
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_probabilities_are_refused_with_what_to_pass(call, change, classes):
    p = torch.softmax(2 * torch.randn(100, classes, generator=torch.Generator().manual_seed(0)), 1)
    y = torch.arange(100) % classes
    with pytest.raises(ValueError, match=r"are probabilities, .*; pass the logits .* or the log"):
        call(change(p), y)
    assert math.isfinite(call(p.log(), y))


def test_sigmoids_are_warned_of():
    for z, y in ((Z[:, 1], Y), (Z, np.stack([1 - Y, Y | (Z[:, 0] > 0)], 1))):
        with pytest.warns(UserWarning, match="as sigmoids do; pass the logits"):
            fit_temperature(1 / (1 + np.exp(-z)), y)
    with pytest.warns(UserWarning, match="as sigmoids do; pass the logits"):
        fit_temperature(1 / (1 + np.exp(-Z)), Y)  # a sigmoid for each of several classes


def test_the_error_of_probabilities_by_their_logarithms_is_that_of_the_logits():
    logarithms = np.log(softmax(Z, 1))
    assert expected_calibration_error(logarithms, Y) == pytest.approx(
        expected_calibration_error(Z, Y), abs=1e-12
    )


ece = expected_calibration_error
REFUSALS = {
    "classes last": (lambda: fit_temperature(np.zeros((4, 5, 3)), np.zeros((4, 5))), "(4, 5, 3)", "(n, K, …)"),
    "no sample": (lambda: ece(np.zeros((0, 2)), []), "(0, 2)", "no sample"),
    "all ignored": (lambda: ece(Z, 0 * Y - 100), "no sample that counts"),
    "one-hot": (lambda: fit_temperature(Z, np.eye(2)[Y]), "one-hot", "targets.argmax(1)"),
    "one-hot pixels": (
        lambda: fit_temperature(torch.randn(2, 3, 4, 4), torch.eye(3)[:2, :, None, None].expand(2, 3, 4, 4)),
        "one-hot",
        "targets.argmax(1)",
    ),
    "batches": (lambda: fit_temperature([Z[:50], Z[50:]], [Y[:50], Y[50:]]), "torch.cat(logits)"),
    "batches of tensors": (
        lambda: ece([torch.zeros(4, 2)] * 2, [torch.zeros(4)] * 2), "a list of batches", "torch.cat"
    ),
    "class names": (lambda: fit_temperature(Z, np.array(["no", "yes"])[Y]), "targets must be class indices", "<U3"),
    "batches of targets": (lambda: fit_temperature(Z, [Y[:50], Y[50:]]), "torch.cat(targets)"),
    "per cent": (lambda: fit_temperature(100 * softmax(Z, 1), Y), "are probabilities", "100"),
    "one class": (lambda: fit_temperature(Z, 0 * Y), "all of class 0", "two classes"),
    "nan": (lambda: ece(np.where(Z[3, 1] == Z, np.nan, Z), Y), "NaN or infinity in 1 places"),
    "too few": (lambda: fit_temperature(Z, Y[:-1]), "(200, 2)", "(199,)"),
    "from 1": (lambda: fit_temperature(Z, Y + 1), "from 1 to 2", "0 to 1"),
    "from -1": (lambda: ece(Z, Y - 1), "from -1 to 0", "0 to 1"),
    "soft labels": (lambda: ece(Z, Y * 0.5), "class indices", "fractions", "float64"),
    "prior": (lambda: fit_temperature(Z, Y, prior=-1.0), "prior", "at least 0", "-1.0"),
    "bins": (lambda: ece(Z, Y, bins=2.5), "bins", "whole number of at least 1", "2.5"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "words"), [(c, w) for c, *w in REFUSALS.values()], ids=REFUSALS)
def test_the_message_has_the_value_and_what_is_wanted(call, words):
    refused(call, *words)


@pytest.mark.parametrize("as_numpy", [False, True])
def test_boolean_targets_are_classes_0_and_1(as_numpy):
    logits = torch.tensor([2.0, -1.0, 0.5, -3.0])
    truths = torch.tensor([True, False, False, True])
    given = truths.numpy() if as_numpy else truths
    assert fit_temperature(logits, given) == fit_temperature(logits, truths.long())
