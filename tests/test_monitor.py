"""LossMonitor against numbers counted by numpy over the same batches, and what it must not cost or see."""

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from softadlib import (
    ERM,
    SAM,
    AdaFlood,
    CVaR,
    Flooding,
    Focal,
    IFlood,
    LossMonitor,
    SoftAD,
)
from softadlib.monitor import LEVELS

LEVEL = torch.linspace(0.1, 2, 6, dtype=torch.float64)
GENERATOR = torch.Generator().manual_seed(0)
BATCHES = [
    (2 * torch.randn(6, 3, generator=GENERATOR).double(), torch.tensor(targets))
    for targets in ([0, 1, 2, 0, 1, 2], [0, -100, 2, -100, 1, 1], [2, 2, 0, 0, 1, 1])
]
CASES = {
    "erm": (ERM, lambda v: np.ones_like(v)),
    "softad": (lambda: SoftAD(0.6, 0.5), lambda v: 0.5 * (v - 0.6) / np.hypot(0.5, v - 0.6)),
    "softad, sum": (lambda: SoftAD(0.6, reduction="sum"), lambda v: (v - 0.6) / np.hypot(1, v - 0.6)),
    "iflood": (lambda: IFlood(0.6), lambda v: np.sign(v - 0.6)),
    "flooding": (lambda: Flooding(1.0), lambda v: np.full_like(v, np.sign(v.mean() - 1.0))),
    "focal": (lambda: Focal(1.0), lambda v: 1 - np.exp(-v) + v * np.exp(-v)),
    "cvar": (lambda: CVaR(0.5), lambda v: 2.0 * (v.argsort().argsort() >= len(v) / 2)),
}  # fmt: skip


def losses_of(logits, targets):
    values = nn.functional.cross_entropy(logits, targets, reduction="none").detach().numpy()
    return values[targets.numpy() != -100]


def train(criterion, batches, *extra):
    for logits, targets in batches:
        criterion(logits.clone().requires_grad_(), targets, *extra).sum().backward()


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_what_numpy_counts_over_its_batches(name):
    make, weight_of = CASES[name]
    criterion = make()
    monitor = LossMonitor(criterion)
    train(criterion, BATCHES)
    each = [losses_of(*batch) for batch in BATCHES]
    losses, weights = np.concatenate(each), np.concatenate([weight_of(v) for v in each])
    row = monitor.summary()
    assert (row["batches"], row["samples"]) == (3, 16)
    assert row["loss"] == pytest.approx(losses.mean())
    assert row["mean_weight"] == pytest.approx(weights.mean())
    assert row["share_in_ascent"] == pytest.approx((weights < 0).mean())
    for level in LEVELS:
        assert row[f"q{100 * level:02.0f}"] == pytest.approx(np.quantile(losses, level))
    assert row.get("theta") == getattr(criterion, "theta", None)
    np.testing.assert_allclose(monitor.losses, losses, rtol=1e-6)


def test_a_sample_that_counts_twice_has_the_weight_of_one():
    """Flooding below θ turns every sample round alike, whatever it counts."""
    criterion, weights = Flooding(9.0), torch.tensor([1.0, 2.0, 0.0, 4.0, 1.0, 3.0]).double()
    monitor = LossMonitor(criterion)
    train(criterion, BATCHES[:1], weights)
    row, losses = monitor.summary(), losses_of(*BATCHES[0])
    assert (row["samples"], row["mean_weight"], row["share_in_ascent"]) == (5, pytest.approx(-1), 1)
    assert row["loss"] == pytest.approx(np.average(losses, weights=weights))


@pytest.mark.filterwarnings("ignore::softadlib.CalibrationWarning")
def test_the_share_in_ascent_is_of_samples_and_not_of_their_weights():
    criterion, weights = IFlood(1.0), torch.tensor([1.0, 2.0, 0.0, 4.0, 1.0, 3.0]).double()
    monitor = LossMonitor(criterion)
    train(criterion, BATCHES[:1], weights)
    counted = weights.numpy() > 0
    below = losses_of(*BATCHES[0])[counted] < 1.0
    assert monitor.summary()["share_in_ascent"] == pytest.approx(below.mean())
    assert abs(np.average(below, weights=weights[counted]) - below.mean()) > 0.01


def test_a_share_in_ascent_of_0_says_that_nothing_is_below_theta_and_steps_are_shorter():
    criterion = SoftAD(0.0)
    monitor = LossMonitor(criterion)
    train(criterion, BATCHES)
    row = monitor.summary()
    assert row["share_in_ascent"] == 0
    assert 0 < row["mean_weight"] < 1


def test_a_compiled_criterion_is_looked_at_as_the_one_inside():
    criterion = SoftAD(0.6)
    compiled = torch.compile(criterion, backend="eager")
    assert LossMonitor(compiled).criterion is criterion


