"""Gradients written by hand are those of autograd, of the stack and of the plain loop."""

import copy
import dataclasses
import math
import platform

import numpy as np
import pytest
import torch
from helpers.engines import (
    ADAM,
    KNOBS,
    SEEDS,
    SETTINGS,
    SGD,
    assert_near,
    row,
    samples,
    splits,
    state,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from softadlib import functional as F
from softadlib.methods import METHODS
from softadlib.models import build, mlp
from softadlib.results.schema import MEASURES
from softadlib.training.device import processor_name
from softadlib.training.engines import mlp_layers
from softadlib.training.engines.base import RunBatch
from softadlib.training.engines.mlp_cpu import MLPEngine, logit_gradient, partial_step
from softadlib.training.engines.mlp_layers import (
    backward,
    forward,
    fuse_batchnorm,
    linear,
    parse_mlp,
    weight_gradient,
)
from softadlib.training.engines.streams import StreamEngine
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.evaluation import as_rows
from softadlib.training.memory import activations, forward_flops

NETWORKS = {
    "mlp": lambda: mlp((2,), 2, width=16, depth=2),
    "deep": lambda: mlp((2,), 2, width=16, depth=3),
    "linear": lambda: nn.Linear(2, 3),
    "images": lambda: mlp((3, 4, 5), 4, width=20, depth=1),
    "bare": lambda: nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2, bias=False)),
    "biased": lambda: nn.Sequential(
        nn.Linear(2, 6), nn.BatchNorm1d(6, eps=1e-3, momentum=0.3), nn.Linear(6, 2)
    ),
    "large": lambda: nn.Sequential(nn.Linear(2, 8192, bias=False), nn.Linear(8192, 2, bias=False)),
    "nested": lambda: nn.Sequential(
        nn.Flatten(), nn.Sequential(nn.Linear(2, 6), nn.ReLU()), nn.Sequential(nn.Linear(6, 2))
    ),
}


def parts(network):
    """Its parameters and buffers, cut loose."""
    return (
        {k: v.detach().clone() for k, v in network.named_parameters()},
        {k: v.detach().clone() for k, v in network.named_buffers()},
    )


def sample(name, n=7):
    shape = (3, 4, 5) if name == "images" else (2,)
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_running_statistics_are_autograds(name):
    torch.manual_seed(5)
    network = NETWORKS[name]().double()
    params, buffers = parts(network)
    x, layers = sample(name), parse_mlp(network)
    logits, tape = forward(layers, params, buffers, x, track=True)
    weights = torch.randn(logits.shape, dtype=torch.float64)
    expected = network.train()(x)
    (expected * weights).sum().backward()
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    grads = backward(layers, params, tape, weights)
    assert set(grads) == set(params)
    for key, p in network.named_parameters():
        torch.testing.assert_close(grads[key], p.grad, rtol=1e-10, atol=1e-12)
    for key, b in network.named_buffers():
        torch.testing.assert_close(buffers[key], b, rtol=1e-12, atol=0)


def test_a_pass_that_does_not_track_leaves_the_statistics():
    network = NETWORKS["mlp"]().double()
    params, buffers = parts(network)
    forward(parse_mlp(network), params, buffers, sample("mlp"), track=False)
    for key, b in network.named_buffers():
        assert torch.equal(buffers[key], b)


@pytest.mark.parametrize("name", NETWORKS)
def test_folding_batch_norm_changes_nothing(name):
    network = NETWORKS[name]().double()
    for _ in range(5):
        network.train()(2 + 3 * sample(name))  # statistics away from 0 and 1
    x = sample(name)
    expected = network.eval()(x)
    got = fuse_batchnorm(parse_mlp(network), *parts(network))(x)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2)),
        nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.BatchNorm1d(2), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)),
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)),
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(3, 2)),
        nn.Sequential(nn.Flatten(2), nn.Linear(2, 2)),
        nn.Sequential(nn.ReLU()),
    ],
    ids=str,
)
def test_anything_else_is_no_chain_and_is_trained_by_autograd(network):
    assert parse_mlp(network) is None


def test_a_relu_used_twice_is_two_layers_and_shared_weights_are_no_chain():
    relu, layer = nn.ReLU(), nn.Linear(2, 2)
    kinds = [layer.kind for layer in parse_mlp(nn.Sequential(layer, relu, nn.Linear(2, 2), relu))]
    assert kinds == ["linear", "relu", "linear", "relu"]
    assert parse_mlp(nn.Sequential(layer, nn.ReLU(), layer)) is None
    tied = nn.Linear(2, 2)
    tied.weight = layer.weight
    assert parse_mlp(nn.Sequential(layer, nn.ReLU(), tied)) is None
    norm = nn.BatchNorm1d(2)
    norm.bias = None
    assert parse_mlp(nn.Sequential(nn.Linear(2, 2), norm)) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.booleans(), st.integers(0, 3))
