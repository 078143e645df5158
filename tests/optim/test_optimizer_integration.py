"""SAM, ASAM, GNP, FD-GR in other people's loops: groups, schedulers, states, sparse gradients, clipping, scalers."""

import copy
import pickle
from functools import partial

import pytest
import torch
from helpers.steps import X, Y, closure_from, closure_of, network
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from softadlib.optim.sam import ASAM, FDGR, GNP, SAM

WRAPPERS = {
    "sam": partial(SAM, radius=0.2),
    "asam": partial(ASAM, radius=0.5, variant="davda54"),
    "gnp": partial(GNP, alpha=0.7, radius=0.2),
    "fdgr": partial(FDGR, strength=0.3, step_size=0.1),
    "fdgr, centered": partial(FDGR, strength=0.3, step_size=0.1, scheme="centered"),
}
every = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def step(model, optimizer, times=1):
    for _ in range(times):
        optimizer.step(closure_of(model, optimizer))
    return weights(model)


@every
def test_groups_keep_their_own_settings_and_can_be_added(wrap):
    model, twin = network(), network()
    groups = [
        {"params": model[0].parameters(), "lr": 0.0},
        {"params": model[2].parameters(), "weight_decay": 0.1},
    ]
    optimizer = wrap(SGD(groups, lr=0.3))
    before = weights(model)
    after = step(model, optimizer, 3)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[2], after[2])
    late = wrap(SGD([{"params": twin[0].parameters(), "lr": 0.0}], lr=0.3))
    late.add_param_group({"params": list(twin[2].parameters()), "weight_decay": 0.1})
    assert late.base.param_groups is late.param_groups
    torch.testing.assert_close(step(twin, late, 3), after, rtol=0, atol=0)


@every
@pytest.mark.parametrize(
    "schedule",
    [partial(CosineAnnealingLR, T_max=6), partial(OneCycleLR, max_lr=0.5, total_steps=8)],
    ids=["cosine", "one cycle"],
)
def test_schedulers_take_the_wrapper_or_its_base(wrap, schedule):
    ends, rates = [], []
    for of_base in (False, True):
        model = network()
        optimizer = wrap(SGD(model.parameters(), lr=0.3, momentum=0.9))
        scheduler = schedule(optimizer.base if of_base else optimizer)
        seen = []
        for _ in range(6):
            step(model, optimizer)
            scheduler.step()
            seen.append(optimizer.base.param_groups[0]["lr"])
        ends.append(weights(model))
        rates.append(seen)
    assert rates[0] == rates[1]
    assert len(set(rates[0])) > 3
    torch.testing.assert_close(*ends, rtol=0, atol=0)


@every
@pytest.mark.parametrize("base", [partial(SGD, lr=0.3, momentum=0.9), partial(Adam, lr=0.05)])
def test_a_run_resumed_from_its_states_ends_bit_for_bit_where_it_would_have(wrap, base):
    model = network()
    optimizer = wrap(base(model.parameters()))
    scheduler = CosineAnnealingLR(optimizer, 10)
    for _ in range(4):
        step(model, optimizer)
        scheduler.step()
    states = copy.deepcopy([v.state_dict() for v in (model, optimizer, scheduler)])
    other = network()
    resumed = wrap(base(other.parameters()))
    again = CosineAnnealingLR(resumed, 10)
    for one, state in zip((other, resumed, again), states):
        one.load_state_dict(state)
    for _ in range(4):
        step(model, optimizer)
        scheduler.step()
        step(other, resumed)
        again.step()
    assert resumed.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    torch.testing.assert_close(weights(other), weights(model), rtol=0, atol=0)


@every
def test_the_wrapped_and_the_bare_optimizer_exchange_states(wrap):
    model = network()
    optimizer = wrap(Adam(model.parameters(), lr=0.05))
    step(model, optimizer, 3)
    bare = Adam(network().parameters(), lr=0.05)
    bare.load_state_dict(optimizer.state_dict())
    assert bare.state_dict()["state"][0]["step"] == 3


