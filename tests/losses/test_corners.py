"""Corners that people ran into: masked targets, threads, micro-batches, turned axes, the Trainer's extras."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from softadlib import (
    ERM,
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
BINARY = (LOGITS > 0.3).double()
CHANCES = torch.eye(3, dtype=torch.float64)[CLASSES]
EACH = torch.rand(6, 3, generator=GENERATOR) > 0.3
FORMS = {  # base, targets, what was measured, what stands where nothing was
    "mse": (nn.MSELoss(), BINARY, EACH, math.nan),
    "bce": (nn.BCEWithLogitsLoss(), BINARY, EACH, math.nan),
    "huber": (nn.HuberLoss(), BINARY, EACH, math.nan),
    "callable": (lambda a, b: (a - b).square(), BINARY, EACH, math.nan),
    "per cent": (lambda a, b: (a - b).abs() / b.abs(), BINARY + 1, EACH, 0.0),
    "row by row": (lambda a, b: (a - b).square().mean(1), LOGITS.flip(0), MEASURED, math.nan),
    "probabilities": (None, CHANCES, MEASURED, math.nan),
    "class out of range": (None, CLASSES, MEASURED, -1),
}


# Targets that were not measured


@pytest.mark.parametrize("name", CRITERIA)
def test_an_infinite_loss_of_weight_0_reaches_neither_value_nor_gradient(name):
    """The first class stands in for a target that does not count; here a mask of the logits rules it out."""
    masked = LOGITS.clone()
    masked[2, 0] = -math.inf
    masked.requires_grad_()
    criterion = CRITERIA[name]()
    value = criterion(masked, CLASSES.masked_fill(~MEASURED, 1), weights=MEASURED.double())
    torch.testing.assert_close(value, criterion(LOGITS[MEASURED], CLASSES[MEASURED]))
    value.backward()
    assert masked.grad.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CRITERIA)
def test_a_target_of_weight_0_reaches_neither_value_nor_gradient(name, form):
    """Partly labelled data: the value is that of the measured part alone."""
    base, targets, measured, hole = FORMS[form]
    criterion = CRITERIA[name](base=base)
    missing = ~measured if measured.ndim == targets.ndim else ~measured[:, None]
    holes = targets.masked_fill(missing, hole)
    masked, alone = (LOGITS.clone().requires_grad_() for _ in range(2))
    value = criterion(masked, holes, weights=measured.double())
    expected = criterion(alone[measured], targets[measured])
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)
    value.backward()
    expected.backward()
    torch.testing.assert_close(masked.grad, alone.grad, rtol=0, atol=1e-12)


def test_adaflood_and_pixels_leave_them_out_too():
    levels = torch.linspace(0, 1, 6, dtype=torch.float64)
    criterion, index = AdaFlood(levels, base=nn.MSELoss()), torch.arange(6)
    z, targets = LOGITS[:, 0], CLASSES.double()
    holes = targets.masked_fill(~MEASURED, math.nan)
    masked = criterion(z, holes, index, weights=MEASURED.double())
    alone = criterion(z[MEASURED], targets[MEASURED], index[MEASURED])
    torch.testing.assert_close(masked, alone, rtol=0, atol=1e-12)
    chances = CHANCES.masked_fill(~MEASURED[:, None], math.nan)
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


# Threads: nothing is changed during a call


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


def test_the_loss_for_the_trainer_leaves_the_reduction_alone():
    seen = []

    def base(input, target):
        seen.append(criterion.reduction)
        return nn.functional.cross_entropy(input, target, reduction="none")

    criterion = SoftAD(0.4, base=base)
    hf_loss(criterion)({"logits": LOGITS.clone().requires_grad_()}, CLASSES, 6)
    assert seen == ["mean"]


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
    weight, whole = (nn.Parameter(torch.zeros(3, 3).double()) for _ in range(2))
    scaler = Scaler() if scaled else None
    flooding = AccumulatedFlooding(theta)
    steps = 3
    for part in (slice(0, 3), slice(3, 4), slice(4, 6)):
        loss = flooding(LOGITS[part] @ weight, CLASSES[part]) / steps
        (loss if scaler is None else scaler.scale(loss)).backward()
    value = flooding.scale_gradients(weight, **({"scaler": scaler} if scaled else {}))
    expected = Flooding(theta)(LOGITS @ whole, CLASSES)
    expected.backward()
    scale = 1024 if scaled else 1  # `scaler.step` removes it
    torch.testing.assert_close(weight.grad, scale * whole.grad, rtol=0, atol=1e-9)
    torch.testing.assert_close(value, expected.detach(), rtol=0, atol=1e-12)


def test_a_loop_that_never_scales_is_warned():
    weight = nn.Parameter(torch.zeros(3, 3).double())
    flooding = AccumulatedFlooding(0.3)
    for _ in range(1000):
        flooding(LOGITS @ weight, CLASSES).backward()
    with pytest.warns(UserWarning, match="1000 parts without scale_gradients"):
        flooding(LOGITS @ weight, CLASSES)


def test_parts_that_are_multiplied_by_0_are_refused():
    weight = nn.Parameter(torch.zeros(3, 3).double())
    flooding = AccumulatedFlooding(0.3)
    (0 * flooding(LOGITS @ weight, CLASSES)).backward()
    with pytest.raises(ValueError, match="multiplied by 0 to 0 before backward"):
        flooding.scale_gradients(weight)


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


def test_an_infinitely_wrong_logit_is_nan_for_softad_and_infinite_for_others():
    logits = torch.tensor([[-math.inf, 0.0], [1.0, 0.0]])
    targets = torch.tensor([0, 0])
    assert SoftAD(0.1)(logits, targets).isnan()
    for criterion in (ERM(), IFlood(0.1), Flooding(0.1), Focal(2.0), CVaR(0.5)):
        assert criterion(logits, targets) == math.inf


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_monitored_criterion_outside_of_a_checkpoint_is_seen_once(reentrant):
    model = nn.Linear(3, 3).double()
    criterion = SoftAD(0.4)
    monitor = LossMonitor(criterion)
    inputs = LOGITS.clone().requires_grad_()
    criterion(checkpoint(model, inputs, use_reentrant=reentrant), CLASSES).backward()
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


def test_one_logit_per_target_without_a_binary_loss_is_warned_of():
    """Torch's cross-entropy takes them for one sample."""
    with pytest.warns(UserWarning, match=r"one sample of 4 classes; .*base=nn.BCEWithLogitsLoss"):
        SoftAD(0.1)(torch.randn(4), torch.tensor([0.0, 1.0, 1.0, 0.0]))
    SoftAD(0.1)(torch.randn(4), torch.tensor([0.0, 1.0, 0.0, 0.0]))  # a warning is an error here
