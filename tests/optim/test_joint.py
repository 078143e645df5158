"""Bases that hold other optimizers: wrappers such as Lookahead, and several optimizers under one rule."""

import copy
import pickle
from functools import partial

import pytest
import torch
from helpers.plain_loop import sharp_step
from helpers.steps import X, Y, closure_of, network, step, weights
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from softadlib import ASAM, FDGR, GNP, MSAM, SAM

WRAPPERS = {
    "sam": partial(SAM, radius=0.2),
    "asam": partial(ASAM, radius=0.5),
    "msam": partial(MSAM, radius=0.5),
    "gnp": partial(GNP, alpha=0.7, radius=0.2),
    "fdgr": partial(FDGR, strength=0.3, step_size=0.1),
}
every = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


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


@every
def test_a_base_may_be_a_wrapper_itself(wrap):
    """Where each second step goes half of the way back, the slow weights are those of the wrapper."""
    model, twin = network(), network()
    optimizer = wrap(Lookahead(SGD(model.parameters(), lr=0.3, momentum=0.5)))
    plain = wrap(SGD(twin.parameters(), lr=0.3, momentum=0.5))
    for _ in range(3):
        before = weights(twin)
        half_way = before + 0.5 * (step(twin, plain, 2) - before)
        nn.utils.vector_to_parameters(half_way, twin.parameters())
        torch.testing.assert_close(step(model, optimizer, 2), half_way, rtol=0, atol=1e-6)


def joined(model, wrap):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    return wrap([SGD(matrices, lr=0.3, momentum=0.9), AdamW(others, lr=0.05)])


@pytest.mark.parametrize("name", ["sam", "gnp"])
def test_several_optimizers_step_with_the_gradient_at_one_joint_perturbation(name):
    """Against a loop with one norm over all parameters, in which each optimizer steps."""
    method, knob, settings = {"sam": ("sam", 0.2, {}), "gnp": ("gnp", 0.7, {"radius": 0.2})}[name]
    model, twin = network().double(), network().double()
    optimizer = joined(model, WRAPPERS[name])
    plain = joined(twin, SAM).base
    for _ in range(20):
        step(model, optimizer)
        sharp_step(method, twin, plain, X.double(), Y, knob, "both", **settings)
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-12)
    assert (weights(model) - weights(network())).norm() > 0.5


@every
def test_joined_optimizers_resume_are_scheduled_and_copied(wrap):
    model = network()
    optimizer = joined(model, wrap)
    scheduler = CosineAnnealingLR(optimizer, 10)
    for _ in range(3):
        step(model, optimizer)
        scheduler.step()
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates[0] == pytest.approx(6 * rates[1])
    assert rates[0] < 0.3
    resumed_model = copy.deepcopy(model)
    resumed = joined(resumed_model, wrap)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    copied_model, copied = pickle.loads(pickle.dumps((model, optimizer)))
    expected = step(model, optimizer, 3)
    assert torch.equal(step(resumed_model, resumed, 3), expected)
    assert torch.equal(step(copied_model, copied, 3), expected)


def test_joined_optimizers_take_hooks_and_one_cycle():
    model, twin = network(), network()
    first, *rest = model.parameters()
    several = SAM([SGD([first], lr=0.1), SGD(rest, lr=0.1)], radius=0.2)
    single = SAM(SGD(twin.parameters(), lr=0.1), radius=0.2)
    seen = []
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


def test_a_cycle_of_the_momentum_is_refused_by_torch_where_each_optimizer_has_its_own():
    first, *rest = network().parameters()
    several = SAM([AdamW([first]), SGD(rest, lr=0.1)])
    with pytest.raises(ValueError, match="cycle_momentum"):
        OneCycleLR(several, max_lr=0.3, total_steps=4)


def clip(optimizer, args, kwargs):
    """Clip the gradients of all groups together, as `step_pre_hook` of the recipes does."""
    every = [p for group in optimizer.param_groups for p in group["params"]]
    nn.utils.clip_grad_norm_(every, 0.05)


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