@every
def test_hooks_are_those_of_the_base(wrap):
    model, called = network(), []
    optimizer = wrap(SGD(model.parameters(), lr=0.1))
    optimizer.register_step_pre_hook(lambda o, *_: called.append(("step", o)))
    optimizer.register_state_dict_post_hook(lambda o, s: {**s, "note": "stored"})
    optimizer.register_load_state_dict_pre_hook(lambda o, s: called.append(("load", s["note"])))
    step(model, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    assert called == [("step", optimizer.base), ("load", "stored")]


# The radius


@pytest.mark.parametrize("make", [SAM, ASAM, GNP])
def test_the_radius_stands_in_every_group_and_in_the_repr(make):
    w, v, late, later = (nn.Parameter(torch.ones(2)) for _ in range(4))
    optimizer = make(SGD([{"params": [w]}, {"params": [v], "lr": 0.5}], lr=0.1), radius=0.3)
    assert [group["radius"] for group in optimizer.param_groups] == [0.3, 0.3]
    assert "radius: 0.3" in repr(optimizer)
    for group in optimizer.param_groups:
        group["radius"] = 0.7  # as a schedule would
    assert optimizer.radius == 0.7
    twin = make(SGD([{"params": [w]}, {"params": [v]}], lr=0.1))
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    twin.add_param_group({"params": [late]})
    twin.base.add_param_group({"params": [later]})
    assert twin.radius == 0.7
    assert [group["radius"] for group in twin.param_groups] == [0.7] * 4


def test_a_state_without_a_radius_leaves_it():
    w = nn.Parameter(torch.ones(2))
    optimizer = SAM(SGD([w], lr=0.1), radius=0.3)
    optimizer.load_state_dict(SGD([w], lr=0.2).state_dict())
    assert (optimizer.radius, optimizer.param_groups[0]["lr"]) == (0.3, 0.2)


def test_a_radius_set_in_the_groups_is_the_one_that_steps():
    w = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = SAM(SGD([w], lr=0.1), radius=0.0)
    optimizer.param_groups[0]["radius"] = 0.5
    optimizer.step(closure_from(optimizer, lambda: w.square().sum() / 2))
    torch.testing.assert_close(w.data, torch.tensor([2.67, 3.56]))  # 0.89·w


# Gradients of every kind


def embedding(sparse):
    torch.manual_seed(1)
    return nn.Embedding(9, 3, sparse=sparse)


def embedded_loss(table, words):
    return nn.functional.cross_entropy(table(torch.tensor(words)), Y[: len(words)])


@every
def test_sparse_gradients_are_as_dense_ones(wrap):
    ends = []
    for sparse in (False, True):
        table = embedding(sparse)
        optimizer = wrap(SGD(table.parameters(), lr=0.3))
        for _ in range(5):
            optimizer.step(closure_from(optimizer, partial(embedded_loss, table, [1, 4, 4, 7])))
        ends.append(table.weight.detach())
    torch.testing.assert_close(*ends)
    assert torch.equal(ends[1][0], embedding(True).weight[0].detach())


@every
def test_a_gradient_missing_from_a_later_pass_counts_as_zero(wrap):
    torch.manual_seed(0)
    a, b = (nn.Parameter(torch.tensor([v])) for v in (1.0, 2.0))
    optimizer, calls = wrap(SGD([a, b], lr=0.1)), []

    def loss():
        calls.append(1)
        return a.square().sum() + (b.square().sum() if len(calls) == 1 else 0)

    optimizer.step(closure_from(optimizer, loss))
    assert a.isfinite()
    assert b.isfinite()
    assert a != 1


# Clipping


@every
def test_clipping_what_is_stepped_with(wrap):
    model = network()
    optimizer = wrap(SGD(model.parameters(), lr=1.0))

    def clip(*_):
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    optimizer.base.register_step_pre_hook(clip)
    before = weights(model)
    after = step(model, optimizer)
    moved = sum((a - b).square().sum() for a, b in zip(after, before)).sqrt()
    torch.testing.assert_close(moved, torch.tensor(0.01), rtol=1e-3, atol=0)


@every
@pytest.mark.parametrize("zero", ["optimizer", "model", "before the step"])
def test_gradients_that_the_loop_zeroes_are_no_objection(wrap, zero):
    model, twin = network(), network()
    optimizer = wrap(SGD(model.parameters(), lr=0.1))
    if zero in ("optimizer", "model"):  # of an evaluation, say
        nn.functional.cross_entropy(model(X), Y).backward()

    def closure():
        if zero == "optimizer":
            optimizer.zero_grad()
        elif zero == "model":
            model.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    for _ in range(3):
        if zero == "before the step":
            optimizer.zero_grad()
        optimizer.step(closure)
    end = weights(model)
    torch.testing.assert_close(
        step(twin, wrap(SGD(twin.parameters(), lr=0.1)), 3), end, rtol=0, atol=0
    )


@every
def test_autocast_around_the_step_is_autocast_inside_the_closure(wrap):
    """Autocast keeps copies of the weights in bfloat16 until its outermost context ends."""
    ends = []
    for around in (True, False):
        model, seen = network(), []
        optimizer = wrap(SGD(model.parameters(), lr=0.3))

        def loss(model=model, seen=seen):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                value = nn.functional.cross_entropy(model(X), Y)
            seen.append(value.item())
            return value

        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around):
                optimizer.step(closure_from(optimizer, loss))
        ends.append([p.detach() for p in model.parameters()])
        assert seen[0] != seen[1], "the second pass is at other weights"
    for a, b in zip(*ends):
        assert torch.equal(a, b)


