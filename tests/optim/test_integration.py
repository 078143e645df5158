"""The optimizers in other people's loops: groups, schedulers, states, hooks, and bases that hold optimizers."""

import copy
import pickle

import pytest
import torch
from helpers.refusals import refused
from helpers.steps import closure_from, network, step, weights
from helpers.wrappers import WITH_RADIUS, WRAPPERS, over_sgd, wrap
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import SGD, Adadelta, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from softadlib import ASAM, SAM

every = pytest.mark.parametrize("name", WRAPPERS)
with_radius = pytest.mark.parametrize("name", WITH_RADIUS)


class Lookahead(torch.optim.Optimizer):
    """As packages have it: groups and state of the inner optimizer, by properties without a setter."""

    def __init__(self, inner):
        self.inner = inner
        self.slow = [p.detach().clone() for p in inner.param_groups[0]["params"]]
        self.steps = 0

    @property
    def param_groups(self):
        return self.inner.param_groups

    @property
    def state(self):
        return self.inner.state

    def step(self, closure=None):
        self.inner.step()
        self.steps += 1
        for p, slow in zip(self.param_groups[0]["params"], self.slow):
            if self.steps % 2 == 0:
                p.copy_(slow.add_(p - slow, alpha=0.5))

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)


def over_adam(name, model):
    return wrap(name, Adam(model.parameters(), lr=0.05), model)


def over_two(name, model):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    return wrap(name, [SGD(matrices, lr=0.3, momentum=0.9), AdamW(others, lr=0.05)], model)


OVER = {"sgd": over_sgd, "adam": over_adam, "two": over_two}
over = pytest.mark.parametrize("over", OVER.values(), ids=OVER)


# Groups and schedulers


@every
def test_groups_keep_their_own_settings_and_can_be_added(name):
    model, twin = network(), network()
    groups = [
        {"params": model[0].parameters(), "lr": 0.0},
        {"params": model[2].parameters(), "weight_decay": 0.1},
    ]
    after = step(model, wrap(name, SGD(groups, lr=0.3, momentum=0.9), model), 3)
    assert torch.equal(model[0].weight, network()[0].weight)
    assert not torch.equal(model[2].weight, network()[2].weight)
    first = [{"params": twin[0].parameters(), "lr": 0.0}]
    late = wrap(name, SGD(first, lr=0.3, momentum=0.9), twin)
    late.add_param_group({"params": list(twin[2].parameters()), "weight_decay": 0.1})
    assert late.base.param_groups is late.param_groups
    assert torch.equal(step(twin, late, 3), after)


@every
def test_schedulers_take_the_wrapper_or_its_base(name):
    ends, rates = [], []
    for of_base in (False, True):
        model = network()
        optimizer = over_sgd(name, model)
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


def test_a_cycle_of_the_momentum_is_refused_by_torch_where_each_optimizer_has_its_own():
    first, *rest = network().parameters()
    several = SAM([AdamW([first]), SGD(rest, lr=0.1)])
    with pytest.raises(ValueError, match="cycle_momentum"):
        OneCycleLR(several, max_lr=0.3, total_steps=4)


# States


@every
@over
def test_a_run_resumed_from_its_states_ends_bit_for_bit_where_it_would_have(name, over):
    def start():
        model = network()
        optimizer = over(name, model)
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
    copied = pickle.loads(pickle.dumps(run[:2]))
    deep_copied = copy.deepcopy(run[:2])
    expected = step(*run[:2])
    assert torch.equal(step(*resumed[:2]), expected)
    assert torch.equal(step(*copied), expected)
    assert torch.equal(step(*deep_copied), expected)
    rates = [
        [group["lr"] for group in optimizer.param_groups] for _, optimizer, _ in (run, resumed)
    ]
    assert rates[0] == rates[1]
    assert rates[0][0] < start()[1].param_groups[0]["lr"], "the schedule has lowered it"


