"""What the optimizers refuse: each message names what was given and the way out, in one line."""

import contextlib
from functools import partial

import pytest
import torch
from helpers.refusals import refused
from helpers.steps import closure_from
from helpers.wrappers import WITH_HALVES, WITH_RADIUS, WRAPPERS, wrap
from torch import nn
from torch.optim import ASGD, LBFGS, SGD

from softadlib import ASAM, FDGR, GNP, MSAM, SAM

HALF = torch.float16
MODEL = nn.Linear(2, 1)


def weights(dtype=torch.float32):
    return nn.Parameter(torch.tensor([3.0, 4.0], dtype=dtype))


def sgd(*params, **settings):
    return SGD(list(params or [weights()]), **{"lr": 0.1, "momentum": 0.9, **settings})


def two_groups(**first):
    groups = [{"params": [weights()], **first}, {"params": [weights()]}]
    return SGD(groups, lr=0.1, momentum=0.9)


def make(name, base):
    return wrap(name, base, None)


class OtherSAM(SGD):
    def __init__(self):
        super().__init__([weights()], lr=0.1)

    def first_step(self, zero_grad=False): ...


class DDP(nn.Linear):
    no_sync = contextlib.nullcontext


TAKES = ["takes an optimizer", "write", "(SGD(model.parameters(), lr=0.1), radius=0.05)"]
BASES = {
    "LBFGS": (lambda: LBFGS([weights()]), ["LBFGS", "SGD or Adam"]),
    "SAM": (lambda: SAM(sgd()), ["cannot wrap SAM", "SGD or Adam"]),
    "GNP": (lambda: GNP(sgd()), ["cannot wrap GNP", "SGD or Adam"]),
    "SAM of another package": (OtherSAM, ["cannot wrap OtherSAM", "SGD or Adam"]),
    "a list with SAM": (lambda: [sgd(), SAM(sgd())], ["cannot wrap SAM", "SGD or Adam"]),
    "maximize": (lambda: sgd(maximize=True), ["maximize=True", "negative loss"]),
    "float16": (lambda: sgd(weights(HALF)), ["float16", "use float32"]),
    "bfloat16": (lambda: sgd(weights(torch.bfloat16)), ["bfloat16", "use float32"]),
    "parameters": (lambda: [weights()], TAKES),
    "a generator": (MODEL.parameters, TAKES),
    "a class": (lambda: SGD, TAKES),
    "nothing": (list, TAKES),
    "a shared parameter": (lambda: [sgd(MODEL.bias), sgd(*MODEL.parameters())], ["in common"]),
}
ADDED = {
    "maximize": (lambda: {"params": [weights()], "maximize": True}, ["negative loss"]),
    "float16": (lambda: {"params": [weights(HALF)]}, ["use float32"]),
}
NUMBERS = {
    "SAM radius": (SAM, "radius"),
    "ASAM radius": (ASAM, "radius"),
    "ASAM eta": (ASAM, "eta"),
    "MSAM radius": (MSAM, "radius"),
    "GNP alpha": (GNP, "alpha"),
    "GNP radius": (GNP, "radius"),
    "FDGR strength": (FDGR, "strength"),
    "FDGR step_size": (partial(FDGR, strength=0.1), "step_size"),
}
BAD = (float("nan"), float("inf"), "0.1", True, None, -0.1)
REFUSED = {
    "variant": (lambda: ASAM(sgd(), variant="adaptive"), ["'adaptive'", "official, davda54"]),
    "mixing": (lambda: GNP(sgd(), mixing="code"), ["'code'", "paper, official"]),
    "scheme": (lambda: FDGR(sgd(), 0.1, scheme="backward"), ["'backward'", "forward, centered"]),
    "a step of 0": (lambda: FDGR(sgd(), 0.1, 0.0), ["step_size", "above 0", "got 0.0"]),
    "official without a model": (lambda: ASAM(sgd(), variant="official"), ["'official'", "model="]),
    "official without names": (
        lambda: ASAM(sgd(), model=MODEL),
        ["lacks a parameter", "variant='official'"],
    ),
    "no momentum": (lambda: MSAM(sgd(momentum=0)), ["SGD has none", "momentum=0.9", "Adam"]),
    "a group for several optimizers": (
        lambda: SAM([sgd(), sgd()]).add_param_group({"params": [weights()]}),
        ["one of the joined optimizers"],
    ),
    "first_sync without DDP": (
        lambda: SAM(sgd(), model=MODEL, first_sync=False),
        ["first_sync=False needs model=", "DistributedDataParallel"],
    ),
    "a scaler without the first exchange": (
        lambda: SAM(sgd(), model=DDP(2, 1), first_sync=False).step(
            lambda: None, scaler=torch.amp.GradScaler("cpu")
        ),
        ["leave out first_sync=False", "bfloat16"],
    ),
}
for bn in (SAM, ASAM, GNP, partial(FDGR, strength=0.1)):
    REFUSED[f"bn_update, {bn}"] = (
        partial(lambda bn: bn(sgd(), bn_update="first"), bn),
        ["bn_update='first'", "model="],
    )
