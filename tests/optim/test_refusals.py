"""What the optimizers refuse: each message names what was given and the way out, in one line."""

import contextlib
import copy
from functools import partial

import pytest
import torch
from helpers.refusals import refused
from helpers.steps import closure_from
from torch import nn
from torch.optim import SGD, Adam, AdamW

from softadlib import ASAM, FDGR, GNP, MSAM, SAM

MAKERS = {
    "sam": SAM,
    "asam": ASAM,
    "gnp": GNP,
    "fdgr": partial(FDGR, strength=0.1),
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def weights(dtype=torch.float32):
    return nn.Parameter(torch.tensor([3.0, 4.0], dtype=dtype))


def sgd(*params, **settings):
    return SGD(list(params or [weights()]), **{"lr": 0.1, **settings})


def of_two_groups(**first):
    return SGD([{"params": [weights()], **first}, {"params": [weights()]}], lr=0.1)


class OtherSAM(SGD):
    def __init__(self):
        super().__init__([weights()], lr=0.1)

    def first_step(self, zero_grad=False): ...


BASES = {
    "closure": (lambda: torch.optim.LBFGS([weights()]), ["LBFGS", "SGD or Adam"]),
    "sam of sam": (lambda: SAM(sgd()), ["cannot wrap SAM", "SGD or Adam"]),
    "gnp": (lambda: GNP(sgd()), ["cannot wrap GNP", "SGD or Adam"]),
    "sam of another package": (OtherSAM, ["cannot wrap OtherSAM", "SGD or Adam"]),
    "maximize": (lambda: sgd(maximize=True), ["maximize=True", "negative loss"]),
    "float16": (lambda: sgd(weights(torch.float16)), ["float16", "use float32"]),
    "bfloat16": (lambda: sgd(weights(torch.bfloat16)), ["bfloat16", "use float32"]),
    "parameters": (lambda: [weights()], ["got Parameter", "SGD(model.parameters(), lr=0.1)"]),
    "a class": (lambda: SGD, ["got type", "SGD(model.parameters(), lr=0.1)"]),
    "a list with a sam": (lambda: [sgd(), SAM(sgd())], ["cannot wrap SAM", "SGD or Adam"]),
}


@pytest.mark.parametrize(("base", "words"), BASES.values(), ids=BASES)
@every
def test_a_base_that_cannot_be_stepped_is_refused(make, base, words):
    refused(lambda: make(base()), *words)


@every
def test_a_parameter_group_that_comes_later_is_checked_too(make):
    optimizer = make(sgd())
    for group, word in (
        ({"params": [weights()], "maximize": True}, "negative loss"),
        ({"params": [weights(torch.float16)]}, "use float32"),
    ):
        refused(partial(copy.deepcopy(optimizer).add_param_group, group), word)


MODEL = nn.Linear(2, 1)
SETTINGS = {
    "variant": (lambda: ASAM(sgd(), variant="adaptive"), ["'adaptive'", "official, davda54"]),
    "mixing": (lambda: GNP(sgd(), mixing="code"), ["'code'", "paper, official"]),
    "scheme": (lambda: FDGR(sgd(), 0.1, scheme="backward"), ["'backward'", "forward, centered"]),
    "step of 0": (lambda: FDGR(sgd(), 0.1, 0.0), ["step_size", "above 0", "got 0.0"]),
    "official": (lambda: ASAM(sgd(), variant="official"), ["'official'", "model="]),
    "names": (lambda: ASAM(sgd(), model=MODEL), ["lacks a parameter", "variant='official'"]),
    "batch norm": (lambda: GNP(sgd(), bn_update="first"), ["bn_update='first'", "model="]),
    "no DDP": (lambda: SAM(sgd(), model=MODEL, first_sync=False), ["model=", "Distributed"]),
    "complex": (lambda: ASAM(sgd(weights(torch.complex64))), ["complex", "use SAM"]),
    "momentum": (lambda: MSAM(sgd()), ["SGD has none", "momentum=0.9", "Adam"]),
    "radius of a group": (
        lambda: SAM(of_two_groups(radius=0.5), 0.05),
        ["radius=0.05", "hold radius=0.5", "earlier wrapper"],
    ),
    "wrapped before": (
        lambda: GNP(SAM(sgd(), 0.3).base, radius=0.1),
        ["radius=0.1", "hold radius=0.3", "earlier wrapper"],
    ),
    "no optimizer": (lambda: SAM([]), ["one optimizer or several", "an empty list"]),
    "complex, added": (
        lambda: ASAM(sgd()).add_param_group({"params": [weights(torch.complex64)]}),
        ["complex", "use SAM"],
    ),
    "shared": (lambda: SAM([sgd(MODEL.weight), Adam(MODEL.parameters())]), ["in common"]),
    "joint group": (
        lambda: SAM([sgd(), sgd()]).add_param_group({"params": [weights()]}),
        ["one of the joined optimizers"],
    ),
}


@pytest.mark.parametrize(("make", "words"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_do_not_fit_are_refused(make, words):
    refused(make, *words)


NUMBERS = [
    (SAM, "radius"),
    (ASAM, "radius"),
    (ASAM, "eta"),
    (MSAM, "radius"),
    (GNP, "alpha"),
    (GNP, "radius"),
    (FDGR, "strength"),
    (partial(FDGR, strength=0.1), "step_size"),
]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "0.1", True, None, -0.1], ids=repr)
@pytest.mark.parametrize(("make", "name"), NUMBERS)
def test_a_bad_number_is_refused_in_the_constructor(make, name, bad):
    refused(lambda: make(sgd(momentum=0.9), **{name: bad}), f"{name} must", repr(bad))


@pytest.mark.parametrize(("make", "name"), NUMBERS)
def test_a_bad_number_that_is_assigned_later_is_refused_at_the_latest_by_the_step(make, name):
    w = weights()
    settings = {"strength": 0.1} if make is FDGR else {}
    optimizer = make(sgd(w, momentum=0.9), **settings)
    if make is ASAM:
        optimizer = ASAM(optimizer.base, model=nn.ParameterDict({"weight": w}))

    def train():
        setattr(optimizer, name, float("nan"))
        optimizer.step(closure_from(optimizer, lambda: w.square().sum()))

    refused(train, f"{name} must", "nan")
    assert w.tolist() == [3.0, 4.0]


def test_radii_that_differ_are_refused_by_the_step():
    w, v = weights(), weights()
    optimizer = SAM(SGD([{"params": [w]}, {"params": [v]}], lr=0.1), 0.3)
    optimizer.param_groups[0]["radius"] = 0.1
    step = partial(optimizer.step, closure_from(optimizer, lambda: (w * v).sum()))
    refused(step, "[0.1, 0.3]", "same")


# Calls of step


@every
def test_a_step_without_a_closure_is_refused(make):
    optimizer = make(sgd())
    for call in (optimizer.step, partial(optimizer.step, torch.tensor(1.5))):
        refused(call, "closure", "step(closure, scaler=scaler)")


@every
def test_a_step_of_the_scaler_is_refused(make):
    w = weights()
    optimizer, scaler = make(sgd(w)), torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(w.square().sum()).backward()
    refused(lambda: scaler.step(optimizer), "step(closure, scaler=scaler)")
    assert w.tolist() == [3.0, 4.0]


@every
def test_gradients_of_an_earlier_backward_are_not_added_to(make):
    """As a loop that accumulates would: the second pass would have one micro-batch only."""
    w = weights()
    optimizer = make(sgd(w))

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
        optimizer.zero_grad()


@pytest.mark.parametrize("target", ["optimizer", "base"])
@pytest.mark.parametrize("make", [MSAM, SAM])
def test_a_closure_that_unscales_is_refused(make, target):
    w, scaler = weights(), torch.amp.GradScaler("cpu")
    optimizer = make(sgd(w, momentum=0.9))

    def closure():
        optimizer.zero_grad()
        loss = w.square().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer if target == "optimizer" else optimizer.base)
        return loss

    refused(
        lambda: optimizer.step(closure, scaler=scaler), "unscale_() has already", kind=RuntimeError
    )
    assert w.tolist() == [3.0, 4.0]


