"""GradScaler, the two-call form and MSAM: held against loops written out here, in float64."""

import copy

import pytest
import torch
from helpers.plain_loop import msam_step
from torch import nn
from torch.optim import SGD, Adam, AdamW

from softadlib import ASAM, FDGR, GNP, MSAM, SAM
from softadlib import functional as F

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 3
RULES = {
    "sam": lambda base, model: SAM(base, 0.2),
    "asam": lambda base, model: ASAM(base, 0.5, model=model),
    "asam, davda54": lambda base, model: ASAM(base, 0.5),
    "gnp": lambda base, model: GNP(base, 0.7, 0.2),
    "fdgr": lambda base, model: FDGR(base, 0.3, 0.1, scheme="centered"),
}
halves = pytest.mark.parametrize("name", ["sam", "asam", "asam, davda54"])


def network(norm=False):
    torch.manual_seed(0)
    layers = [nn.BatchNorm1d(6)] if norm else []
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Tanh(), nn.Linear(6, 3)).double()


def loss_of(model):
    return nn.functional.cross_entropy(model(X), Y)


def closure_of(model, optimizer, scaler=None):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        (scaler.scale(loss) if scaler else loss).backward()
        return loss

    return closure


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# A GradScaler


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("scale", [2.0**16, 2.0**-3])
def test_twenty_scaled_steps_are_twenty_plain_ones(name, scale):
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=7)):
        model = network()
        optimizer = RULES[name](SGD(model.parameters(), lr=0.1, momentum=0.9), model)
        for _ in range(20):
            optimizer.step(closure_of(model, optimizer, scaler), scaler=scaler)
        ends.append(weights(model))
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    assert scaler.get_scale() == 4 * scale, "one update a step"
    assert (ends[0] - weights(network())).norm() > 0.5


@pytest.mark.parametrize("bad", [1, 2])
def test_a_pass_that_overflows_skips_the_step_and_halves_the_scale(bad):
    model, calls = network(), []
    optimizer = SAM(SGD(model.parameters(), lr=0.1, momentum=0.9), 0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss * (torch.inf if len(calls) == bad else 1.0)).backward()
        return loss

    before = weights(model)
    assert optimizer.step(closure, scaler=scaler).item() == loss_of(model).item()
    assert len(calls) == bad, "no pass after one that overflowed"
    assert torch.equal(weights(model), before)
    assert not optimizer.state
    assert scaler.get_scale() == 512.0
    optimizer.step(closure, scaler=scaler)
    twin = network()
    plain = SAM(SGD(twin.parameters(), lr=0.1, momentum=0.9), 0.2)
    plain.step(closure_of(twin, plain))
    assert torch.equal(weights(model), weights(twin))


def test_hooks_of_the_step_clip_unscaled_gradients():
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu")):
        model = network()
        optimizer = SAM(SGD(model.parameters(), lr=1.0), 0.2)

        def clip(*_, model=model):
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        optimizer.register_step_pre_hook(clip)
        optimizer.step(closure_of(model, optimizer, scaler), scaler=scaler)
        ends.append(weights(model))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
    assert (ends[0] - weights(network())).norm() == pytest.approx(0.01, rel=1e-3)


# Two halves


@halves
@pytest.mark.parametrize(
    "base", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.01)]
)
def test_two_halves_are_the_step_with_a_closure_to_the_bit(name, base):
    whole, parts = network(norm=True), network(norm=True)
    one, two = (RULES[name](base(m.parameters()), m) for m in (whole, parts))
    schedule = torch.optim.lr_scheduler.StepLR(two, 100)  # warns where it sees no step
    for _ in range(10):
        one.step(closure_of(whole, one))
        two.zero_grad()
        loss_of(parts).backward()
        two.first_step(zero_grad=True)
        loss_of(parts).backward()
        two.second_step(zero_grad=True)
    schedule.step()
    assert torch.equal(weights(whole), weights(parts))
    assert all(torch.equal(a, b) for a, b in zip(whole.buffers(), parts.buffers()))
    assert all(p.grad is None for p in parts.parameters())