for name in WRAPPERS:
    for base, (given, words) in BASES.items():
        REFUSED[f"{name} over {base}"] = (partial(lambda n, g: make(n, g()), name, given), words)
    for group, (given, words) in ADDED.items():
        add = partial(lambda n, g: make(n, sgd()).add_param_group(g()), name, given)
        REFUSED[f"{name}, {group} added"] = (add, words)
    words = ["closure", "step(closure, scaler=scaler)"]
    REFUSED[f"{name}, no closure"] = (lambda n=name: make(n, sgd()).step(), words)
    REFUSED[f"{name}, a loss"] = (lambda n=name: make(n, sgd()).step(torch.tensor(1.5)), words)
for name in WITH_RADIUS:
    REFUSED[f"{name}, radius of a group"] = (
        lambda n=name: make(n, two_groups(radius=0.25)),
        ["hold radius=0.25", "earlier wrapper"],
    )
    REFUSED[f"{name}, wrapped before"] = (
        lambda n=name: make(n, SAM(sgd(), 0.25).base),
        ["hold radius=0.25", "earlier wrapper"],
    )
for number, (wrapper, argument) in NUMBERS.items():
    for bad in BAD:
        REFUSED[f"{number}, {bad!r}"] = (
            lambda w=wrapper, a=argument, b=bad: w(sgd(), **{a: b}),
            [f"{argument} must", repr(bad)],
        )


@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(call, words):
    refused(call, *words)


@pytest.mark.parametrize("wrapper", [SAM, ASAM, MSAM])
def test_the_call_of_other_packages_is_answered_with_what_to_write(wrapper):
    refused(
        lambda: wrapper(MODEL.parameters(), SGD, lr=0.1, momentum=0.9),
        f"write {wrapper.__name__}(SGD(model.parameters(), lr=0.1), radius=0.05)",
    )


# In the step, which then changes nothing


@pytest.mark.parametrize(("wrapper", "name"), NUMBERS.values(), ids=NUMBERS)
def test_a_bad_number_that_is_assigned_later_is_refused_at_the_latest_by_the_step(wrapper, name):
    w = weights()
    optimizer = wrapper(sgd(w), **({"strength": 0.1} if wrapper is FDGR else {}))
    if wrapper is ASAM:
        optimizer = ASAM(optimizer.base, model=nn.ParameterDict({"weight": w}))

    def train():
        setattr(optimizer, name, float("nan"))
        optimizer.step(closure_from(optimizer, lambda: w.square().sum()))

    refused(train, f"{name} must", "nan")
    assert w.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("name", WITH_RADIUS)
def test_radii_that_differ_are_refused_by_the_step_until_they_agree(name):
    base = two_groups()
    optimizer = make(name, base)
    radius = optimizer.radius
    w, v = (group["params"][0] for group in base.param_groups)
    optimizer.param_groups[0]["radius"] = 0.1
    step = partial(optimizer.step, closure_from(optimizer, lambda: (w * v).sum()))
    refused(step, str(sorted([0.1, radius])), "same")
    assert w.tolist() == v.tolist() == [3.0, 4.0]
    optimizer.param_groups[0]["radius"] = radius
    step()
    assert w.tolist() != [3.0, 4.0]
    own = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [own], "radius": 0.1})
    refused(step, str(sorted([0.1, radius])), "same")


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_step_of_the_scaler_is_refused(name):
    w = weights()
    optimizer, scaler = make(name, sgd(w)), torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(w.square().sum()).backward()
    refused(lambda: scaler.step(optimizer), "step(closure, scaler=scaler)")
    assert w.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", WRAPPERS)
