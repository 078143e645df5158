"""SAM, ASAM, GNP, FD-GR in other people's loops: groups, schedulers, states, sparse gradients, clipping, scalers."""

import copy
import gc
import pickle
import threading
from functools import partial

import pytest
import torch
from helpers.plain_loop import sharp_step
from helpers.steps import X, Y, closure_from, closure_of, network
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from softadlib import ERM, LossMonitor
from softadlib.optim.joint import JointOptimizer
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


# Optimizers that hold others


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
    optimizer = wrap(Lookahead(SGD(model.parameters(), lr=0.3)))
    plain = wrap(SGD(twin.parameters(), lr=0.3))
    for _ in range(3):
        before = weights(twin)
        step(model, optimizer, 2)
        after = step(twin, plain, 2)
        with torch.no_grad():
            for p, slow, fast in zip(twin.parameters(), before, after):
                p.copy_(slow + 0.5 * (fast - slow))
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-6)


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
    plain = joined(twin, JointOptimizer)
    x = X.double()
    for _ in range(20):
        loss = lambda: nn.functional.cross_entropy(model(x), Y)  # noqa: E731
        optimizer.step(closure_from(optimizer, loss))
        sharp_step(method, twin, plain, x, Y, knob, "both", **settings)
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-12)
    assert (weights(model)[0] - weights(network())[0]).norm() > 0.5


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
    torch.testing.assert_close(step(resumed_model, resumed, 3), expected, rtol=0, atol=0)
    torch.testing.assert_close(step(copied_model, copied, 3), expected, rtol=0, atol=0)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
def test_muon_and_adamw_step_under_one_sam_with_a_scaler_too():
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu")):
        model = network()
        muon = torch.optim.Muon([model[0].weight, model[2].weight], lr=0.02)
        adamw = AdamW([model[0].bias, model[2].bias], lr=0.01)
        optimizer = SAM([muon, adamw], radius=0.1)

        def closure(model=model, optimizer=optimizer, scaler=scaler):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(X), Y)
            (scaler.scale(loss) if scaler else loss).backward()
            return loss

        losses = [optimizer.step(closure, scaler=scaler).item() for _ in range(20)]
        ends.append(weights(model))
    assert losses[-1] < losses[0] - 0.1
    torch.testing.assert_close(*ends, rtol=0, atol=0)


# Threads, and loops that are given up


def test_two_optimizers_in_two_threads_do_not_meet():
    """Each second pass waits until the other thread is in its own."""
    scale, meet = torch.amp.GradScaler.scale, threading.Barrier(2, timeout=60)
    alone, ends, counts = network(), {}, {}
    optimizer = SAM(SGD(alone.parameters(), lr=0.3), 0.2)
    expected = step(alone, optimizer, 5)

    def train(thread):
        torch.manual_seed(0)
        model, criterion = copy.deepcopy(start), ERM()
        monitor = LossMonitor(criterion)
        optimizer = SAM(SGD(model.parameters(), lr=0.3), 0.2)

        def loss():
            meet.wait()
            value = criterion(model(X), Y)
            meet.wait()
            return value

        for _ in range(5):
            optimizer.step(closure_from(optimizer, loss))
        ends[thread], counts[thread] = weights(model), monitor.summary()["batches"]

    start = network()
    threads = [threading.Thread(target=train, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in range(2):
        torch.testing.assert_close(ends[thread], expected, rtol=1e-6, atol=1e-6)
        assert counts[thread] == 5
    assert torch.amp.GradScaler.scale is scale


def test_a_thread_without_sam_is_monitored_while_another_is_in_its_second_pass():
    model, criterion = network(), ERM()
    monitor, calls = LossMonitor(criterion), []
    optimizer = SAM(SGD(model.parameters(), lr=0.3), 0.2)

    def other():
        criterion(model(X), Y)

    def loss():
        calls.append(1)
        if len(calls) == 2:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return criterion(model(X), Y)

    optimizer.step(closure_from(optimizer, loss))
    assert monitor.summary()["batches"] == 2, "the first pass, and that of the other thread"


def test_an_exception_between_the_halves_silences_the_passes_of_that_optimizer_alone():
    model, other = network(), network()
    criterion = ERM()
    monitor = LossMonitor(criterion)
    optimizer = SAM(SGD(model.parameters(), lr=0.3), 0.2)
    criterion(model(X), Y).backward()
    optimizer.first_step(zero_grad=True)
    # here the loop is given up, and another model is trained
    for _ in range(3):
        criterion(other(X), Y).backward()
    assert monitor.summary()["batches"] == 1 + 3
    criterion(model(X), Y).backward()
    assert monitor.summary()["batches"] == 1 + 3, "still at perturbed weights"
    optimizer.second_step()
    criterion(model(X), Y)
    assert monitor.summary()["batches"] == 1 + 3 + 1


def test_an_optimizer_that_is_dropped_between_its_halves_leaves_nothing_behind():
    model, criterion = network(), ERM()
    monitor = LossMonitor(criterion)
    optimizer = SAM(SGD(model.parameters(), lr=0.3), 0.2)
    criterion(model(X), Y).backward()
    optimizer.first_step(zero_grad=True)
    there = weights(model)
    del optimizer
    gc.collect()
    criterion(model(X), Y)
    assert monitor.summary()["batches"] == 2
    torch.testing.assert_close(weights(model), there, rtol=0, atol=0)


def test_a_step_holds_one_extra_copy_of_the_weights():
    """Counted at the second backward, where a step is at its largest."""
    model = nn.Linear(300, 300, bias=False)
    optimizer = SAM(SGD(model.parameters(), lr=0.1), 0.2)
    counts = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 300)).square().mean()
        loss.backward()
        gc.collect()
        tensors = [o for o in gc.get_objects() if isinstance(o, torch.Tensor)]
        own = {t.untyped_storage().data_ptr() for t in tensors if t.shape == model.weight.shape}
        counts.append(len(own))
        return loss

    optimizer.step(closure)
    assert counts == [2, 3], "weights and gradient; and the weights before the climb"