@every
def test_the_wrapped_and_the_bare_optimizer_exchange_states(name):
    model, twin = network(), network()
    optimizer = over_adam(name, model)
    step(model, optimizer, 3)
    bare = Adam(twin.parameters(), lr=0.05)
    bare.load_state_dict(optimizer.state_dict())
    assert bare.state_dict()["state"][0]["step"] == 3
    again = over_adam(name, network())
    again.load_state_dict(bare.state_dict())
    assert again.state_dict()["state"][0]["step"] == 3


@every
def test_a_distributed_checkpoint_takes_the_base(name):
    """As README says. It makes a state by a step without a closure, which the wrapper refuses."""
    run = network()
    optimizer = over_adam(name, run)
    step(run, optimizer, 3)
    saved = copy.deepcopy(get_state_dict(run, optimizer.base))
    resumed = network()
    again = over_adam(name, resumed)
    with pytest.raises(ValueError, match=r"torch.distributed.checkpoint takes optimizer\.base"):
        get_state_dict(resumed, again)
    resumed.zero_grad()
    get_state_dict(resumed, again.base)  # as loading does, for the shapes
    set_state_dict(resumed, again.base, model_state_dict=saved[0], optim_state_dict=saved[1])
    assert torch.equal(step(resumed, again), step(run, optimizer))


@every
def test_the_base_may_load_a_state_itself(name):
    model = network()
    optimizer = over_sgd(name, model)
    base = optimizer.base
    base.load_state_dict(SGD(network().parameters(), lr=0.0, momentum=0.9).state_dict())
    assert optimizer.param_groups is base.param_groups
    assert optimizer.state is base.state
    before = weights(model)
    assert torch.equal(step(model, optimizer), before), "with the learning rate 0 of the state"


def test_a_state_of_another_number_of_joined_optimizers_is_refused():
    def of(number):
        return SAM([SGD([nn.Parameter(torch.ones(2))], lr=0.1) for _ in range(number)])

    refused(lambda: of(2).load_state_dict(of(3).state_dict()), "of 3", "2 are joined")
    refused(lambda: of(2).load_state_dict(of(1).state_dict()), "of 1", "2 are joined")


def state_of_another_package(model, adaptive, **settings):
    """What github.com/davda54/sam saves: its own groups, and the weights before the last climb."""
    numbers = list(range(len(list(model.parameters()))))
    group = {"rho": 0.1, "adaptive": adaptive, **settings, "params": numbers}
    old = {i: {"old_p": p.detach().clone()} for i, p in enumerate(model.parameters())}
    return {"state": old, "param_groups": [group]}


@pytest.mark.parametrize("base", [SGD, Adam])
@pytest.mark.parametrize(("make", "adaptive"), [(SAM, False), (ASAM, True)])
def test_a_state_of_another_package_gives_its_rho(make, adaptive, base):
    model, twin = network(), network()
    optimizer = make(base(model.parameters(), lr=0.1), 0.05)
    groups = base(network().parameters(), lr=0.3).state_dict()["param_groups"][0]
    optimizer.load_state_dict(state_of_another_package(model, adaptive, **groups))
    assert optimizer.radius == 0.1
    assert "rho" not in optimizer.param_groups[0]
    assert not any(optimizer.state.values()), "the copy of the weights is gone"
    expected = step(twin, make(base(twin.parameters(), lr=0.3), 0.1), 3)
    assert torch.equal(step(model, optimizer, 3), expected)


@pytest.mark.parametrize(
    ("make", "adaptive", "words"),
    [
        (SAM, True, ["adaptive=True", "ASAM(base, variant='davda54')"]),
        (ASAM, False, ["adaptive=False", "SAM(base)"]),
    ],
)
def test_a_state_of_the_other_kind_of_sam_is_refused(make, adaptive, words):
    model = network()
    optimizer = make(SGD(model.parameters(), lr=0.1), 0.05)
    state = state_of_another_package(model, adaptive, lr=0.3)
    refused(lambda: optimizer.load_state_dict(state), *words)


