"""Which base optimizers and which calls are taken, and which are refused in one line."""

import copy

import pytest
import torch
from helpers.steps import closure_from
from torch import nn
from torch.optim import SGD, Adadelta, Adam

from softadlib import ASAM, FDGR, GNP, SAM

MAKERS = {
    "sam": lambda base: SAM(base),
    "asam": lambda base: ASAM(base),
    "gnp": lambda base: GNP(base),
    "fdgr": lambda base: FDGR(base, 0.1),
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def weights(dtype=torch.float32):
    return nn.Parameter(torch.tensor([3.0, 4.0], dtype=dtype))


@every
def test_bases_that_cannot_be_wrapped_are_refused_at_once(make):
    for base, words in (
        (torch.optim.LBFGS([weights()]), "cannot wrap LBFGS, which evaluates the loss itself"),
        (SGD([weights()], maximize=True), "minimise the negative loss instead"),
        (SGD([weights(torch.float16)]), "takes no parameters in float16, .*; use float32"),
        (SGD([weights(torch.bfloat16)]), "takes no parameters in bfloat16, .*; use float32"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            make(base)
        assert "\n" not in str(error.value)


@every
def test_groups_and_states_that_come_later_are_checked_too(make):
    optimizer = make(SGD([weights()], lr=0.1))
    for group, words in (
        ({"params": [weights()], "maximize": True}, "minimise the negative loss instead"),
        ({"params": [weights(torch.float16)]}, "takes no parameters in float16"),
    ):
        with pytest.raises(ValueError, match=words):
            optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ValueError, match="minimise the negative loss instead"):
        optimizer.load_state_dict(SGD([weights()], lr=0.2, maximize=True).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1


@every
def test_an_optimizer_of_this_package_is_no_base(make):
    with pytest.raises(ValueError, match=r"cannot wrap SAM, .*\(optimizer\.base\)"):
        make(SAM(SGD([weights()], lr=0.1)))


# The radius


@pytest.mark.parametrize("make", [SAM, ASAM, GNP])
def test_the_radius_stands_in_every_group_and_in_the_repr(make):
    w, v = weights(), weights()
    optimizer = make(SGD([{"params": [w]}, {"params": [v], "lr": 0.5}], lr=0.1), radius=0.3)
    assert [group["radius"] for group in optimizer.param_groups] == [0.3, 0.3]
    assert "radius: 0.3" in repr(optimizer)
    optimizer.add_param_group({"params": [weights()]})
    assert optimizer.param_groups[2]["radius"] == 0.3
    for group in optimizer.param_groups:
        group["radius"] = 0.7  # as a schedule would
    assert optimizer.radius == 0.7
    twin = make(SGD([{"params": [w]}, {"params": [v]}, {"params": [weights()]}], lr=0.1))
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert twin.radius == 0.7
    optimizer.param_groups[0]["radius"] = 0.1
    with pytest.raises(ValueError, match=r"groups have the radii \[0.1, 0.7\]"):
        _ = optimizer.radius


def test_a_state_without_a_radius_leaves_it():
    optimizer = SAM(SGD([weights()], lr=0.1), radius=0.3)
    optimizer.load_state_dict(SGD([weights()], lr=0.2).state_dict())
    assert (optimizer.radius, optimizer.param_groups[0]["lr"]) == (0.3, 0.2)


def test_a_radius_set_in_the_groups_is_the_one_that_steps():
    w = weights()
    optimizer = SAM(SGD([w], lr=0.1), radius=0.0)
    optimizer.param_groups[0]["radius"] = 0.5
    optimizer.step(closure_from(optimizer, lambda: w.square().sum() / 2))
    torch.testing.assert_close(w.data, torch.tensor([2.67, 3.56]))  # 0.89·w


def test_a_radius_of_one_group_alone_is_refused_and_not_replaced():
    for key in ("radius", "rho"):
        base = SGD([{"params": [weights()], key: 0.5}, {"params": [weights()]}], lr=0.1)
        with pytest.raises(ValueError, match=f"group of SGD has {key}=0.5, .*SAM\\(…, radius=…\\)"):
            SAM(base, radius=0.05)
    base = SGD([weights()], lr=0.1)
    SAM(base, 0.3)
    with pytest.raises(ValueError, match=r"group of SGD has radius=0\.3, and GNP perturbs all"):
        GNP(base, radius=0.1)
    assert SAM(Adadelta([weights()], rho=0.8), 0.2).radius == 0.2  # Adadelta's rho is its own


@pytest.mark.parametrize("one", [(GNP, 0.9), (SAM, 0.1), (FDGR, 0.3)])
def test_a_state_of_another_rule_or_of_other_settings_is_refused(one):
    make, number = one
    optimizer = GNP(SGD([weights()], lr=0.1), 0.1)
    state = make(SGD([weights()], lr=0.7), number).state_dict()
    with pytest.raises(ValueError, match=r"state is of .*drop state\['rule'\]"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.1
    del state["rule"]
    optimizer.load_state_dict(state)
    assert (optimizer.alpha, optimizer.param_groups[0]["lr"]) == (0.1, 0.7)
    optimizer.load_state_dict(GNP(SGD([weights()], lr=0.5), 0.1).state_dict())


# What other packages write


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda p: SAM(p, SGD, rho=0.05, adaptive=True, lr=0.1),
            "got adaptive, lr, rho; for adaptive=True use ASAM; rho is radius here",
        ),
        (lambda p: SAM(p, SGD, radius=0.05), "it got list"),
        (lambda p: SAM(SGD, p, lr=0.1), "it got lr"),
        (lambda p: SAM(SGD), "it got type"),
        (lambda p: SAM(p, lr=0.1), "it got lr"),
        (lambda p: SAM(SGD(p, lr=0.1), rho=0.1), "rho is radius here"),
        (lambda p: SAM(SGD(p, lr=0.1), rho=0.1, radius=0.2), "rho is radius here"),
        (lambda p: GNP(SGD(p, lr=0.1), adaptive=True), "use ASAM"),
        (lambda p: SAM(SGD(p, lr=0.1), lr=0.2), "it got lr"),
    ],
)
def test_the_message_shows_what_to_write(call, words):
    with pytest.raises(
        TypeError, match=r"takes an optimizer that has its own settings, .*SGD\(model"
    ) as e:
        call([weights()])
    assert words.replace("it got type", "it got SGD") in str(e.value)
    assert "\n" not in str(e.value)


def test_asam_needs_no_model_and_checks_one():
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    assert ASAM(Adam(model.parameters())).variant == "davda54"
    assert ASAM(Adam(model.parameters()), model=model).variant == "official"
    both = SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(ValueError, match="model= lacks a parameter of the optimizer"):
        ASAM(both, model=model)
    with pytest.raises(ValueError, match="model= takes the network itself, got generator"):
        ASAM(both, model=model.parameters())
    for make in (ASAM, SAM, GNP):
        with pytest.raises(ValueError, match="model= lacks every parameter of the optimizer"):
            make(Adam(model.parameters()), model=other, bn_update="first")
