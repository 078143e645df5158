"""Corners that people ran into: masked targets, threads, micro-batches, turned axes, the Trainer's extras."""

import math
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from softadlib import (
    ERM,
    SAM,
    AccumulatedFlooding,
    AdaFlood,
    ChiSquareDRO,
    CVaR,
    Flooding,
    Focal,
    IFlood,
    LossMonitor,
    SoftAD,
    Tilted,
    hf_loss,
)

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 3, generator=GENERATOR).double()
CLASSES = torch.tensor([0, 2, 1, 1, 0, 2])
MEASURED = torch.tensor([True, True, False, True, False, True])
CRITERIA = {
    "erm": ERM,
    "softad": partial(SoftAD, 0.4, 0.5),
    "iflood": partial(IFlood, 0.4),
    "flooding": partial(Flooding, 0.4),
    "focal": partial(Focal, 2.0),
    "cvar": partial(CVaR, 0.5),
    "chi2": partial(ChiSquareDRO, 0.5),
    "tilted": partial(Tilted, 1.0),
}
every = pytest.mark.parametrize("name", CRITERIA)


def value_and_slope(criterion, logits, *args, **settings):
    leaf = logits.clone().requires_grad_()
    value = criterion(leaf, *args, **settings)
    value.backward()
    return value.detach(), leaf.grad


# Targets that were not measured


@pytest.mark.parametrize(
    "base",
    [nn.MSELoss(), nn.BCEWithLogitsLoss(), nn.HuberLoss(), lambda a, b: (a - b).square()],
    ids=["mse", "bce", "huber", "callable"],
)
@every
def test_a_nan_target_of_weight_0_reaches_neither_value_nor_gradient(name, base):
    """Partly labelled data: the value is that of the measured elements alone."""
    criterion = CRITERIA[name](base=base)
    targets = (LOGITS > 0.3).double()
    measured = torch.rand(6, 3, generator=GENERATOR) > 0.3
    holes = targets.masked_fill(~measured, math.nan)
    value, slope = value_and_slope(criterion, LOGITS, holes, weights=measured.double())
    alone, slope_alone = value_and_slope(criterion, LOGITS[measured], targets[measured])
    torch.testing.assert_close(value, alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(slope[measured], slope_alone, rtol=0, atol=1e-12)
    assert not slope[~measured].any()


@pytest.mark.parametrize("form", ["probabilities", "class out of range", "row by row"])
@every
def test_whole_samples_of_weight_0_are_left_out(name, form):
    weights = MEASURED.double()
    criterion = CRITERIA[name]()
    if form == "probabilities":
        targets = torch.eye(3, dtype=torch.float64)[CLASSES]
        holes = targets.masked_fill(~MEASURED[:, None], math.nan)
    elif form == "class out of range":
        targets = CLASSES
        holes = targets.masked_fill(~MEASURED, -1)
    else:
        criterion = CRITERIA[name](base=lambda a, b: (a - b).square().mean(1))
        targets = LOGITS.flip(0)
        holes = targets.masked_fill(~MEASURED[:, None], math.nan)
    value, slope = value_and_slope(criterion, LOGITS, holes, weights=weights)
    alone, slope_alone = value_and_slope(criterion, LOGITS[MEASURED], targets[MEASURED])
    torch.testing.assert_close(value, alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(slope[MEASURED], slope_alone, rtol=0, atol=1e-12)
    assert not slope[~MEASURED].any()


def test_adaflood_and_pixels_leave_them_out_too():
    levels = torch.linspace(0, 1, 6, dtype=torch.float64)
    index = torch.arange(6)
    base = nn.MSELoss()
    holes = CLASSES.double().masked_fill(~MEASURED, math.nan)
    masked = AdaFlood(levels, base=base)(LOGITS[:, 0], holes, index, weights=MEASURED.double())
    alone = AdaFlood(levels, base=base)(
        LOGITS[MEASURED, 0], CLASSES[MEASURED].double(), index[MEASURED]
    )
    torch.testing.assert_close(masked, alone, rtol=0, atol=1e-12)
    chances = torch.eye(3, dtype=torch.float64)[CLASSES].masked_fill(~MEASURED[:, None], math.nan)
    pixels = SoftAD(0.4)(
        LOGITS.T.reshape(1, 3, 2, 3), chances.T.reshape(1, 3, 2, 3), MEASURED.double().view(1, 2, 3)
    )
    torch.testing.assert_close(pixels, SoftAD(0.4)(LOGITS[MEASURED], CLASSES[MEASURED]))


def test_the_monitor_counts_the_samples_that_the_value_counts():
    criterion = SoftAD(0.4, base=nn.MSELoss())
    monitor = LossMonitor(criterion)
    holes = CLASSES.double().masked_fill(~MEASURED, math.nan)
    leaf = LOGITS[:, 0].clone().requires_grad_()
    criterion(leaf, holes, weights=MEASURED.double()).backward()
    row = monitor.summary()
    losses = (LOGITS[MEASURED, 0] - CLASSES[MEASURED]).square()
    assert row["samples"] == 4
    assert row["loss"] == pytest.approx(losses.mean().item())
    assert row["share_in_ascent"] == (losses < 0.4).double().mean()


# Threads


def test_eight_threads_share_a_criterion_with_class_weights():
    base = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))
    criterion = SoftAD(0.4, base=base)
    batches = [torch.randn(8, 3, generator=GENERATOR) for _ in range(50)]
    targets = torch.arange(8) % 3
    expected = [criterion(logits, targets).item() for logits in batches]

    def work(_):
        return [criterion(logits, targets).item() for _ in range(8) for logits in batches]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(work, range(8)):
            assert found == 8 * expected


