"""Stacking changes nothing: not against single runs, a plain loop, a diverging neighbour, a seat."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from helpers.engines import (
    ADAM,
    KNOBS,
    SEEDS,
    SETTINGS,
    SGD,
    SMALL,
    TRIALS,
    assert_near,
    identical,
    networks,
    row,
    samples,
    splits,
    stack,
    state,
)

from softadlib._validation import UserError
from softadlib.data.splits import PARTS, synthetic_splits
from softadlib.methods import METHODS
from softadlib.models import build, linear
from softadlib.results.schema import MEASURES
from softadlib.training.device import pick_device
from softadlib.training.engines.base import RunBatch, TrainConfig, batches
from softadlib.training.engines.vmap import VmapEngine
from softadlib.workbook.bench import reference as oracle

PLAIN = {
    "adam": lambda r: partial(torch.optim.Adam, lr=r.lr, weight_decay=r.weight_decay),
    "sgd": lambda r: partial(
        torch.optim.SGD, lr=r.lr, momentum=r.momentum, weight_decay=r.weight_decay
    ),
}


# Against stacks of one


@pytest.mark.parametrize("recipe", [ADAM, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("method", METHODS)
def test_a_stack_of_eight_is_eight_stacks_of_one(method, recipe):
    many = stack(method)
    measured = many.train(recipe, SEEDS, {0, 10})
    for run in range(8):
        one = stack(method, [run])
        alone = one.train(recipe, SEEDS, {0, 10})
        assert_near(state(many, run), state(one, 0))
        for epoch in (0, 10):
            assert_near(row(measured[epoch], run), row(alone[epoch], 0))
    ends = measured[10]["model_norm"]
    assert len(set(ends.tolist())) == len(set(zip(TRIALS, map(str, KNOBS[METHODS[method].knob]))))


# Against the plain loop


def assert_is_plain(method, recipe, knobs, trials, model=SMALL, data=None, sigmas=None, **settings):
    """Every run of a stack is what the plain loop makes of the same order of samples."""
    data = data or splits()
    n = data.train.shape[1]
    per_run = {} if sigmas is None else {"sigma": torch.tensor(sigmas, dtype=torch.float64)}
    nets = networks(trials, model=model)
    own = {"settings": SETTINGS | settings | per_run, "samples": samples(n)}
    made = VmapEngine(RunBatch(METHODS[method], nets, data, trials, knobs, **own))
    measured = made.train(recipe, SEEDS, {recipe.epochs})[recipe.epochs]
    for run, (trial, net) in enumerate(zip(trials, networks(trials, model=model))):
        orders = [
            np.concatenate([b[trial] for b in batches(SEEDS, epoch, n, recipe.batch_size)]).tolist()
            for epoch in range(1, recipe.epochs + 1)
        ]
        parts = {part: data.part(part, trial) for part in PARTS}
        if METHODS[method].samples:
            parts["train"] += (samples(n)["aux"][trial],)
        own = settings if sigmas is None else settings | {"sigma": sigmas[run]}
        make = PLAIN[recipe.optimizer](recipe)
        before = copy.deepcopy(net.state_dict())
        end = oracle.plain_loop(
            method, net, parts, orders, recipe.batch_size, make, knobs[run], **own
        )
        assert not torch.equal(before["0.weight"], net.state_dict()["0.weight"])
        assert_near(state(made, run), net.state_dict())
        assert_near(row(measured, run), end)


@pytest.mark.parametrize("recipe", [ADAM, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("method", METHODS)
def test_is_the_plain_loop(method, recipe):
    knobs = {"theta": [0.1, 0.4, 0.8], "radius": [0.05, 0.5, 0.1], None: [math.nan] * 3}
    assert_is_plain(method, recipe, knobs.get(METHODS[method].knob, [0.05, 0.6, 0.3]), (0, 1, 0))


@pytest.mark.parametrize("method", ["sam", "asam", "gnp", "fdgr"])
def test_is_the_plain_loop_with_statistics_of_the_first_pass(method):
    assert_is_plain(method, SGD, [0.05, 0.5], (0, 1), bn_update="first")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("asam", {"variant": "davda54"}),
        ("asam", {"eta": 0.3}),
        ("gnp", {"mixing": "official", "radius": 0.3}),
        ("fdgr", {"scheme": "centered", "step_size": 0.2, "bn_update": "first"}),
    ],
)
def test_is_the_plain_loop_in_the_other_variants(method, settings):
    assert_is_plain(method, SGD, [0.05, 0.5], (0, 1), **settings)


def test_is_the_plain_loop_with_a_sigma_per_run():
    for scale in ("code", "text"):
        knobs, sigmas = [0.2, 0.2, 0.5], [0.1, 1.0, 4.0]
        assert_is_plain("softad", SGD, knobs, (0, 0, 1), sigmas=sigmas, scale=scale)


def test_is_the_plain_loop_with_weight_decay_never_turned_around():
    decayed = TrainConfig("sgd", 0.05, 11, 5, momentum=0.9, weight_decay=0.05)  # equal batches
    for method in ("flooding", "sam"):
        assert_is_plain(method, decayed, [0.6, 0.1], (0, 1))


@pytest.mark.parametrize("method", METHODS)
def test_is_the_plain_loop_for_the_linear_model(method):
    model = lambda shape, classes: torch.nn.Sequential(linear(shape, classes))  # noqa: E731
    assert_is_plain(method, SGD, [0.3, 0.1], (0, 1), model, splits(name="sinusoid"))


@pytest.mark.parametrize(
    ("method", "loss"), [("erm", 0.15544981), ("flooding", 0.25065106), ("softad", 0.36922014)]
)
def test_linear_demonstration_ends_at_the_published_losses(method, loss):
    """The authors' stored train losses: Gaussian, θ = 0.25, 200 full-batch steps of SGD at 0.1."""
    seed = 22993514079364
    data = synthetic_splits("gaussian", [seed], 0.0, (100, 2, 2))
    network = build("linear", (2,), 2, seed)
    made = VmapEngine(RunBatch(METHODS[method], [network], data, [0], [0.25], SETTINGS))
    measured = made.train(TrainConfig("sgd", 0.1, 100, 200), [seed], {200})
    assert measured[200]["loss_train"][0] == pytest.approx(loss, abs=1e-6)