def test_rows_end_every_few_batches_and_with_a_summary():
    criterion = SoftAD(0.6)
    monitor = LossMonitor(criterion, every=2)
    train(criterion, BATCHES)
    assert monitor.summary() == monitor.summary(), "no batch in between: the same row"
    assert [row["batches"] for row in monitor.history] == [2, 3]
    for row, part in zip(monitor.history, (BATCHES[:2], BATCHES[2:])):
        assert row["loss"] == pytest.approx(np.concatenate([losses_of(*b) for b in part]).mean())
    monitor.remove()
    train(criterion, BATCHES)
    assert len(monitor.history) == 2


@pytest.mark.filterwarnings("ignore::softadlib.CalibrationWarning")
def test_a_theta_that_moves_is_the_one_of_each_batch():
    criterion = IFlood(0.2)
    monitor = LossMonitor(criterion)
    shares = []
    for theta, batch in zip((0.2, 2.0, 0.5), BATCHES):
        criterion.theta = theta
        train(criterion, [batch])
        shares += list(losses_of(*batch) < theta)
    criterion.theta = 99.0
    assert monitor.summary()["share_in_ascent"] == pytest.approx(np.mean(shares))
    assert (monitor.summary()["theta"], criterion.theta) == (0.5, 99.0)


def test_adaflood_ascends_below_its_own_levels():
    criterion = AdaFlood(LEVEL)
    monitor = LossMonitor(criterion)
    train(criterion, BATCHES[:1], torch.arange(6))
    share = (losses_of(*BATCHES[0]) < LEVEL.numpy()).mean()
    assert monitor.summary()["share_in_ascent"] == pytest.approx(share)


@pytest.mark.parametrize("form", ["closure", "halves"])
def test_validation_and_later_passes_of_sam_are_left_out(form):
    torch.manual_seed(0)
    model, criterion = nn.Linear(3, 3).double(), SoftAD(0.6)
    monitor = LossMonitor(criterion)
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), 5.0)
    x, y = BATCHES[0]
    expected = losses_of(model(x), y).mean()

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        return loss

    with torch.no_grad():
        criterion(100 * model(x), y)
    criterion(model(x[:0]), y[:0])  # an empty batch
    if form == "closure":
        optimizer.step(closure)
    else:
        closure()
        optimizer.first_step(zero_grad=True)
        criterion(model(x), y).backward()
        optimizer.second_step()
    assert monitor.summary()["batches"] == 1
    assert monitor.summary()["loss"] == pytest.approx(expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_monitored_criterion_outside_of_a_checkpoint_is_seen_once(reentrant):
    model = nn.Linear(3, 3).double()
    criterion = SoftAD(0.4)
    monitor = LossMonitor(criterion)
    inputs = BATCHES[0][0].clone().requires_grad_()
    criterion(checkpoint(model, inputs, use_reentrant=reentrant), BATCHES[0][1]).backward()
    assert monitor.summary()["batches"] == 1


def test_training_is_the_same_to_the_bit_and_needs_no_second_forward():
    ends, calls = [], []
    for monitored in (False, True):
        criterion, leaf = SoftAD(0.6), BATCHES[0][0].clone().requires_grad_()
        criterion.base.loss.register_forward_hook(lambda *args: calls.append(1))
        monitor = LossMonitor(criterion, every=1) if monitored else None
        criterion(leaf, BATCHES[0][1]).backward()
        ends.append(leaf.grad)
    assert torch.equal(*ends)
    assert len(calls) == 2
    assert monitor.summary()["samples"] == 6


@pytest.mark.parametrize("make", [lambda: SoftAD(0.6), lambda: Flooding(0.6), lambda: Focal(2.0)])
def test_nothing_waits_for_the_device_until_a_row_is_full_or_read(make):
    """Fake tensors have no values: whatever looks at one, which would wait for a GPU, raises."""
    with FakeTensorMode():
        monitor = LossMonitor(make(), every=5)
        for _ in range(4):
            logits = torch.randn(8, 3, device="meta", requires_grad=True)
            monitor.criterion(logits, torch.randint(3, (8,), device="meta"))
        with pytest.raises(RuntimeError, match="numpy"):
            monitor.summary()


def test_a_monitored_criterion_can_be_copied_and_the_copy_has_its_own_rows():
    criterion = SoftAD(0.6)
    monitor = LossMonitor(criterion)
    train(copy.deepcopy(criterion), BATCHES)
    with pytest.raises(ValueError, match="has seen no batch"):
        monitor.summary()


def test_no_sample_is_lost_or_counted_twice_in_four_threads():
    criterion = SoftAD(0.1)
    monitor = LossMonitor(criterion, every=7)

    def train():
        for _ in range(200):
            criterion(torch.randn(16, 3, requires_grad=True), torch.zeros(16).long())

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert monitor.summary()["batches"] == 800
    assert sum(row["samples"] for row in monitor.history) == 800 * 16


def test_calls_under_torch_func_are_left_out():
    criterion = SoftAD(0.1)
    monitor = LossMonitor(criterion)
    logits, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    torch.vmap(torch.func.grad(lambda z, y: criterion(z[None], y[None])))(logits, targets)
    criterion(logits.requires_grad_(), targets)
    assert monitor.summary()["samples"] == 4