def test_float32_products_in_any_layout(n, k, m, relu, layout):
    """Small and large, transposed and strided: what the float64 product says."""
    draw = torch.Generator().manual_seed(n * 71 + k)
    x, w = torch.randn(n, 2 * k, generator=draw)[:, ::2], torch.randn(m, k, generator=draw)
    x = x.T.contiguous().T if layout & 1 else x
    w = w.T.contiguous().T if layout & 2 else w
    bias = torch.randn(m, generator=draw)
    expected = x.double() @ w.double().T + bias.double()
    expected = expected.clamp(min=0) if relu else expected
    got = linear(x, w, bias, relu).double()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=12).filter(lambda v: len(v) % 2 == 0),
    st.floats(0, 2),
    st.sampled_from([0.25, 1.0, 3.0]),
    st.sampled_from(F.SCALES),
    st.sampled_from(list(F.WEIGHTS)),
)
def test_gradients_in_the_logits_are_autograds(values, theta, sigma, scale, objective):
    """Every objective written out by hand, against autograd through torch's own cross-entropy."""
    logits = torch.tensor(values, dtype=torch.float64).reshape(-1, 2)
    y, knob = torch.arange(len(logits)) % 2, torch.tensor(theta, dtype=torch.float64)
    more = {"sigma": sigma, "scale": scale} if objective is F.softad else {}
    leaf = logits.clone().requires_grad_()
    losses = nn.functional.cross_entropy(leaf, y, reduction="none")
    objective(losses, knob, **more).backward()
    got = logit_gradient(objective, logits, y, knob, **more)
    torch.testing.assert_close(got, leaf.grad, rtol=1e-12, atol=1e-15)


def test_the_weights_by_hand():
    losses, theta = torch.tensor([0.0, 1.0, 5.0]), torch.tensor(1.0)
    got = {f.__name__: F.WEIGHTS[f](losses, theta).tolist() for f in F.WEIGHTS}
    assert got == {
        "erm": [1, 1, 1],
        "flooding": [1, 1, 1],  # their mean is 2
        "iflood": [-1, 0, 1],
        "softad": pytest.approx([-1 / math.sqrt(2), 0, 4 / math.sqrt(17)]),
    }


def test_is_the_stack_where_every_parameter_is_large_or_none_is_packed():
    assert_is_the_stack("softad", SGD, "large")


@pytest.mark.parametrize("method", ["erm", "softad", "sam", "gnp", "fdgr"])
def test_is_the_stack_where_large_weights_are_stepped_in_the_backward_pass(method, monkeypatch):
    """Weights (16, 16) count as large: two of one shape under every rule, with one buffer or more."""
    monkeypatch.setattr("softadlib.training.engines.mlp_cpu.PACKED_BELOW", 200)
    assert_is_the_stack(method, ADAM, "deep")


def test_the_processor_is_named_as_the_system_names_it(tmp_path, monkeypatch):
    listed = tmp_path / "cpuinfo"
    listed.write_text(
        "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC: 9\n\nflags\n"
    )
    monkeypatch.setattr("softadlib.training.device.Path", lambda path: listed)
    assert processor_name() == "AuthenticAMD AMD EPYC: 9"
    listed.unlink()
    assert processor_name() == platform.processor()


@pytest.mark.skipif(not mlp_layers.ON_INTEL, reason="needs an Intel processor")
@pytest.mark.parametrize("shape", [(50, 500, 500), (100, 64, 1000), (200, 784, 1000), (33, 17, 40)])
def test_gradients_of_weights_have_the_same_bits_in_given_memory(shape):
    n, k, m = shape
    x, g = torch.randn(n, k), torch.randn(n, m)
    memory = torch.full((m, k), math.nan)
    assert torch.equal(weight_gradient(g, x, memory), weight_gradient(g, x))
    assert torch.equal(memory, weight_gradient(g, x)), "written there"


@pytest.mark.parametrize("on_intel", [True, False])
def test_gradients_of_weights_are_the_product(on_intel, monkeypatch):
    monkeypatch.setattr(mlp_layers, "ON_INTEL", on_intel)
    g, x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0], [6.0]])
    assert weight_gradient(g, x, torch.empty(2, 1)).tolist() == [[23.0], [34.0]]


