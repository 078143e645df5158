"""The optimizers in other people's loops: groups, schedulers, states, hooks, sparse gradients, autocast."""

import copy
import pickle
from functools import partial

import pytest
import torch
from helpers.steps import X, Y, closure_from, closure_of, loss_of, network, step, weights
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from softadlib import ASAM, FDGR, GNP, SAM

WRAPPERS = {
    "sam": partial(SAM, radius=0.2),
    "asam": partial(ASAM, radius=0.5, variant="davda54"),
    "gnp": partial(GNP, alpha=0.7, radius=0.2),
    "fdgr": partial(FDGR, strength=0.3, step_size=0.1, scheme="centered"),
}
every = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
MOMENTUM = {"lr": 0.3, "momentum": 0.9}


@every
def test_groups_keep_their_own_settings_and_can_be_added(wrap):
    model, twin = network(), network()
    groups = [
        {"params": model[0].parameters(), "lr": 0.0},
        {"params": model[2].parameters(), "weight_decay": 0.1},
    ]
    optimizer = wrap(SGD(groups, lr=0.3))
    after = step(model, optimizer, 3)
    assert torch.equal(model[0].weight, network()[0].weight)
    assert not torch.equal(model[2].weight, network()[2].weight)
    late = wrap(SGD([{"params": twin[0].parameters(), "lr": 0.0}], lr=0.3))
    late.add_param_group({"params": list(twin[2].parameters()), "weight_decay": 0.1})
    assert late.base.param_groups is late.param_groups
    assert torch.equal(step(twin, late, 3), after)


@every
def test_schedulers_take_the_wrapper_or_its_base(wrap):
    ends, rates = [], []
    for of_base in (False, True):
        model = network()
        optimizer = wrap(SGD(model.parameters(), **MOMENTUM))
        target = optimizer.base if of_base else optimizer
        scheduler = OneCycleLR(target, max_lr=0.5, total_steps=8)  # moves the momentum, too
        for _ in range(6):
            step(model, optimizer)
            scheduler.step()
            rates.append(optimizer.base.param_groups[0]["lr"])
        ends.append(weights(model))
    assert rates[:6] == rates[6:]
    assert len(set(rates)) > 3
    assert torch.equal(*ends)


@every
@pytest.mark.parametrize("base", [partial(SGD, **MOMENTUM), partial(Adam, lr=0.05)])
def test_a_run_resumed_from_its_states_ends_bit_for_bit_where_it_would_have(wrap, base):
    def start():
        model = network()
        optimizer = wrap(base(model.parameters()))
        return model, optimizer, CosineAnnealingLR(optimizer, 10)

    def train(model, optimizer, scheduler):
        for _ in range(4):
            step(model, optimizer)
            scheduler.step()

    run, resumed = start(), start()
    train(*run)
    states = copy.deepcopy([part.state_dict() for part in run])
    for part, state in zip(resumed, states):
        part.load_state_dict(state)
    train(*run)
    train(*resumed)
    assert resumed[1].param_groups[0]["lr"] == run[1].param_groups[0]["lr"]
    assert torch.equal(weights(resumed[0]), weights(run[0]))


@every
def test_the_wrapped_and_the_bare_optimizer_exchange_states(wrap):
    model = network()
    optimizer = wrap(Adam(model.parameters(), lr=0.05))
    step(model, optimizer, 3)
    bare = Adam(network().parameters(), lr=0.05)
    bare.load_state_dict(optimizer.state_dict())
    assert bare.state_dict()["state"][0]["step"] == 3


@every
def test_a_distributed_checkpoint_takes_the_base(wrap):
    """As README says. It makes a state by a step without a closure, which the wrapper refuses."""
    run = network()
    optimizer = wrap(Adam(run.parameters(), lr=0.05))
    step(run, optimizer, 3)
    saved = copy.deepcopy(get_state_dict(run, optimizer.base))
    resumed = network()
    again = wrap(Adam(resumed.parameters(), lr=0.05))
    with pytest.raises(ValueError, match=r"torch.distributed.checkpoint takes optimizer\.base"):
        get_state_dict(resumed, again)
    resumed.zero_grad()
    get_state_dict(resumed, again.base)  # as loading does, for the shapes
    set_state_dict(resumed, again.base, model_state_dict=saved[0], optim_state_dict=saved[1])
    assert torch.equal(step(resumed, again), step(run, optimizer))


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


