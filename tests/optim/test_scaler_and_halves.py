"""GradScaler, the two-call form and MSAM, in float64: held against plain steps and plain loops."""

import copy

import pytest
import torch
from helpers.plain_loop import msam_step
from helpers.steps import X, Y, closure_of, loss_of, network, step, weights
from torch import nn
from torch.optim import SGD, Adam, AdamW

from softadlib import ASAM, FDGR, GNP, MSAM, SAM
from softadlib import functional as F

RULES = {
    "sam": lambda base, model: SAM(base, 0.2),
    "asam": lambda base, model: ASAM(base, 0.5, model=model),
    "asam, davda54": lambda base, model: ASAM(base, 0.5),
    "gnp": lambda base, model: GNP(base, 0.7, 0.2),
    "fdgr": lambda base, model: FDGR(base, 0.3, 0.1, scheme="centered"),
}
halves = pytest.mark.parametrize("name", ["sam", "asam", "asam, davda54"])


def double(norm=False):
    return network(batch_norm=norm).double()


# A GradScaler


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("scale", [2.0**16, 2.0**-3])
def test_twenty_scaled_steps_are_twenty_plain_ones(name, scale):
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=7)):
        model = double()
        optimizer = RULES[name](SGD(model.parameters(), lr=0.1, momentum=0.9), model)
        for _ in range(20):
            optimizer.step(closure_of(model, optimizer, scaler=scaler), scaler=scaler)
        ends.append(weights(model))
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    assert scaler.get_scale() == 4 * scale, "one update a step"
    assert (ends[0] - weights(double())).norm() > 0.5


@pytest.mark.parametrize("bad", [1, 2])
def test_a_pass_that_overflows_skips_the_step_and_halves_the_scale(bad):
    model, calls = double(), []
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
    twin = double()
    expected = step(twin, SAM(SGD(twin.parameters(), lr=0.1, momentum=0.9), 0.2))
    assert torch.equal(weights(model), expected)


def test_hooks_of_the_step_clip_unscaled_gradients():
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu")):
        model = double()
        optimizer = SAM(SGD(model.parameters(), lr=1.0), 0.2)

        def clip(*_, model=model):
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        optimizer.register_step_pre_hook(clip)
        optimizer.step(closure_of(model, optimizer, scaler=scaler), scaler=scaler)
        ends.append(weights(model))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
    assert (ends[0] - weights(double())).norm() == pytest.approx(0.01, rel=1e-3)


# Two halves


@halves
@pytest.mark.parametrize(
    "base", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.01)]
)
def test_two_halves_are_the_step_with_a_closure_to_the_bit(name, base):
    whole, parts = double(norm=True), double(norm=True)
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
    whole, parts = double(), double()
    one, two = (RULES[name](SGD(m.parameters(), lr=0.1), m) for m in (whole, parts))
    one.step(closure_of(whole, one))
    for half in (two.first_step, two.second_step):
        for x, y in zip(X.double().split(4), Y.split(4)):
            (nn.functional.cross_entropy(parts(x), y) / 3).backward()
        half(zero_grad=True)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=1e-12)


def test_a_first_half_that_was_refused_can_be_made_again():
    first, *rest = double().parameters()
    optimizer = SAM(SGD([{"params": [first]}, {"params": rest}], lr=0.1), 0.1)
    optimizer.param_groups[0]["radius"] = 0.3
    with pytest.raises(ValueError, match="radii"):
        optimizer.first_step()
    optimizer.param_groups[0]["radius"] = 0.1
    optimizer.first_step()
    optimizer.second_step()


def test_halves_restore_every_bit_and_keep_the_statistics_of_the_first():
    model = double(norm=True)
    twin = copy.deepcopy(model)
    optimizer = SAM(SGD(model.parameters(), lr=0.0), 3.0, bn_update="first", model=model)
    before = weights(model)
    loss_of(model).backward()
    optimizer.first_step(zero_grad=True)
    assert (weights(model) - before).norm() == pytest.approx(3.0)
    loss_of(model).backward()
    optimizer.second_step()
    twin(X.double())
    assert torch.equal(weights(model), before)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers()))


def test_a_closure_that_fails_in_its_second_pass_leaves_no_trace_in_the_scaler():
    model, calls = double(), []
    optimizer, scaler = SAM(SGD(model.parameters(), lr=0.1), 0.2), torch.amp.GradScaler("cpu")
    plain = closure_of(model, optimizer, scaler=scaler)

    def closure():
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        return plain()

    with pytest.raises(MemoryError):
        optimizer.step(closure, scaler=scaler)
    optimizer.step(plain, scaler=scaler)
    twin = double()
    expected = step(twin, SAM(SGD(twin.parameters(), lr=0.1), 0.2))
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=1e-12)


# MSAM


BASES = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: Adam(p, lr=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_twenty_steps_of_msam_are_the_plain_loop(base, scaled):
    model, twin, calls = double(), double(), []
    optimizer, plain = MSAM(base(model.parameters()), 0.5), base(twin.parameters())
    scaler = torch.amp.GradScaler("cpu") if scaled else None
    closure = closure_of(model, optimizer, calls, scaler)
    for _ in range(20):
        optimizer.step(closure, scaler=scaler)
        msam_step(twin, plain, X.double(), Y, 0.5)
    assert len(calls) == 20, "one gradient per step"
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-12)
    without = double()
    assert (weights(model) - step(without, base(without.parameters()), 20)).norm() > 1e-3


def test_the_rule_of_msam_by_hand():
    w = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1.0])}
    rule = lambda params, track=True: params  # noqa: E731
    for momentum in (None, {}):
        assert F.msam_gradient(rule, w, 0.5, momentum=momentum) is w
    found = F.msam_gradient(rule, w, 0.5, momentum={"a": torch.tensor([0.6, 0.8])})
    torch.testing.assert_close(found, {"a": torch.tensor([2.7, 3.6]), "b": torch.tensor([1.0])})
    zero = F.msam_gradient(rule, w, 0.5, momentum={"a": torch.zeros(2)})
    assert torch.equal(zero["a"], w["a"])