def test_a_group_without_rho_takes_that_of_the_others():
    model = network()
    groups = [{"params": [p]} for p in model.parameters()]
    optimizer = ASAM(SGD(groups, lr=0.1), 0.05)
    state = optimizer.base.state_dict()
    for group in state["param_groups"]:
        del group["radius"]
    state["param_groups"][0].update(rho=0.1, adaptive=True)
    optimizer.load_state_dict(state)
    assert optimizer.radius == 0.1
    assert [group["radius"] for group in optimizer.param_groups] == [0.1] * len(groups)


def test_the_rho_of_adadelta_is_no_radius():
    model, twin = network(), network()
    optimizer, again = (SAM(Adadelta(m.parameters(), rho=0.8), 0.1) for m in (model, twin))
    step(model, optimizer)
    again.load_state_dict(optimizer.state_dict())
    assert again.radius == 0.1
    assert again.param_groups[0]["rho"] == 0.8


# Hooks


@every
def test_hooks_are_those_of_the_base(name):
    model, called = network(), []
    optimizer = over_sgd(name, model)
    optimizer.register_step_pre_hook(lambda o, *_: called.append(("step", o)))
    optimizer.register_state_dict_post_hook(lambda o, s: {**s, "note": "stored"})
    optimizer.register_load_state_dict_pre_hook(lambda o, s: called.append(("load", s["note"])))
    step(model, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    assert called == [("step", optimizer.base), ("load", "stored")]


def test_joined_optimizers_take_hooks_and_one_cycle():
    model, twin = network(), network()
    first, *rest = model.parameters()
    several = SAM([SGD([first], lr=0.1), SGD(rest, lr=0.1)], radius=0.2)
    single = SAM(SGD(twin.parameters(), lr=0.1), radius=0.2)
    seen = []

    def clip(optimizer, args, kwargs):
        every = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(every, 0.05)

    for optimizer in (several, single):
        optimizer.register_step_pre_hook(clip)
        optimizer.register_step_post_hook(lambda base, args, kwargs: seen.append(len(seen)))
        schedule = OneCycleLR(optimizer, max_lr=0.3, total_steps=4, cycle_momentum=False)
        for _ in range(3):
            step(model if optimizer is several else twin, optimizer)
            schedule.step()
    assert seen == [0, 1, 2, 3, 4, 5]
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q)


# The radius


@with_radius
def test_the_radius_stands_in_every_group_and_in_the_repr(name):
    w, v, late, later = (nn.Parameter(torch.ones(2)) for _ in range(4))
    model = nn.ParameterDict({"w": w, "v": v, "late": late, "later": later})

    def over_groups():
        groups = [{"params": [w]}, {"params": [v], "lr": 0.5}]
        return SGD(groups, lr=0.1, momentum=0.9)

    optimizer = wrap(name, over_groups(), model)
    optimizer.radius = 0.3
    assert [group["radius"] for group in optimizer.param_groups] == [0.3, 0.3]
    assert "radius: 0.3" in repr(optimizer)
    for group in optimizer.param_groups:
        group["radius"] = 0.7  # as a schedule would
    assert optimizer.radius == 0.7
    twin = wrap(name, over_groups(), model)
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


# Bases that wrap


@every
def test_a_base_may_be_a_wrapper_itself(name):
    """Where each second step goes half of the way back, the slow weights are those of the wrapper."""
    model, twin = network(), network()
    inner = SGD(model.parameters(), lr=0.3, momentum=0.5)
    optimizer = wrap(name, Lookahead(inner), model)
    plain = wrap(name, SGD(twin.parameters(), lr=0.3, momentum=0.5), twin)
    for _ in range(3):
        before = weights(twin)
        half_way = before + 0.5 * (step(twin, plain, 2) - before)
        nn.utils.vector_to_parameters(half_way, twin.parameters())
        torch.testing.assert_close(step(model, optimizer, 2), half_way, rtol=0, atol=1e-6)