@halves
def test_halves_around_accumulated_micro_batches_are_the_step_of_the_whole_batch(name):
    whole, parts = network(), network()
    one, two = (RULES[name](SGD(m.parameters(), lr=0.1), m) for m in (whole, parts))
    one.step(closure_of(whole, one))
    for half in (two.first_step, two.second_step):
        for x, y in zip(X.split(4), Y.split(4)):
            (nn.functional.cross_entropy(parts(x), y) / 3).backward()
        half(zero_grad=True)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=1e-12)


def test_halves_restore_every_bit_and_keep_the_statistics_of_the_first():
    model = network(norm=True)
    twin = copy.deepcopy(model)
    optimizer = SAM(SGD(model.parameters(), lr=0.0), 3.0, bn_update="first", model=model)
    before = weights(model)
    loss_of(model).backward()
    optimizer.first_step(zero_grad=True)
    assert (weights(model) - before).norm() == pytest.approx(3.0)
    loss_of(model).backward()
    optimizer.second_step()
    twin(X)
    assert torch.equal(weights(model), before)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers()))


def test_a_closure_that_fails_in_its_second_pass_leaves_no_trace_in_the_scaler():
    model, calls = network(), []
    optimizer, scaler = SAM(SGD(model.parameters(), lr=0.1), 0.2), torch.amp.GradScaler("cpu")
    step = closure_of(model, optimizer, scaler)

    def closure():
        calls.append(1)
        if len(calls) % 2 == 0:
            raise MemoryError
        return step()

    for _ in range(10):
        with pytest.raises(MemoryError):
            optimizer.step(closure, scaler=scaler)
    optimizer.step(step, scaler=scaler)
    twin = network()
    plain = SAM(SGD(twin.parameters(), lr=0.1), 0.2)
    plain.step(closure_of(twin, plain))
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-12)


# MSAM


def msam_loop(model, radius, adam=False):
    """Twenty steps of the plain loop: the gradient at w − r·m/‖m‖, then torch's SGD or Adam."""
    base = Adam(model.parameters(), lr=0.01) if adam else SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(20):
        msam_step(model, base, X, Y, radius)
    return weights(model)


@pytest.mark.parametrize("adam", [False, True])
def test_twenty_steps_of_msam_are_the_plain_loop(adam):
    model, calls = network(), []
    base = Adam(model.parameters(), lr=0.01) if adam else SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = MSAM(base, 0.5)
    step = closure_of(model, optimizer)
    for _ in range(20):
        optimizer.step(lambda: calls.append(1) or step())
    assert len(calls) == 20, "one gradient a step"
    expected = msam_loop(network(), 0.5, adam)
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=1e-12)
    assert (weights(model) - msam_loop(network(), 0.0, adam)).norm() > 1e-3


def test_msam_takes_adamw_and_a_scaler():
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu")):
        model = network()
        optimizer = MSAM(AdamW(model.parameters(), lr=0.01), 0.5)
        for _ in range(5):
            optimizer.step(closure_of(model, optimizer, scaler), scaler=scaler)
        ends.append(weights(model))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


def test_the_rule_of_msam_by_hand():
    w = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1.0])}
    seen = []
    rule = lambda params, track=True: seen.append(params) or params  # noqa: E731
    for momentum in (None, {}):
        assert F.msam_gradient(rule, w, 0.5, momentum=momentum) is w
    found = F.msam_gradient(rule, w, 0.5, momentum={"a": torch.tensor([0.6, 0.8])})
    torch.testing.assert_close(found, {"a": torch.tensor([2.7, 3.6]), "b": torch.tensor([1.0])})
    zero = F.msam_gradient(rule, w, 0.5, momentum={"a": torch.zeros(2)})
    assert torch.equal(zero["a"], w["a"])
