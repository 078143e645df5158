"""How much a sample counts: ignored targets, weight 0, class weights and weights of single samples."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as tf

from softadlib import (
    ERM,
    AdaFlood,
    ChiSquareDRO,
    Criterion,
    CVaR,
    Flooding,
    Focal,
    IFlood,
    LossMonitor,
    SoftAD,
    Tilted,
)

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(6, 3, generator=GENERATOR, dtype=torch.float64)
CLASSES = torch.tensor([0, 2, 1, 1, 0, 2])
HOLES = torch.tensor([0, -100, 1, 1, -100, 2])
KEPT = HOLES != -100
WEIGHT = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
ADDITIVE = {
    "erm": (ERM, lambda v: v),
    "iflood": (partial(IFlood, 0.4), lambda v: 0.4 + (v - 0.4).abs()),
    "softad": (partial(SoftAD, 0.4, 0.5), lambda v: 0.4 + 0.25 * (((v - 0.4) / 0.5) ** 2 + 1).sqrt() - 0.25),
    "focal": (partial(Focal, 2.0), lambda v: (1 - (-v).exp()) ** 2 * v),
}  # fmt: skip
CRITERIA = {
    **{name: make for name, (make, _) in ADDITIVE.items()},
    "flooding": partial(Flooding, 0.4),
    "cvar": partial(CVaR, 0.5),
    "chi2": partial(ChiSquareDRO, 0.5),
    "tilted": partial(Tilted, 1.0),
}
every = pytest.mark.parametrize("name", CRITERIA)


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


# What does not count: the value and the gradient are those of the rest alone

BINARY = (LOGITS > 0.3).double()
CHANCES = torch.eye(3, dtype=torch.float64)[CLASSES]
ROWS = torch.tensor([True, True, False, True, False, True])
EACH = torch.rand(6, 3, generator=GENERATOR) > 0.3


FORMS = {  # base, targets, what counts, and what stands where nothing does
    "ignored: -100": (nn.CrossEntropyLoss(), CLASSES, ROWS, -100),
    "ignored: 7": (nn.CrossEntropyLoss(ignore_index=7), CLASSES, ROWS, 7),
    "ignored: a class": (nn.CrossEntropyLoss(ignore_index=1), CLASSES, CLASSES != 1, 1),
    "weight 0: mse": (nn.MSELoss(), BINARY, EACH, math.nan),
    "weight 0: bce": (nn.BCEWithLogitsLoss(), BINARY, EACH, math.nan),
    "weight 0: huber": (nn.HuberLoss(), BINARY, EACH, math.nan),
    "weight 0: callable": (lambda a, b: (a - b).square(), BINARY, EACH, math.nan),
    "weight 0: per cent": (lambda a, b: (a - b).abs() / b.abs(), BINARY + 1, EACH, 0.0),
    "weight 0: row by row": (lambda a, b: (a - b).square().mean(1), LOGITS.flip(0), ROWS, math.nan),
    "weight 0: probabilities": (None, CHANCES, ROWS, math.nan),
    "weight 0: class out of range": (None, CLASSES, ROWS, -1),
}


@pytest.mark.parametrize("form", FORMS)
@every
def test_what_does_not_count_reaches_neither_value_nor_gradient(name, form):
    base, targets, counted, hole = FORMS[form]
    criterion = CRITERIA[name](base=base)
    left_out = ~counted if counted.ndim == targets.ndim else ~counted[:, None]
    holes = targets.masked_fill(left_out, hole)
    weights = [] if form.startswith("ignored") else [counted.double()]
    whole, alone = (LOGITS.clone().requires_grad_() for _ in range(2))
    value = criterion(whole, holes, *weights)
    expected = criterion(alone[counted], targets[counted])
    assert_equal(value, expected)
    value.backward()
    expected.backward()
    assert_equal(whole.grad, alone.grad)


@every
def test_an_infinite_loss_of_weight_0_reaches_neither_value_nor_gradient(name):
    """The first class stands in for a target that does not count; here a mask of the logits rules it out."""
    masked = LOGITS.clone()
    masked[2, 0] = -math.inf
    masked.requires_grad_()
    criterion = CRITERIA[name]()
    value = criterion(masked, CLASSES.masked_fill(~ROWS, 1), sample_weight=ROWS.double())
    torch.testing.assert_close(value, criterion(LOGITS[ROWS], CLASSES[ROWS]))
    value.backward()
    assert masked.grad.isfinite().all()


def test_nll_adaflood_pixels_and_the_monitor_leave_them_out_too():
    nll = SoftAD(0.4, base=nn.NLLLoss())(LOGITS.log_softmax(1), HOLES)
    assert_equal(nll, SoftAD(0.4)(LOGITS[KEPT], HOLES[KEPT]))
    levels, index = torch.linspace(0, 1, 6, dtype=torch.float64), torch.arange(6)
    criterion = AdaFlood(levels)
    alone = criterion(LOGITS[KEPT], HOLES[KEPT], index[KEPT])
    assert_equal(criterion(LOGITS, HOLES, index), alone)
    holes = CLASSES.double().masked_fill(~ROWS, math.nan)
    criterion = AdaFlood(levels, base=nn.MSELoss())
    masked = criterion(LOGITS[:, 0], holes, index, sample_weight=ROWS.double())
    assert_equal(masked, criterion(LOGITS[ROWS, 0], CLASSES[ROWS].double(), index[ROWS]))
    chances = CHANCES.masked_fill(~ROWS[:, None], math.nan).T.reshape(1, 3, 2, 3)
    pixels = SoftAD(0.4)(LOGITS.T.reshape(1, 3, 2, 3), chances, ROWS.double().view(1, 2, 3))
    assert_equal(pixels, SoftAD(0.4)(LOGITS[ROWS], CLASSES[ROWS]))
    criterion = SoftAD(0.4, base=nn.MSELoss())
    monitor = LossMonitor(criterion)
    criterion(LOGITS[:, 0].clone().requires_grad_(), holes, sample_weight=ROWS.double())
    losses = (LOGITS[ROWS, 0] - CLASSES[ROWS]).square()
    row = monitor.summary()
    assert (row["samples"], row["loss"]) == (4, pytest.approx(losses.mean().item()))
    assert row["share_in_ascent"] == (losses < 0.4).double().mean()


def test_where_nothing_counts_the_mean_is_nan_as_in_torch_and_the_sum_is_0():
    none = torch.full((6,), -100)
    assert nn.CrossEntropyLoss()(LOGITS, none).isnan()
    for make in CRITERIA.values():
        assert make()(LOGITS, none).isnan()
    assert SoftAD(0.4, reduction="sum")(LOGITS, none) == 0
    leaf = LOGITS[:, 0].clone().requires_grad_()
    criterion = SoftAD(0.4, base=nn.MSELoss(), reduction="sum")
    criterion(leaf, torch.full((6,), math.nan), torch.zeros(6)).backward()
    assert leaf.grad.tolist() == [0] * 6


# Class weights, by hand


@pytest.mark.parametrize("name", ADDITIVE)
def test_class_weights_weigh_the_transformed_losses(name):
    make, transform = ADDITIVE[name]
    values = tf.cross_entropy(LOGITS, CLASSES, reduction="none")
    each = WEIGHT[CLASSES] * transform(values)
    base = nn.CrossEntropyLoss(weight=WEIGHT)
    expected = {"mean": each.sum() / WEIGHT[CLASSES].sum(), "sum": each.sum(), "none": each}
    for reduction, value in expected.items():
        torch.testing.assert_close(make(base=base, reduction=reduction)(LOGITS, CLASSES), value)


def test_flooding_with_class_weights_is_of_the_weighted_mean():
    base = nn.CrossEntropyLoss(weight=WEIGHT)
    expected = 9 + (base(LOGITS, CLASSES) - 9).abs()
    torch.testing.assert_close(Flooding(9.0, base=base)(LOGITS, CLASSES), expected)


# Weights of single samples


@pytest.mark.parametrize(
    ("name", "weight"),
    [(name, None) for name in (*CRITERIA, "adaflood")]
    + [(name, WEIGHT) for name in (*ADDITIVE, "flooding", "adaflood")],
)
def test_whole_weights_are_repeated_samples(name, weight):
    """Beside ignored targets and class weights, in value and gradient."""
    times = torch.tensor([1, 5, 2, 0, 3, 1])
    levels = torch.linspace(0, 1, 6, dtype=torch.float64)
    make = {**CRITERIA, "adaflood": partial(AdaFlood, levels)}[name]
    criterion = make(base=nn.CrossEntropyLoss(weight=weight))
    args = [HOLES, torch.arange(6)] if name == "adaflood" else [HOLES]
    rows = torch.arange(6).repeat_interleave(times)
    weighed, repeated = (LOGITS.clone().requires_grad_() for _ in range(2))
    found = criterion(weighed, *args, sample_weight=times.double())
    expected = criterion(repeated[rows], *(a[rows] for a in args))
    assert_equal(found, expected)
    found.backward()
    expected.backward()
    assert_equal(weighed.grad, repeated.grad)


def test_weights_of_pixels():
    w = torch.tensor([1.0, 0.0, 2.0, 1.0, 3.0, 1.0], dtype=torch.float64)
    whole = Flooding(0.4)(LOGITS, CLASSES, w)
    pixels = Flooding(0.4)(LOGITS.T.reshape(1, 3, 2, 3), CLASSES.view(1, 2, 3), w.view(1, 2, 3))
    assert_equal(pixels, whole)


def test_weights_by_class_are_the_recipe_for_smoothing_and_soft_targets():
    """Σ w_y·ℓ/Σ w_y with ℓ smoothed, by a loop."""
    criterion = ERM(base=nn.CrossEntropyLoss(label_smoothing=0.2))
    total = norm = 0.0
    for z, y in zip(LOGITS, CLASSES):
        logp = z.log_softmax(0)
        loss = -(0.8 * logp[y] + 0.2 * logp.mean())
        total, norm = total + WEIGHT[y] * loss, norm + WEIGHT[y]
    assert_equal(criterion(LOGITS, CLASSES, sample_weight=WEIGHT[CLASSES]), total / norm)


def test_gradient_weights_of_a_users_criterion_of_the_whole_batch():
    class Squared(Criterion):
        additive = False

        def reduce(self, losses, weights=None, reduction="mean"):
            return losses.mean() ** 2

    found = Squared().gradient_weights(torch.tensor([1.0, 2.0, 6.0]))
    torch.testing.assert_close(found, torch.full((3,), 6.0))  # n · 2 · mean / n


def test_a_sample_that_does_not_count_has_no_gradient_weight():
    weights = Flooding(0.1).gradient_weights(
        torch.tensor([1.0, 9.0, 2.0]), torch.tensor([1.0, 0, 3])
    )
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.0, 1.0]))  # the mean is above θ