@every
def test_the_base_may_load_a_state_itself(wrap):
    model = network()
    base = SGD(model.parameters(), **MOMENTUM)
    optimizer = wrap(base)
    base.load_state_dict(SGD(network().parameters(), lr=0.0, momentum=0.9).state_dict())
    assert optimizer.param_groups is base.param_groups
    assert optimizer.state is base.state
    before = weights(model)
    assert torch.equal(step(model, optimizer), before), "with the learning rate 0 of the state"


@every
def test_a_scheduled_optimizer_can_be_copied_and_pickled(wrap):
    model = network()
    optimizer = wrap(SGD(model.parameters(), **MOMENTUM))
    CosineAnnealingLR(optimizer, 10)
    before = step(model, optimizer)
    copied = copy.deepcopy((model, optimizer))
    pickled = pickle.loads(pickle.dumps((model, optimizer)))
    after = step(*copied)
    assert torch.equal(step(*pickled), after)
    assert torch.equal(weights(model), before)
    assert not torch.equal(after, before)


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
    plain = SGD([{"params": group["params"]} for group in twin.param_groups], lr=0.2)
    twin.load_state_dict(plain.state_dict())
    assert twin.radius == 0.7, "a state without a radius leaves it"


def test_a_radius_set_in_the_groups_is_the_one_that_steps():
    w = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = SAM(SGD([w], lr=0.1), radius=0.0)
    optimizer.param_groups[0]["radius"] = 0.5
    optimizer.step(closure_from(optimizer, lambda: w.square().sum() / 2))
    torch.testing.assert_close(w.data, torch.tensor([2.67, 3.56]))  # 0.89·w


# Gradients of every kind


@every
def test_sparse_gradients_are_as_dense_ones(wrap):
    ends = []
    for sparse in (False, True):
        torch.manual_seed(1)
        table = nn.Embedding(9, 3, sparse=sparse)
        optimizer = wrap(SGD(table.parameters(), lr=0.3))
        words, start = torch.tensor([1, 4, 4, 7]), weights(table)
        loss = lambda table=table, words=words: nn.functional.cross_entropy(table(words), Y[:4])  # noqa: E731
        for _ in range(5):
            optimizer.step(closure_from(optimizer, loss))
        ends.append(weights(table))
    torch.testing.assert_close(*ends)
    assert torch.equal(ends[1][:3], start[:3])
    assert not torch.equal(ends[1][3:6], start[3:6])


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


@every
@pytest.mark.parametrize("zero", ["optimizer", "model", "before the step"])
def test_gradients_that_the_loop_zeroes_are_no_objection(wrap, zero):
    model, twin = network(), network()
    optimizer = wrap(SGD(model.parameters(), lr=0.1))
    zero_grad = {"optimizer": optimizer.zero_grad, "model": model.zero_grad}.get(zero)
    if zero_grad:
        loss_of(model).backward()  # of an evaluation, say

    def closure():
        if zero_grad:
            zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(3):
        if not zero_grad:
            optimizer.zero_grad()
        optimizer.step(closure)
    expected = step(twin, wrap(SGD(twin.parameters(), lr=0.1)), 3)
    assert torch.equal(weights(model), expected)


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
        ends.append(weights(model))
        assert seen[0] != seen[1], "the second pass is at other weights"
    assert torch.equal(*ends)


def test_a_closure_runs_with_gradients_even_under_no_grad():
    model = network()
    optimizer = SAM(SGD(model.parameters(), lr=0.1))
    with torch.no_grad():
        optimizer.step(closure_of(model, optimizer))
    assert not torch.equal(weights(model), weights(network()))
