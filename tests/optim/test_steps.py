"""One step: how often it calls the closure and where, what it leaves untouched, which gradients it uses."""

import contextlib
import copy
from functools import partial

import pytest
import torch
from helpers.plain_loop import asam_shifts
from helpers.steps import X, Y, closure_from, closure_of, loss_of, network, step, weights
from helpers.wrappers import SHARP, WITH_HALVES, WRAPPERS, over_sgd, wrap
from torch import nn
from torch.optim import SGD

from softadlib import ASAM, FDGR, GNP, SAM

every = pytest.mark.parametrize("name", WRAPPERS)
sharp = pytest.mark.parametrize("name", SHARP)
with_halves = pytest.mark.parametrize("name", WITH_HALVES)


# The calls of the closure


@every
def test_closure_is_called_once_per_gradient_first_at_w(name):
    model, calls = network(), []
    optimizer = over_sgd(name, model)
    start = [p.detach().clone() for p in model.parameters()]
    loss = loss_of(model)
    assert optimizer.step(closure_of(model, optimizer, calls)) == loss
    assert len(calls) == WRAPPERS[name].passes
    assert all(torch.equal(a, b) for a, b in zip(calls[0], start))
    for later in calls[1:]:
        assert not torch.equal(later[0], start[0])


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


@every
def test_a_closure_runs_with_gradients_even_under_no_grad(name):
    model, twin = network(), network()
    with torch.no_grad():
        found = step(model, over_sgd(name, model))
    assert torch.equal(found, step(twin, over_sgd(name, twin)))


@every
@pytest.mark.parametrize("scaled", [False, True])
def test_a_closure_without_backward_changes_nothing_and_warns(name, scaled):
    """As in Lightning's weight averaging, whose last epoch only refreshes batch norm."""
    model, calls = network(), []
    optimizer = over_sgd(name, model)
    before = weights(model)
    scaler = torch.amp.GradScaler("cpu") if scaled else None
    with pytest.warns(UserWarning, match=r"no gradients.*call loss\.backward\(\)") as warned:
        loss = optimizer.step(lambda: calls.append(1) or torch.tensor(1.5), scaler=scaler)
    assert warned[0].filename == __file__, "the line of the call"
    assert loss == 1.5
    assert len(calls) == 1
    assert torch.equal(weights(model), before)


@with_halves
def test_halves_without_backward_change_nothing_and_warn(name):
    model = network()
    optimizer = over_sgd(name, model)
    before = weights(model)
    with pytest.warns(UserWarning, match=r"no gradients.*call loss\.backward\(\)"):
        assert not optimizer.first_step()
    optimizer.second_step()
    assert torch.equal(weights(model), before)


# Gradients that are there before the closure


def zero_in_place(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()


ZEROING = {
    "optimizer": lambda model, optimizer: optimizer.zero_grad(),
    "optimizer, in place": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "model": lambda model, optimizer: model.zero_grad(),
    "model, in place": lambda model, optimizer: model.zero_grad(set_to_none=False),
    "by hand": lambda model, optimizer: zero_in_place(model),
}


@every
@pytest.mark.parametrize("zero", ZEROING.values(), ids=ZEROING)
def test_a_closure_may_zero_the_gradients_as_it_likes(name, zero):
    model, twin = network(), network()
    optimizer = over_sgd(name, model)
    loss_of(model).backward()  # of an evaluation, say

    def closure():
        zero(model, optimizer)
        loss = loss_of(model)
        for part in (loss / 4, 3 * loss / 4):  # as micro-batches
            part.backward(retain_graph=True)
        return loss

    for _ in range(3):
        optimizer.step(closure)
    expected = step(twin, over_sgd(name, twin), 3)
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=1e-6)


@every
@pytest.mark.parametrize("zero", ZEROING.values(), ids=ZEROING)
def test_the_loop_may_zero_the_gradients_before_the_step(name, zero):
    model, twin = network(), network()
    optimizer = over_sgd(name, model)

    def closure():
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(3):
        zero(model, optimizer)
        optimizer.step(closure)
    assert torch.equal(weights(model), step(twin, over_sgd(name, twin), 3))


def test_a_layer_that_the_loss_does_not_use_is_no_objection():
    """Its gradient is zero from the first in-place reset on, and stays the same tensor."""
    model = network()
    unused = nn.Parameter(torch.ones(2))
    optimizer = SAM(SGD([unused, *model.parameters()], lr=0.1), 0.2)
    unused.grad = torch.ones(2)

    def closure():
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert not torch.equal(weights(model), weights(network()))
    assert unused.tolist() == [1, 1]


# What is left untouched


@every
def test_every_bit_is_restored_when_the_base_does_not_move(name):
    model = network()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(torch.logspace(-6, 3, p.numel()).view_as(p))
    before = weights(model)
    assert torch.equal(step(model, over_sgd(name, model, lr=0.0), 2), before)