# Divergence


@pytest.mark.parametrize("method", METHODS)
def test_a_network_that_starts_as_nan_disturbs_no_other(method):
    healthy, sick = stack(method, dtype=torch.float32), stack(method, dtype=torch.float32)
    sick.params["0.weight"][3] = math.nan
    assert_only_run_3_is_lost(healthy, sick)


def test_a_radius_that_overflows_disturbs_no_other():
    radii = list(KNOBS["radius"])
    healthy = stack("sam", dtype=torch.float32, knobs=radii)
    sick = stack("sam", dtype=torch.float32, knobs=[*radii[:3], 1e30, *radii[4:]])
    assert_only_run_3_is_lost(healthy, sick)


def assert_only_run_3_is_lost(healthy, sick):
    good, bad = (made.train(SGD, SEEDS, {10})[10] for made in (healthy, sick))
    for run in set(range(8)) - {3}:
        assert identical(state(healthy, run), state(sick, run))
        assert row(good, run) == row(bad, run)
    assert all(math.isfinite(v) for v in row(good, 3).values())
    for part in PARTS:
        assert not math.isfinite(bad[f"loss_{part}"][3])
        assert math.isnan(bad[f"acc_{part}"][3])
    assert not math.isfinite(bad["model_norm"][3])


# Seats


def test_float32_runs_are_bit_identical_in_any_seat_of_8_16_and_24():
    data = synthetic_splits("gaussian", SEEDS, 0.0, (100, 2, 2))
    nets = [build("mlp4x500", (2,), 2, seed) for seed in SEEDS]
    runs = [(trial, 0.02 * (1 + i)) for i in range(12) for trial in (0, 1)]
    recipe = TrainConfig("adam", 1e-3, 50, 20)  # 40 steps

    def ends(chosen):
        trials, knobs = zip(*(runs[i] for i in chosen))
        own = [nets[t] for t in trials]
        made = VmapEngine(RunBatch(METHODS["softad"], own, data, trials, knobs, SETTINGS))
        made.train(recipe, SEEDS, ())
        return {i: state(made, seat) for seat, i in enumerate(chosen)}

    whole = ends(range(24))
    for seats in (range(23, 7, -1), (5, 17, 0, 23, 12, 8, 3, 9)):
        for i, end in ends(seats).items():
            assert identical(end, whole[i]), i


# The loop's own promises


def test_batches_are_fresh_permutations_by_seed_and_epoch_alone():
    one, two = (np.hstack(list(batches(SEEDS, epoch, 44, 10))) for epoch in (1, 2))
    assert [b.shape for b in batches(SEEDS, 1, 44, 10)] == [(2, 10)] * 4 + [(2, 4)]
    for order in (*one, *two):
        assert sorted(order) == list(range(44))
    assert len({tuple(order) for order in (*one, *two)}) == 4
    assert np.array_equal(one, np.hstack(list(batches(SEEDS, 1, 44, 10))))
    assert np.array_equal(one[1], np.hstack(list(batches(SEEDS[1:], 1, 44, 10)))[0])
    assert np.array_equal(one, np.hstack(list(batches(SEEDS, 1, 44, 7))))


def test_epoch_0_is_before_any_step_and_measuring_changes_nothing():
    every, last = stack("softad"), stack("softad")
    seen = []
    measured = every.train(SGD, SEEDS, range(11), progress=seen.append)
    final = last.train(SGD, SEEDS, {10}, keep=range(3))
    assert seen == [8] * 10
    assert list(measured) == list(range(11))
    start = oracle.final_measures(networks([1])[0], {p: splits().part(p, 1) for p in PARTS})
    assert_near(row(measured[0], 1), start)
    for name in MEASURES:
        assert final[10][name].shape == (3,)
        assert np.array_equal(final[10][name], measured[10][name][:3])


def test_networks_given_are_left_as_they_were():
    nets = networks(TRIALS)
    before = [copy.deepcopy(net.state_dict()) for net in nets]
    batch = RunBatch(METHODS["erm"], nets, splits(), TRIALS, KNOBS[None])
    VmapEngine(batch).train(SGD, SEEDS, ())
    for net, old in zip(nets, before):
        assert identical(net.state_dict(), old)
        assert net.training


def test_devices_by_name(monkeypatch):
    for backend in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(backend, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(
        UserError, match="device 'cuda' is not available here; choose from auto, cpu"
    ):
        pick_device("cuda")
