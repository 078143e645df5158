"""Stacking changes nothing: not against single runs, a plain loop, a diverging neighbour, a seat."""

import copy
import dataclasses
import functools
import gc
import math
import warnings
import weakref
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
from helpers.plain_loop import plain_loop

from softadlib._validation import UserError
from softadlib.data.splits import PARTS, Splits, synthetic_splits
from softadlib.methods import METHODS
from softadlib.models import build, linear
from softadlib.results.schema import MEASURES
from softadlib.training.device import pick_device
from softadlib.training.engines import factory
from softadlib.training.engines import vmap as vmap_module
from softadlib.training.engines.base import RunBatch, TrainConfig, batches
from softadlib.training.engines.cuda_graph import GraphedStep
from softadlib.training.engines.mlp_cpu import MLPEngine
from softadlib.training.engines.streams import StreamEngine
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.evaluation import as_rows
from softadlib.workbook.bench.reference import final_measures
from softadlib.workbook.check_device import check_device

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
    epochs = 10 if method == "flooding" else 3  # of 5 steps; few losses cross Flooding's θ sooner
    many, short = stack(method), dataclasses.replace(recipe, epochs=epochs)
    measured = many.train(short, SEEDS, {0, epochs})
    for run in range(8):
        one = stack(method, [run])
        alone = one.train(short, SEEDS, {0, epochs})
        assert_near(state(many, run), state(one, 0))
        for epoch in (0, epochs):
            assert_near(row(measured[epoch], run), row(alone[epoch], 0))
    ends = measured[epochs]["model_norm"]
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
        end = plain_loop(method, net, parts, orders, recipe.batch_size, make, knobs[run], **own)
        assert not torch.equal(before["0.weight"], net.state_dict()["0.weight"])
        assert_near(state(made, run), net.state_dict())
        assert_near(row(measured, run), end)