@pytest.mark.parametrize(
    ("name", "failing"), [(n, call) for n in SHARP for call in range(1, WRAPPERS[n].passes + 1)]
)
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_every_bit_is_restored_after_an_exception(name, failing, error):
    model, twin = network(batch_norm=True), network(batch_norm=True)
    optimizer = over_sgd(name, model, bn_update="first")
    before, inner, count = weights(model), closure_of(model, optimizer), []

    def closure():
        count.append(1)
        if len(count) == failing:
            raise error
        return inner()

    with pytest.raises(error):
        optimizer.step(closure)
    assert torch.equal(weights(model), before)
    assert model[1].num_batches_tracked == min(1, failing - 1)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(step(model, optimizer), step(twin, over_sgd(name, twin, bn_update="first")))


@pytest.mark.parametrize("bn_update", ["both", "first"])
def test_layers_that_are_frozen_stay_frozen(bn_update):
    model = network(batch_norm=True)
    model[1].eval()
    step(model, SAM(SGD(model.parameters(), lr=0.1), 0.5, bn_update=bn_update, model=model))
    assert model[1].num_batches_tracked == 0
    assert model[1].running_mean.tolist() == [0] * 6


NORMS = {
    "batch": nn.BatchNorm1d(4),
    "batch, cumulative": nn.BatchNorm1d(4, momentum=None),
    "instance": nn.InstanceNorm1d(12, affine=True, track_running_stats=True),
}


@sharp
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_first_leaves_count_and_statistics_of_norms_as_one_pass_does(name, norm):
    """`momentum=None` averages over all batches by their number: a count too many shows in the mean."""
    model = nn.Sequential(copy.deepcopy(norm), nn.Linear(4, 3))
    twin = copy.deepcopy(model)
    step(model, over_sgd(name, model, bn_update="first"))
    twin(X)
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(model[0].running_mean, norm.running_mean)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(X), twin.eval()(X)), "nothing of the pass is left"


def test_halves_restore_every_bit_and_keep_the_statistics_of_the_first():
    model = network(batch_norm=True).double()
    twin = copy.deepcopy(model)
    optimizer = SAM(SGD(model.parameters(), lr=0.0), 3.0, bn_update="first", model=model)
    before = weights(model)
    loss_of(model).backward()
    assert optimizer.first_step(zero_grad=True)
    assert (weights(model) - before).norm() == pytest.approx(3.0)
    loss_of(model).backward()
    optimizer.second_step()
    twin(X.double())
    assert torch.equal(weights(model), before)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers()))


# A GradScaler


def overflowing(model, optimizer, scaler, bad, calls):
    """A closure whose loss is infinite in the pass `bad`."""

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss * (torch.inf if len(calls) == bad else 1.0)).backward()
        return loss

    return closure