# What torch replaces


@every
def test_the_base_may_load_a_state_of_its_own(wrap):
    model, extra = network(), nn.Parameter(torch.ones(1))
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = wrap(base)
    base.load_state_dict(SGD(network().parameters(), lr=0.5, momentum=0.9).state_dict())
    assert optimizer.param_groups is base.param_groups
    assert optimizer.state is base.state
    assert optimizer.param_groups[0]["lr"] == 0.5
    optimizer.step(closure_of(model, optimizer))
    optimizer.add_param_group({"params": [extra]})
    assert len(base.param_groups) == 2
    optimizer.param_groups[0]["lr"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step(closure_of(model, optimizer))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))


@every
def test_a_scheduled_optimizer_can_be_copied_and_pickled(wrap):
    model = network()
    optimizer = wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    CosineAnnealingLR(optimizer, 10)
    step(model, optimizer)
    optimizer.register_step_post_hook(lambda *args: None)
    model_2, optimizer_2 = copy.deepcopy((model, optimizer))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer_2.step(closure_of(model_2, optimizer_2))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))
    assert not any(torch.equal(p, b) for p, b in zip(model_2.parameters(), before))
    model_3, optimizer_3 = pickle.loads(pickle.dumps((model, optimizer)))
    optimizer_3.step(closure_of(model_3, optimizer_3))
    assert optimizer_3.param_groups is optimizer_3.base.param_groups
    for p, q in zip(model_2.parameters(), model_3.parameters()):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("make", "moved"),
    [
        (lambda base: SAM(base, radius=0.1), 1.0),
        (lambda base: GNP(base, alpha=0.25, radius=0.1), 0.25),  # α·1
        (lambda base: FDGR(base, strength=0.1, step_size=0.5), 0.2),  # λ/a·(1 − 0)
    ],
)
def test_a_gradient_that_only_a_later_pass_has_goes_through_the_rule(make, moved):
    w, v, never = (nn.Parameter(torch.tensor([1.0])) for _ in range(3))
    optimizer, calls = make(SGD([w, v, never], lr=1.0, weight_decay=0.0)), []

    def loss():
        calls.append(1)
        return (w.square() + (v if len(calls) > 1 else 0)).sum()

    optimizer.step(closure_from(optimizer, loss))
    assert 1 - v.item() == pytest.approx(moved)
    assert never.grad is None, "what no pass has is left out, as torch's optimizers leave it out"
