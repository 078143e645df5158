"""Every optimizer over every base is the plain loop; a GradScaler and the two halves change no bit of it."""

import functools

import pytest
import torch
from helpers.plain_loop import msam_step, sharp_step
from helpers.steps import X, Y, closure_of, loss_of, network, weights
from helpers.wrappers import SHARP, WITH_HALVES, WRAPPERS, wrap
from torch import nn
from torch.optim import SGD, Adam, AdamW

from softadlib import SAM
from softadlib import functional as F

STEPS = 20
BASES = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda model: Adam(model.parameters(), lr=0.01, amsgrad=True),
    "adamw": lambda model: AdamW(model.parameters(), lr=0.01),
    "both": lambda model: [
        SGD([p for p in model.parameters() if p.ndim == 2], lr=0.1, momentum=0.9),
        AdamW([p for p in model.parameters() if p.ndim != 2], lr=0.05),
    ],
}
PAIRS = [(name, base) for name in WRAPPERS for base in BASES if (name, base) != ("msam", "both")]
pairs = pytest.mark.parametrize(("name", "base"), PAIRS)
with_halves = pytest.mark.parametrize(
    ("name", "base"), [pair for pair in PAIRS if pair[0] in WITH_HALVES]
)


class Both:
    """Two optimizers, each of which steps."""

    def __init__(self, optimizers):
        self.optimizers = optimizers

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def start(base):
    """The network at its start. Adam would step along the rounding of a bias before batch norm."""
    return network(batch_norm=base in ("sgd", "nesterov")).double()


def plain_optimizer(base, model):
    made = BASES[base](model)
    return Both(made) if isinstance(made, list) else made


def state_of(model):
    """Copies of the weights and of batch norm's statistics."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def distance(one, two):
    return nn.utils.parameters_to_vector([one[k] - two[k] for k in one]).norm()


@functools.cache
def by_hand(name, base, bn_update="both"):
    """The state after the plain loop; after the base alone without a name."""
    model = start(base)
    optimizer = plain_optimizer(base, model)
    for _ in range(STEPS):
        if name is None:
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            continue
        wrapper = WRAPPERS[name]
        if name == "msam":
            msam_step(model, optimizer, X.double(), Y, wrapper.knob)
        else:
            method, knob = wrapper.method, wrapper.knob
            data = (X.double(), Y)
            sharp_step(method, model, optimizer, *data, knob, bn_update, **wrapper.settings)
    return state_of(model)


def trained(name, base, train, **settings):
    """The state after `train(model, optimizer)`."""
    model = start(base)
    train(model, wrap(name, BASES[base](model), model, **settings))
    return state_of(model)


def by_closure(model, optimizer, scaler=None):
    closure = closure_of(model, optimizer, scaler=scaler)
    for _ in range(STEPS):
        optimizer.step(closure, scaler=scaler)


def by_halves(model, optimizer, scaler=None):
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)  # warns where it sees no step
    for half in [optimizer.first_step, optimizer.second_step] * STEPS:
        loss = loss_of(model)
        (loss if scaler is None else scaler.scale(loss)).backward()
        half(zero_grad=True, scaler=scaler)
    schedule.step()
    assert all(p.grad is None for p in model.parameters())


@functools.cache
def by_optimizer(name, base):
    return trained(name, base, by_closure)


def assert_same_bits(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pairs
def test_twenty_steps_are_the_plain_loop(name, base):
    found = by_optimizer(name, base)
    torch.testing.assert_close(found, by_hand(name, base), rtol=0, atol=1e-12)
    assert distance(found, start(base).state_dict()) > 0.5
    assert distance(found, by_hand(None, base)) > 1e-3, "not those of the base alone"


@pytest.mark.parametrize("name", SHARP)
def test_first_keeps_the_statistics_of_the_first_pass(name):
    found = trained(name, "sgd", by_closure, bn_update="first")
    torch.testing.assert_close(found, by_hand(name, "sgd", "first"), rtol=0, atol=1e-12)
    assert distance(found, by_optimizer(name, "sgd")) > 1e-3


@pytest.mark.parametrize(
    ("name", "base", "scale"),
    [(*pair, 2.0**16) for pair in PAIRS] + [(name, "sgd", 2.0**-3) for name in WRAPPERS],
)
def test_a_scaler_changes_no_bit_and_is_updated_once_a_step(name, base, scale):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=7)
    found = trained(name, base, functools.partial(by_closure, scaler=scaler))
    assert_same_bits(found, by_optimizer(name, base))
    assert scaler.get_scale() == 4 * scale, "it has grown twice"


@with_halves
def test_the_two_halves_are_the_step_with_a_closure_to_the_bit(name, base):
    assert_same_bits(trained(name, base, by_halves), by_optimizer(name, base))


@with_halves
def test_the_two_halves_with_a_scaler_are_the_step_with_a_closure_to_the_bit(name, base):
    scaler = torch.amp.GradScaler("cpu", growth_interval=7)
    found = trained(name, base, functools.partial(by_halves, scaler=scaler))
    assert_same_bits(found, by_optimizer(name, base))
    assert scaler.get_scale() == 4 * 2.0**16


@pytest.mark.parametrize("name", [name for name in WRAPPERS if name != "gnp, official"])
@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_a_knob_of_zero_is_the_base_alone_bit_for_bit(name, base):
    first = {} if name == "msam" else {"bn_update": "first"}
    found = trained(name, base, by_closure, knob=0.0, **first)
    assert_same_bits(found, by_hand(None, base))


@pytest.mark.parametrize("name", WITH_HALVES)
def test_halves_around_accumulated_micro_batches_are_the_step_of_the_whole_batch(name):
    whole, parts = network().double(), network().double()
    one, two = (wrap(name, SGD(m.parameters(), lr=0.1), m) for m in (whole, parts))
    one.step(closure_of(whole, one))
    for half in (two.first_step, two.second_step):
        for x, y in zip(X.double().split(4), Y.split(4)):
            (nn.functional.cross_entropy(parts(x), y) / 3).backward()
        half(zero_grad=True)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=1e-12)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
def test_muon_and_adamw_step_under_one_sam_with_a_scaler_too():
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu")):
        model = network()
        muon = torch.optim.Muon([model[0].weight, model[2].weight], lr=0.02)
        adamw = AdamW([model[0].bias, model[2].bias], lr=0.01)
        optimizer = SAM([muon, adamw], radius=0.1)
        closure = closure_of(model, optimizer, scaler=scaler)
        losses = [optimizer.step(closure, scaler=scaler).item() for _ in range(20)]
        ends.append(weights(model))
    assert losses[-1] < losses[0] - 0.1
    assert torch.equal(*ends)


def test_the_rule_of_msam_by_hand():
    w = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1.0])}
    rule = lambda params, track=True: params  # noqa: E731
    for momentum in (None, {}):
        assert F.msam_gradient(rule, w, 0.5, momentum=momentum) is w
    found = F.msam_gradient(rule, w, 0.5, momentum={"a": torch.tensor([0.6, 0.8])})
    torch.testing.assert_close(found, {"a": torch.tensor([2.7, 3.6]), "b": torch.tensor([1.0])})
    zero = F.msam_gradient(rule, w, 0.5, momentum={"a": torch.zeros(2)})
    assert torch.equal(zero["a"], w["a"])