@pytest.mark.parametrize(
    ("name", "bad"), [(n, bad) for n in WRAPPERS for bad in range(1, WRAPPERS[n].passes + 1)]
)
def test_a_pass_that_overflows_skips_the_step_and_halves_the_scale(name, bad):
    model, twin, calls = network().double(), network().double(), []
    optimizer = over_sgd(name, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    closure = overflowing(model, optimizer, scaler, bad, calls)
    before = weights(model)
    assert optimizer.step(closure, scaler=scaler).item() == loss_of(model).item()
    assert len(calls) == bad, "no pass after one that overflowed"
    assert torch.equal(weights(model), before)
    assert not optimizer.state
    assert scaler.get_scale() == 512.0
    optimizer.step(closure, scaler=scaler)
    assert torch.equal(weights(model), step(twin, over_sgd(name, twin)))


@with_halves
@pytest.mark.parametrize("bad", [0, 1])
def test_halves_that_overflow_skip_the_step_and_halve_the_scale(name, bad):
    model = network(batch_norm=True).double()
    optimizer, scaler = over_sgd(name, model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = weights(model)
    for half, function in enumerate((optimizer.first_step, optimizer.second_step)):
        scaler.scale(loss_of(model) * (torch.inf if half == bad else 1.0)).backward()
        moved = function(zero_grad=True, scaler=scaler)
        assert half or moved is (bad == 1)
    assert torch.equal(weights(model), before)
    assert not optimizer.state
    assert scaler.get_scale() == 512.0
    assert all(buffer.isfinite().all() for buffer in model.buffers())


@every
def test_hooks_of_the_step_clip_unscaled_gradients(name):
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu")):
        model = network().double()
        optimizer = over_sgd(name, model, lr=1.0)

        def clip(*_, model=model):
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        optimizer.register_step_pre_hook(clip)
        optimizer.step(closure_of(model, optimizer, scaler=scaler), scaler=scaler)
        ends.append(weights(model))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
    assert (ends[0] - weights(network().double())).norm() == pytest.approx(0.01, rel=1e-3)


@sharp
def test_a_closure_that_fails_in_its_second_pass_leaves_no_trace_in_the_scaler(name):
    model, twin, calls = network().double(), network().double(), []
    optimizer, scaler = over_sgd(name, model), torch.amp.GradScaler("cpu")
    plain = closure_of(model, optimizer, scaler=scaler)

    def closure():
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        return plain()

    with pytest.raises(MemoryError):
        optimizer.step(closure, scaler=scaler)
    optimizer.step(plain, scaler=scaler)
    expected = step(twin, over_sgd(name, twin))
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=1e-12)


@every
def test_a_scaler_that_is_disabled_is_none(name):
    model, twin = network(), network()
    optimizer, scaler = over_sgd(name, model), torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(2):
        optimizer.step(closure_of(model, optimizer, scaler=scaler), scaler=scaler)
    assert torch.equal(weights(model), step(twin, over_sgd(name, twin), 2))


# Gradients of every kind


@every
def test_sparse_gradients_are_as_dense_ones(name):
    ends = []
    for sparse in (False, True):
        torch.manual_seed(1)
        table = nn.Embedding(9, 3, sparse=sparse)
        optimizer = over_sgd(name, table, lr=0.3)
        words, start = torch.tensor([1, 4, 4, 7]), weights(table)
        loss = lambda table=table, words=words: nn.functional.cross_entropy(table(words), Y[:4])  # noqa: E731
        for _ in range(5):
            optimizer.step(closure_from(optimizer, loss))
        ends.append(weights(table))
    torch.testing.assert_close(*ends)
    assert torch.equal(ends[1][:3], start[:3])
    assert not torch.equal(ends[1][3:6], start[3:6])


@with_halves
def test_sparse_adam_steps_with_the_sparse_gradient(name):
    """Adam of the rows that have a gradient: in the first step all of them move by the learning rate."""
    table = nn.Embedding(9, 3, sparse=True)
    optimizer = wrap(name, torch.optim.SparseAdam(table.parameters(), lr=0.1), table)
    before = table.weight.detach().clone()
    optimizer.step(closure_from(optimizer, lambda: table(torch.tensor([1, 4])).square().sum()))
    shift = (table.weight.detach() - before).abs()
    torch.testing.assert_close(shift[[1, 4]], torch.full((2, 3), 0.1), rtol=1e-4, atol=0)
    assert shift[[0, 2, 3, 5, 6, 7, 8]].max() == 0


@pytest.mark.parametrize(
    ("make", "moved"),
    [
        (lambda base: SAM(base, radius=0.1), 1.0),
        (lambda base: GNP(base, alpha=0.25, radius=0.1), 0.25),  # α·1
        (lambda base: FDGR(base, strength=0.1, step_size=0.5), 0.2),  # λ/a·(1 − 0)
    ],
)
def test_a_gradient_that_only_one_pass_has_counts_as_zero_in_the_other(make, moved):
    w, early, late, never = (nn.Parameter(torch.tensor([1.0])) for _ in range(4))
    optimizer, calls = make(SGD([w, early, late, never], lr=1.0)), []

    def loss():
        calls.append(1)
        return w.square().sum() + (early if len(calls) == 1 else late).sum()

    optimizer.step(closure_from(optimizer, loss))
    assert 1 - late.item() == pytest.approx(moved)
    assert 1 - early.item() == pytest.approx(1 - moved)
    assert never.grad is None, "what no pass has is left out, as torch's optimizers leave it out"


def losses_under_autocast(name, around):
    """Make three steps in bfloat16; `around` puts contexts around closure, step or loop."""
    model, seen = network(), []
    optimizer = over_sgd(name, model, lr=0.3)
    half = partial(torch.autocast, "cpu", dtype=torch.bfloat16)

    def half_around(place):
        """A context that is disabled would count as the outermost one, too."""
        return half() if place == around else contextlib.nullcontext()

    def loss():
        with half():
            value = nn.functional.cross_entropy(model(X), Y)
        seen.append(value.item())
        return value

    with half_around("loop"):
        for _ in range(3):
            with half_around("step"):
                optimizer.step(closure_from(optimizer, loss))
    return weights(model), seen


@every
@pytest.mark.parametrize("around", ["step", "loop"])
def test_autocast_around_the_step_or_the_loop_is_autocast_inside_the_closure(name, around):
    """Autocast keeps copies of the weights in bfloat16 until its outermost context ends."""
    found, seen = losses_under_autocast(name, around)
    expected, inside = losses_under_autocast(name, None)
    assert torch.equal(found, expected)
    assert seen == inside
    assert len(set(seen)) > 2