def test_threads_of_the_trainer_leave_the_reduction_alone():
    criterion = SoftAD(0.4)
    loss = hf_loss(criterion)
    outputs = {"logits": LOGITS.clone().requires_grad_()}
    expected = loss(outputs, CLASSES, 6).item()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: loss(outputs, CLASSES, 6).item(), range(800)))
    assert found == 800 * [expected]
    assert criterion.reduction == "mean"


def test_label_smoothing_that_is_set_later_does_nothing():
    base = nn.CrossEntropyLoss(reduction="none")
    criterion = ERM(base=base)
    before = criterion(LOGITS, CLASSES)
    base.label_smoothing = 0.5
    assert criterion(LOGITS, CLASSES) == before


# Micro-batches of Flooding


class Scaler:
    """The public part of a GradScaler that the loop calls."""

    def scale(self, loss):
        return 1024 * loss

    def get_scale(self):
        return 1024.0


@pytest.mark.parametrize("theta", [0.3, 5.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_an_ordinary_accumulation_loop_gives_the_gradient_of_the_whole_batch(theta, scaled):
    weight = nn.Parameter(torch.zeros(3, 3).double())
    whole = nn.Parameter(torch.zeros(3, 3).double())
    scaler = Scaler() if scaled else None
    flooding = AccumulatedFlooding(theta)
    steps = 3
    for part in (slice(0, 3), slice(3, 4), slice(4, 6)):
        loss = flooding(LOGITS[part] @ weight, CLASSES[part]) / steps
        (loss if scaler is None else scaler.scale(loss)).backward()
    value = flooding.scale_gradients(weight, scaler=scaler)
    expected = Flooding(theta)(LOGITS @ whole, CLASSES)
    expected.backward()
    scale = 1024 if scaled else 1  # `scaler.step` removes it
    torch.testing.assert_close(weight.grad, scale * whole.grad, rtol=0, atol=1e-9)
    torch.testing.assert_close(value, expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("factors", "way_out"),
    [((1024, 1024), "scale_gradients(parameters, scaler=scaler)"), ((0.5, 1), "value itself")],
)
def test_parts_that_were_scaled_otherwise_are_refused(factors, way_out):
    weight = nn.Parameter(torch.zeros(3, 3).double())
    flooding = AccumulatedFlooding(0.3)
    for factor in factors:
        (factor * flooding(LOGITS @ weight, CLASSES)).backward()
    with pytest.raises(ValueError, match=re.escape(way_out)) as error:
        flooding.scale_gradients(weight)
    assert f"{max(factors):g}" in str(error.value)


# Axes


def test_logits_with_their_classes_last_are_refused_or_the_reading_is_said():
    targets = torch.randint(3, (2, 5), generator=GENERATOR)
    with pytest.raises(ValueError, match=r"\(2, 5, 3\).*\(2, 5\).*logits\.movedim\(-1, 1\)"):
        SoftAD(0.1)(torch.randn(2, 5, 3), targets)
    logits = torch.randn(2, 3, 3, generator=GENERATOR)
    criterion = SoftAD(0.1)
    with pytest.warns(UserWarning, match=r"read as \(batch, classes, length\)"):
        read = criterion(logits, targets[:, :3])
    flat = SoftAD(0.1)(logits.movedim(1, -1).flatten(0, 1), targets[:, :3].flatten())
    torch.testing.assert_close(read, flat)
    criterion(logits, targets[:, :3])  # said once


@pytest.mark.parametrize("make", [Flooding(0.1), CVaR(0.5), ChiSquareDRO(0.5), Tilted(1.0)])
def test_a_tool_that_asks_a_batchs_criterion_for_a_value_per_sample_is_told(make):
    """As opacus and fastai do, by setting `reduction`."""
    make.reduction = "none"
    with pytest.raises(ValueError, match=f"{type(make).__name__} has no value per sample"):
        make(LOGITS, CLASSES)


def test_an_infinitely_wrong_logit_is_nan_for_softad_and_infinite_for_others():
    logits = torch.tensor([[-math.inf, 0.0], [1.0, 0.0]])
    targets = torch.tensor([0, 0])
    assert SoftAD(0.1)(logits, targets).isnan()
    for criterion in (ERM(), IFlood(0.1), Flooding(0.1), Focal(2.0), CVaR(0.5)):
        assert criterion(logits, targets) == math.inf


# The monitor


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_criterion_outside_of_a_checkpoint_is_seen_once(reentrant):
    model = nn.Linear(3, 3).double()
    criterion = SoftAD(0.4)
    monitor = LossMonitor(criterion)
    inputs = LOGITS.clone().requires_grad_()
    criterion(checkpoint(model, inputs, use_reentrant=reentrant), CLASSES).backward()
    assert monitor.summary()["batches"] == 1


def test_an_exception_between_the_halves_of_one_optimizer_silences_no_other_model():
    one = nn.Linear(3, 3).double()
    other = nn.Linear(3, 3).double()
    criterion = SoftAD(0.4)
    monitor = LossMonitor(criterion)
    optimizer = SAM(torch.optim.SGD(one.parameters(), lr=0.1), 0.05)
    nn.functional.cross_entropy(one(LOGITS), CLASSES).backward()
    optimizer.first_step(zero_grad=True)  # and here the loop of `one` ends by an exception
    criterion(other(LOGITS), CLASSES).backward()
    assert monitor.summary()["batches"] == 1


# The Trainer


def test_the_routers_loss_is_added_by_its_coefficient_or_warned_of():
    logits = LOGITS.clone().requires_grad_()
    outputs = SimpleNamespace(logits=logits, aux_loss=torch.tensor(5.0))
    plain = nn.functional.cross_entropy(logits, CLASSES)
    found = hf_loss(ERM(), router_aux_loss_coef=0.02)(outputs, CLASSES, 6)
    torch.testing.assert_close(found, plain + 0.02 * 5.0)
    with pytest.warns(UserWarning, match=r"router_aux_loss_coef=model\.config"):
        torch.testing.assert_close(hf_loss(ERM())(outputs, CLASSES, 6), plain)
    outputs.logits = LOGITS
    torch.testing.assert_close(hf_loss(ERM())(outputs, CLASSES), plain)  # evaluation


def test_the_trainers_label_smoothing_is_warned_of():
    with pytest.warns(UserWarning, match=r"label_smoothing_factor=0\.1.*label_smoothing=0\.1"):
        hf_loss(SoftAD(0.1), args=SimpleNamespace(label_smoothing_factor=0.1))
    hf_loss(SoftAD(0.1), args=SimpleNamespace(label_smoothing_factor=0.0))


def test_heads_that_the_loss_is_not_for_are_named():
    loss = hf_loss(SoftAD(0.1))
    answers = SimpleNamespace(start_logits=torch.zeros(2, 5), end_logits=torch.zeros(2, 5))
    with pytest.raises(ValueError, match="SimpleNamespace has no logits"):
        loss(answers, torch.zeros(2).long())
    with pytest.raises(ValueError, match="has no logits"):
        loss(dict(vars(answers)), torch.zeros(2).long())
    masks = SimpleNamespace(logits=torch.zeros(2, 4, 8, 8))
    with pytest.raises(ValueError, match=r"\(2, 4, 8, 8\) and labels \(2, 32, 32\) do not match"):
        loss(masks, torch.zeros(2, 32, 32).long())