@pytest.mark.parametrize("recipe", [ADAM, SGD], ids=["adam", "sgd"])
def test_steps_of_some_parameters_are_those_of_the_whole_optimizer(recipe):
    """One parameter after another, in another order, after a restart too: bit for bit."""
    recipe = dataclasses.replace(recipe, weight_decay=0.01)
    torch.manual_seed(0)
    values = [torch.randn(3, 5), torch.randn(7)]
    sides = [[v.clone() for v in values] for _ in range(2)]
    whole, partial = (recipe.build(side) for side in sides)
    for round_ in range(6):
        gradients = [torch.randn_like(v) for v in values]
        for p, g in zip(sides[0], gradients):
            p.grad = g
        whole.step()
        for i in (1, 0):
            partial_step(partial)([sides[1][i]], [gradients[i]])
        if round_ == 2:
            restored = recipe.build(sides[1])
            restored.load_state_dict(copy.deepcopy(partial.state_dict()))
            partial = restored
        assert all(torch.equal(*pair) for pair in zip(*sides))
    states = [optimizer.state_dict()["state"] for optimizer in (whole, partial)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


@pytest.mark.parametrize("recipe", [ADAM, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("method", METHODS)
def test_is_the_stack(method, recipe):
    """The same runs by hand and by vmap of autograd, in float64: parameters, buffers, measures."""
    assert_is_the_stack(method, recipe, "mlp")


def assert_is_the_stack(method, recipe, network):
    knobs, settings = KNOBS[METHODS[method].knob], SETTINGS | {"sigma": 2.0}
    torch.manual_seed(1)
    nets = [NETWORKS[network]().double() for _ in range(3)]
    batch = RunBatch(
        METHODS[method], nets, splits(), (0, 1, 1), knobs[:3], settings, samples=samples()
    )
    stack = VmapEngine(batch)
    together = stack.train(recipe, SEEDS, {0, 5, 10})
    for run in range(3):
        single = MLPEngine(batch.single(run))
        alone = single.train(recipe, SEEDS, {0, 5, 10})
        assert_near(state(stack, run), state(single, 0))
        for epoch in (0, 5, 10):
            assert_near(row(together[epoch], run), row(alone[epoch], 0))


def test_takes_a_single_run_of_a_perceptron():
    nets = [NETWORKS["mlp"]().double() for _ in range(2)]
    with pytest.raises(ValueError, match="trains a single run, got 2; use VmapEngine"):
        MLPEngine(RunBatch(METHODS["erm"], nets, splits(), (0, 1), [math.nan] * 2))
    other = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2)).double()
    with pytest.raises(ValueError, match="use VmapEngine"):
        MLPEngine(RunBatch(METHODS["erm"], [other], splits(), [0], [math.nan]))


@pytest.mark.parametrize("method", ["erm", "softad", "sam", "adaflood"])
def test_lanes_are_stacks_of_one(method):
    knobs = KNOBS[METHODS[method].knob][:3]
    made = []
    for engine in (VmapEngine, StreamEngine):
        torch.manual_seed(1)
        nets = [NETWORKS["mlp"]().double() for _ in range(3)]
        batch = RunBatch(
            METHODS[method], nets, splits(), (0, 1, 0), knobs, SETTINGS, samples=samples()
        )
        made.append(engine(batch))
    ticks = []
    stack = made[0].train(SGD, SEEDS, {0, 10})
    lanes = made[1].train(SGD, SEEDS, {0, 10}, keep=[0, 1], progress=ticks.append)
    assert ticks == [3] * 10, "all are trained, two are measured"
    for name in MEASURES:
        np.testing.assert_allclose(lanes[10][name], stack[10][name][:2], rtol=1e-10)


def test_measuring_together_is_measuring_apart():
    """Batch norm is folded when perceptrons are measured together, and applied when one is alone."""
    torch.manual_seed(1)
    nets = [NETWORKS["mlp"]().double() for _ in range(4)]
    made = VmapEngine(RunBatch(METHODS["erm"], nets, splits(), (0, 1, 1, 0), [math.nan] * 4))
    made.train(SGD, SEEDS, ())
    made.params["0.weight"][2] = math.nan
    made.template.eval()
    with torch.no_grad():
        together = as_rows(made.evaluate_batched([3, 2, 1]))
        apart = as_rows(made.evaluate_sequential([3, 2, 1]))
    for name in MEASURES:
        np.testing.assert_allclose(together[name], apart[name], rtol=1e-12)
    assert math.isnan(together["acc_test"][1])
    assert not math.isnan(together["acc_test"][2])


def test_work_and_activations_of_a_network_by_hand():
    """2 → 16 → 16 → 2: multiply-adds count two, each layer puts out its width."""
    network = NETWORKS["mlp"]()
    assert forward_flops(network, (2,)) == 2 * (2 * 16 + 16 * 16 + 16 * 2)
    assert activations(network, (2,)) == 3 * 16 + 3 * 16 + 2
    assert forward_flops(NETWORKS["linear"](), (2,)) == 2 * 2 * 3
    convolution = nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.Flatten(), nn.Linear(24, 2)
    )
    assert forward_flops(convolution, (4, 5, 5)) == 2 * (6 * 2 * 2) * (2 * 3 * 3) + 2 * 24 * 2


@pytest.mark.parametrize(
    ("model", "shape"), [("mlp1x1000", (1, 28, 28)), ("resnet18", (3, 32, 32)), ("linear", (2,))]
)
def test_operations_are_those_of_torchs_counter(model, shape):
    network = build(model, shape, 10, seed=0).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, *shape, dtype=next(network.parameters()).dtype))
    assert forward_flops(network, shape) == counter.get_total_flops() > 0