def test_a_scaler_needs_the_first_exchange():
    model = nn.Linear(2, 1)
    model.no_sync = contextlib.nullcontext  # as DDP has it
    optimizer = SAM(SGD(model.parameters(), lr=0.1), model=model, first_sync=False)
    step = partial(optimizer.step, lambda: None, scaler=torch.amp.GradScaler("cpu"))
    refused(step, "leave out first_sync=False", "bfloat16")


def test_halves_in_another_order_are_refused():
    w = weights()
    optimizer = SAM(sgd(w))
    refused(optimizer.second_step, "first_step before it", kind=RuntimeError)
    w.square().sum().backward()
    optimizer.first_step()
    refused(optimizer.first_step, "call second_step in between", kind=RuntimeError)
    refused(
        lambda: optimizer.step(lambda: w.square().sum()),
        "step was called after first_step; call second_step in between",
        kind=RuntimeError,
    )


def test_momentum_that_no_state_shows_is_refused():
    w = weights()
    optimizer = MSAM(torch.optim.ASGD([{"params": [w], "momentum": 0.9}]))
    closure = closure_from(optimizer, lambda: w.square().sum())
    optimizer.step(closure)  # there is no state before it
    refused(lambda: optimizer.step(closure), "ASGD", "SGD with momentum, or Adam")


def test_a_state_of_another_number_of_joined_optimizers_is_refused():
    two, three = SAM([sgd(), AdamW([weights()])]), SAM([sgd(), sgd(), sgd()])
    refused(lambda: two.load_state_dict(three.state_dict()), "of 3", "2 are joined")
    refused(lambda: two.load_state_dict(sgd().state_dict()), "of 1", "2 are joined")