def test_gradients_of_an_earlier_backward_are_not_added_to(name, in_place):
    """As a loop that accumulates would: the second pass would have one micro-batch only."""
    w = weights()
    optimizer = make(name, sgd(w))

    def backward():
        loss = w.square().sum()
        loss.backward()
        return loss

    for _ in range(2):  # before the first step, and after a step
        backward()
        before = w.tolist()
        refused(lambda: optimizer.step(backward), "zero_grad()", "micro-batch", kind=RuntimeError)
        assert w.tolist() == before
        optimizer.step(closure_from(optimizer, lambda: w.square().sum()))
        optimizer.zero_grad(set_to_none=not in_place)


@pytest.mark.parametrize("target", ["optimizer", "base"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_closure_that_unscales_is_refused(name, target):
    w, scaler = weights(), torch.amp.GradScaler("cpu")
    optimizer = make(name, sgd(w))

    def closure():
        optimizer.zero_grad()
        loss = w.square().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer if target == "optimizer" else optimizer.base)
        return loss

    step = partial(optimizer.step, closure, scaler=scaler)
    refused(step, "unscale_() has already", kind=RuntimeError)
    assert w.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("target", ["optimizer", "base"])
@pytest.mark.parametrize("name", WITH_HALVES)
def test_a_loop_that_unscales_before_the_second_half_is_refused(name, target):
    w, scaler = weights(), torch.amp.GradScaler("cpu")
    optimizer = make(name, sgd(w))
    scaler.scale(w.square().sum()).backward()
    optimizer.first_step(zero_grad=True, scaler=scaler)
    scaler.scale(w.square().sum()).backward()
    scaler.unscale_(optimizer if target == "optimizer" else optimizer.base)
    second = partial(optimizer.second_step, scaler=scaler)
    refused(second, "unscale_() has already", kind=RuntimeError)
    assert w.tolist() == [3.0, 4.0]
    assert w.grad is not None, "gradients are left as they were"


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", WITH_HALVES)
def test_another_scaler_than_that_of_the_first_step_is_refused(name, first, second):
    """Else the base would step with scaled gradients; then the right one is taken."""
    w, right = weights(), torch.amp.GradScaler("cpu", enabled=first)
    optimizer, twin = make(name, sgd(w)), weights()
    other = torch.amp.GradScaler("cpu", enabled=second)

    def backward(w, scaler):
        scaler.scale(w.square().sum()).backward()

    backward(w, right)
    optimizer.first_step(zero_grad=True, scaler=right)
    backward(w, right)
    refused(lambda: optimizer.second_step(scaler=other), "the same scaler=")
    optimizer.second_step(scaler=right)
    again = make(name, sgd(twin))
    again.step(closure_from(again, lambda: twin.square().sum()))
    torch.testing.assert_close(w, twin)


@pytest.mark.parametrize("name", WITH_HALVES)
def test_halves_in_another_order_are_refused(name):
    w = weights()
    optimizer = make(name, sgd(w))
    refused(optimizer.second_step, "first_step before it", kind=RuntimeError)
    w.square().sum().backward()
    optimizer.first_step(zero_grad=True)
    calls = []
    closure = closure_from(optimizer, lambda: calls.append(1) or w.square().sum())
    for call in (optimizer.first_step, partial(optimizer.step, closure)):
        refused(call, "earlier first_step; call second_step", kind=RuntimeError)
    assert not calls, "no closure runs at the perturbed weights"
    optimizer.second_step()
    assert w.tolist() == [3.0, 4.0], "they are back, and there is no gradient to step with"


def test_momentum_that_no_state_shows_is_refused():
    w = weights()
    optimizer = MSAM(ASGD([{"params": [w], "momentum": 0.9}]))
    closure = closure_from(optimizer, lambda: w.square().sum())
    optimizer.step(closure)  # there is no state before it
    refused(lambda: optimizer.step(closure), "ASGD", "SGD with momentum, or Adam")


def test_a_scaler_that_is_disabled_is_none_without_the_first_exchange_too():
    model = nn.Linear(2, 1)
    model.no_sync = contextlib.nullcontext
    optimizer = SAM(SGD(model.parameters(), lr=0.1), model=model, first_sync=False)
    closure = closure_from(optimizer, lambda: model(torch.ones(1, 2)).sum())
    before = model.weight.detach().clone()
    optimizer.step(closure, scaler=torch.amp.GradScaler("cpu", enabled=False))
    assert (model.weight < before).all()
