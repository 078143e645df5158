"""SAM, ASAM, GNP, FD-GR as optimizers: their steps, what they leave untouched, their place in torch."""

import copy
from functools import partial

import pytest
import torch
from helpers.plain_loop import asam_shifts, sharp_step
from helpers.steps import X, Y, closure_from, closure_of, loss_of, network, step, weights
from torch import nn
from torch.optim import SGD, Adam

from softadlib import ASAM, FDGR, GNP, SAM

BASES = {"sgd": lambda p: SGD(p, lr=0.1, momentum=0.9), "adam": lambda p: Adam(p, lr=0.01)}


# Batch norm


@pytest.mark.parametrize("bn_update", ["both", "first"])
def test_layers_that_are_frozen_stay_frozen(bn_update):
    model = network(batch_norm=True)
    model[1].eval()
    step(model, SAM(SGD(model.parameters(), lr=0.1), 0.5, bn_update=bn_update, model=model))
    assert model[1].num_batches_tracked == 0
    assert model[1].running_mean.tolist() == [0] * 6


# All four together

WRAPPERS = {
    "sam": SAM,
    "asam": partial(ASAM, variant="official"),
    "asam, davda54": partial(ASAM, variant="davda54"),
    "gnp": GNP,
    "gnp, official": partial(GNP, mixing="official"),
    "fdgr": partial(FDGR, step_size=0.1),
    "fdgr, centered": partial(FDGR, step_size=0.1, scheme="centered"),
}
PASSES = {name: 3 if "centered" in name else 2 for name in WRAPPERS}
every = pytest.mark.parametrize("name", WRAPPERS)


def wrap(name, base, model, knob=0.3, **settings):
    return WRAPPERS[name](base, knob, model=model, **settings)


@every
def test_closure_is_called_once_per_gradient_first_at_w(name):
    model, calls = network(), []
    optimizer = wrap(name, SGD(model.parameters(), lr=0.1), model)
    start = [p.detach().clone() for p in model.parameters()]
    loss = loss_of(model)
    assert optimizer.step(closure_of(model, optimizer, calls)) == loss
    assert len(calls) == PASSES[name]
    assert all(torch.equal(a, b) for a, b in zip(calls[0], start))
    for later in calls[1:]:
        assert not torch.equal(later[0], start[0])


@every
def test_every_bit_is_restored_when_the_base_does_not_move(name):
    model = network()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(torch.logspace(-6, 3, p.numel()).view_as(p))
    before = weights(model)
    assert torch.equal(step(model, wrap(name, SGD(model.parameters(), lr=0.0), model)), before)


@pytest.mark.parametrize(
    ("name", "failing"), [(n, call) for n in WRAPPERS for call in range(2, PASSES[n] + 1)]
)
def test_every_bit_is_restored_after_an_exception_in_a_later_call(name, failing):
    model = network(batch_norm=True)
    optimizer = wrap(name, SGD(model.parameters(), lr=0.1), model, bn_update="first")
    before, inner, count = weights(model), closure_of(model, optimizer), []

    def closure():
        count.append(1)
        if len(count) == failing:
            raise RuntimeError("out of memory")
        return inner()

    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step(closure)
    assert torch.equal(weights(model), before)
    assert model[1].num_batches_tracked == 1


@pytest.mark.parametrize("name", [n for n in WRAPPERS if n != "gnp, official"])
@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_knob_zero_is_the_base_optimizer_bit_for_bit(name, base):
    plain, wrapped = network(), network()
    one = base(plain.parameters())
    two = wrap(name, base(wrapped.parameters()), wrapped, knob=0.0)
    assert torch.equal(step(plain, one, 10), step(wrapped, two, 10))
    assert not torch.equal(weights(network()), weights(plain))


# Against a plain loop, written from the formulas

CASES = {
    "sam": ("sam", 0.2, {}),
    "asam": ("asam", 0.5, {"eta": 0.05}),
    "asam, davda54": ("asam", 0.8, {"variant": "davda54"}),
    "gnp": ("gnp", 0.7, {"radius": 0.3}),
    "gnp, official": ("gnp", 0.7, {"radius": 0.3, "mixing": "official"}),
    "fdgr": ("fdgr", 0.4, {"step_size": 0.2}),
    "fdgr, centered": ("fdgr", 0.4, {"step_size": 0.2, "scheme": "centered"}),
}


@pytest.mark.parametrize("bn_update", ["both", "first"])
@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_with_batch_norm_are_the_plain_loop(name, bn_update):
    method, knob, settings = CASES[name]
    model, twin = network(batch_norm=True), network(batch_norm=True)
    base, plain = (SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, twin))
    optimizer = wrap(name, base, model, knob, bn_update=bn_update, **settings)
    for _ in range(20):
        step(model, optimizer)
        sharp_step(method, twin, plain, X, Y, knob, bn_update, **settings)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-6, atol=1e-6)
    assert (weights(model) - weights(network(batch_norm=True))).norm() > 0.5


@every
def test_a_closure_without_backward_steps_on_nothing_as_torchs_optimizers_do(name):
    """As in Lightning's weight averaging, whose last epoch only refreshes batch norm."""
    model, calls = network(), []
    optimizer = wrap(name, SGD(model.parameters(), lr=0.1), model)
    before = weights(model)
    for scaler in (None, torch.amp.GradScaler("cpu")):
        assert optimizer.step(lambda: calls.append(1) or torch.tensor(1.5), scaler=scaler) == 1.5
    assert len(calls) == 2
    assert torch.equal(weights(model), before)


def test_official_asam_takes_every_name_that_holds_weight():
    """As the authors' code: `weight_v` of weight norm is a weight, though its name does not end so."""
    torch.manual_seed(0)
    model = nn.Module()
    model.weight_v, model.bias = (nn.Parameter(torch.randn(3).double()) for _ in range(2))
    twin, points = copy.deepcopy(model), []
    optimizer = ASAM(SGD(model.parameters(), lr=0.0), 0.5, model=model, eta=0.05)

    def loss(model=model):
        points.append([p.detach().clone() for p in model.parameters()])
        return (model.weight_v.square() + model.bias).sum()

    optimizer.step(closure_from(optimizer, loss))
    loss(twin).backward()
    expected = [p + shift for p, shift in zip(twin.parameters(), asam_shifts(twin, 0.5, eta=0.05))]
    torch.testing.assert_close(points[1], [p.detach() for p in expected], rtol=0, atol=1e-12)


NORMS = {
    "batch": nn.BatchNorm1d(4),
    "batch, cumulative": nn.BatchNorm1d(4, momentum=None),
    "instance": nn.InstanceNorm1d(12, affine=True, track_running_stats=True),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_first_leaves_count_and_statistics_of_norms_as_one_pass_does(norm):
    """`momentum=None` averages over all batches by their number: a count too many shows in the mean."""
    model = nn.Sequential(copy.deepcopy(norm), nn.Linear(4, 3))
    twin = copy.deepcopy(model)
    optimizer = GNP(SGD(model.parameters(), lr=0.1), bn_update="first", model=model)
    step(model, optimizer)
    twin(X)
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(model[0].running_mean, norm.running_mean)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(X), twin.eval()(X)), "nothing of the pass is left"