@pytest.mark.parametrize("recipe", [ADAM, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("method", METHODS)
def test_is_the_plain_loop(method, recipe):
    knobs = {"theta": [0.1, 0.4, 0.8], "radius": [0.05, 0.5, 0.1], None: [math.nan] * 3}
    short = dataclasses.replace(recipe, epochs=4)  # 20 steps
    assert_is_plain(method, short, knobs.get(METHODS[method].knob, [0.05, 0.6, 0.3]), (0, 1, 0))


@pytest.mark.parametrize("method", ["sam", "asam", "gnp", "fdgr"])
def test_is_the_plain_loop_with_statistics_of_the_first_pass(method):
    # FD-GR divides a difference of gradients by its step, and the rounding of both with it
    settings = {"step_size": 0.1} if method == "fdgr" else {}
    assert_is_plain(method, SGD, [0.05, 0.5], (0, 1), bn_update="first", **settings)


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
    recipe = TrainConfig("adam", 1e-3, 50, 5)  # 10 steps

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
    start = final_measures(networks([1])[0], {p: splits().part(p, 1) for p in PARTS})
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


# Memory


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("engine", [VmapEngine, StreamEngine, MLPEngine])
def test_a_dropped_engine_is_freed_without_the_garbage_collector(engine, runs):
    """D1: on a GPU nothing collects cycles before the memory is needed."""
    if engine is MLPEngine and runs > 1:
        pytest.skip("trains a single run")
    nets = networks(TRIALS[:runs])
    batch = RunBatch(METHODS["sam"], nets, splits(), TRIALS[:runs], (0.1,) * runs, SETTINGS)
    made = engine(batch)
    made.train(TrainConfig("adam", 1e-2, 10, 2), SEEDS, {0, 2})
    weights = weakref.ref(made.state(0)[0]["0.weight"]._base)
    assert weights() is not None
    gc.collect()
    gc.disable()
    try:
        del made
        assert weights() is None
    finally:
        gc.enable()


def test_a_step_that_runs_without_a_graph_keeps_no_engine_alive(monkeypatch):
    """D1, after a refused capture."""

    def refuse(step):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(GraphedStep, "capture", staticmethod(refuse))
    made = stack("softad")
    optimizer = SGD.build(list(made.params.values()))
    step = GraphedStep(functools.partial(made.step, optimizer), [], optimizer)
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        step(torch.arange(10).expand(2, -1))
    engine = weakref.ref(made)
    gc.collect()
    gc.disable()
    try:
        del made, step
        assert engine() is None
    finally:
        gc.enable()


def test_the_footprint_of_a_network_is_found_once(monkeypatch):
    """D6: it costs a forward pass."""
    made, calls = stack("softad"), []
    monkeypatch.setattr(vmap_module, "activations", lambda *args: calls.append(args) or 100)
    for _ in range(3):
        made.evaluate_batched([0, 1])
    assert len(calls) == 1


# Precision, settings, layout


@pytest.mark.parametrize("method", ["softad", "sam"])
def test_stacks_in_bf16_train_near_float32(method):
    """D4: batch norm takes no bfloat16 beside float32 statistics under vmap."""
    data, recipe = splits(torch.float32), TrainConfig("sgd", 0.05, 10, 5, momentum=0.9)
    ends = []
    for bf16 in (False, True):
        nets = networks((0, 1, 1), torch.float32)
        batch = RunBatch(
            METHODS[method], nets, data, (0, 1, 1), (0.1, 0.2, 0.3), SETTINGS, bf16=bf16
        )
        ends.append(VmapEngine(batch).train(recipe, SEEDS, {5})[5]["loss_train"])
    difference = np.abs(ends[0] - ends[1])
    assert (difference > 0).all(), "another precision"
    assert (difference < 0.05).all()


def test_every_stream_has_its_own_value_of_a_setting():
    """D11: a tensor (R,) of settings holds one value per run."""
    settings = {"sigma": torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64), "scale": "code"}
    batch = RunBatch(
        METHODS["softad"], networks((0, 0, 0)), splits(), (0, 0, 0), (0.2,) * 3, settings
    )
    stacked, streams = VmapEngine(batch), StreamEngine(batch)
    for made in (stacked, streams):
        made.train(SGD, SEEDS, ())
    for run in range(3):
        assert_near(streams.state(run)[0], stacked.state(run)[0])


def test_channels_last_is_another_layout_of_the_same_numbers(monkeypatch):
    """D5: weights lie as (out, H, W, in), and so do gradients and the optimizer's state."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 4, 1), torch.nn.Flatten(), torch.nn.Linear(36, 2),
    ).double()  # fmt: skip
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(40, 3, 5, 5, generator=draw, dtype=torch.float64)
    index = torch.arange(40)[None]
    data = Splits(x, torch.arange(40) % 2, index[:, :20], index[:, 20:30], index[:, 30:], 2)
    data, ends = data.to("cpu", torch.float64), []
    for channels_last in (False, True):
        monkeypatch.setattr(
            vmap_module, "prefers_channels_last", lambda *args, on=channels_last: on
        )
        made = VmapEngine(RunBatch(METHODS["sam"], [network], data, [0], [0.1], SETTINGS))
        ends.append((made, made.train(TrainConfig("adam", 1e-2, 8, 3), [1], {0, 3})))
        weight = made.state(0)[0]["0.weight"]
        assert weight.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert_near(ends[0][0].state(0)[0], ends[1][0].state(0)[0])
    for epoch in (0, 3):
        assert_near(ends[0][1][epoch], ends[1][1][epoch])


def test_a_single_run_is_measured_without_vmap(monkeypatch):
    """D12, D13: by its ordinary kernels; several are measured with batch norm folded."""
    made, one = stack("softad"), stack("softad", [0])
    for engine in (made, one):
        engine.device = torch.device("cuda")
    expected = stack("softad").measure([0, 3])

    def refuse(*args, **kwargs):
        raise AssertionError("not needed")

    monkeypatch.setattr(one, "evaluate_batched", refuse)
    assert one.measures([0])["loss_val"].shape == (1,)
    made.device, evaluate_sequential = torch.device("cuda"), refuse
    monkeypatch.setattr(made, "evaluate_sequential", evaluate_sequential)
    monkeypatch.setattr(made, "_call", refuse)  # only folded layers
    monkeypatch.setattr(torch, "as_tensor", functools.partial(_on_cpu, torch.as_tensor))
    got = as_rows(made.measures([0, 3]))
    for name in MEASURES:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-12)


def _on_cpu(as_tensor, values, device=None, **more):
    return as_tensor(values, **more)


def test_streams_are_measured_with_one_transfer(monkeypatch):
    """D12."""
    nets = networks((0, 1, 0))
    made = StreamEngine(RunBatch(METHODS["erm"], nets, splits(), (0, 1, 0), [math.nan] * 3))
    calls = []
    monkeypatch.setattr(
        "softadlib.training.engines.streams.as_rows",
        lambda measures: (
            calls.append({k: v.shape for k, v in measures.items()}) or as_rows(measures)
        ),
    )
    made.measure([2, 0])
    assert calls == [dict.fromkeys(MEASURES, torch.Size([2]))]


def test_what_streams_share_is_made_before_they_fork():
    """Else one stream would compute the range of uint8 inputs, and the others read it too early."""
    index = torch.arange(40)[None]
    x = torch.randint(0, 256, (40, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator())
    data = Splits(x, torch.arange(40) % 2, index[:, :20], index[:, 20:30], index[:, 30:], 2)
    data = data.to("cpu", torch.float64)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2)
    )
    batch = RunBatch(METHODS["erm"], [network.double()] * 2, data, [0, 0], [math.nan] * 2)
    assert "ranges" not in vars(data)
    StreamEngine(batch)
    assert "ranges" in vars(data)


# Which engine


def test_the_engine_is_chosen_by_the_network_and_the_device():
    """D14: by one rule, not by a timing."""
    perceptron, linear_model = SMALL((2,), 2), torch.nn.Linear(2, 2)
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    convolutional = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), torch.nn.Flatten())
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    chosen = {
        (net, device.type): factory.engine_class(net, device).__name__
        for net in (perceptron, linear_model, other, convolutional)
        for device in (cpu, cuda)
    }
    assert [chosen[net, "cpu"] for net in (perceptron, linear_model)] == ["MLPEngine"] * 2
    assert [chosen[net, "cpu"] for net in (other, convolutional)] == ["VmapEngine"] * 2
    assert [chosen[net, "cuda"] for net in (perceptron, linear_model, other)] == ["VmapEngine"] * 3
    assert chosen[convolutional, "cuda"] == "StreamEngine"
    assert factory.engine_class(perceptron, cpu, bf16=True) is VmapEngine


def test_an_engine_is_added_by_a_class_and_a_place_in_the_list(monkeypatch):
    """A toy: it never steps, and takes networks that are a single linear layer."""

    class LazyEngine(VmapEngine):
        @classmethod
        def supports(cls, network, device, bf16=False):
            return type(network) is torch.nn.Linear

        def begin(self, config):
            self.optimizer = config.build(list(self.params.values()))
            return lambda order: None

    monkeypatch.setattr(factory, "ENGINES", [LazyEngine, *factory.ENGINES])
    network = build("linear", (2,), 2, 1).double()
    made = factory.make_engine(RunBatch(METHODS["erm"], [network], splits(), [0], [math.nan]))
    assert type(made) is LazyEngine
    measured = made.train(SGD, SEEDS, {0, 10})
    assert row(measured[0], 0) == row(measured[10], 0)
    batch = RunBatch(METHODS["erm"], networks((0,)), splits(), [0], [math.nan])
    assert type(factory.make_engine(batch)) is MLPEngine


def test_batches_whose_parts_disagree_are_refused():
    nets = networks((0, 1))
    with pytest.raises(ValueError, match="must be as many"):
        RunBatch(METHODS["erm"], nets, splits(), (0, 1), [math.nan])
    with pytest.raises(ValueError, match="adaflood needs aux of every training sample"):
        RunBatch(METHODS["adaflood"], nets, splits(), (0, 1), [0.1, 0.2])


def test_devices_by_name(monkeypatch):
    for backend in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(backend, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(
        UserError, match="device 'cuda' is not available here; choose from auto, cpu"
    ):
        pick_device("cuda")


def test_apples_gpu_is_taken_by_name_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pick_device("auto") == torch.device("cpu")
    assert pick_device("mps") == torch.device("mps")
    with pytest.raises(UserError, match="MPS has no float64"):
        check_device(torch.device("mps"), 300)
