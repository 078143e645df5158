"""Gradients written by hand are those of autograd, in any layout and for any chain of layers."""

import pytest
import torch
from helpers.engines import make_engines
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from softadlib import functional as F
from softadlib.methods import METHODS
from softadlib.models import mlp
from softadlib.trainer.engines.layers import backward, forward, fuse_batchnorm, parse_perceptron
from softadlib.trainer.engines.single_perceptron import PerceptronEngine, logit_gradient
from softadlib.trainer.evaluator import count_activations

NETWORKS = {
    "mlp": lambda: mlp((2,), 2, width=16, depth=2),
    "linear": lambda: nn.Linear(2, 3),
    "images": lambda: mlp((3, 4, 5), 4, width=20, depth=1),
    "bare": lambda: nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2, bias=False)),
    "biased": lambda: nn.Sequential(
        nn.Linear(2, 6), nn.BatchNorm1d(6, eps=1e-3, momentum=0.3), nn.Linear(6, 2)
    ),
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
    x, layers = sample(name), parse_perceptron(network)
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


@pytest.mark.parametrize("name", NETWORKS)
def test_folding_batch_norm_changes_nothing(name):
    network = NETWORKS[name]().double()
    for _ in range(5):
        network.train()(2 + 3 * sample(name))  # statistics away from 0 and 1
    x = sample(name)
    expected = network.eval()(x)
    got = fuse_batchnorm(parse_perceptron(network), *parts(network))(x)
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
    assert parse_perceptron(network) is None


def test_a_relu_used_twice_is_two_layers_and_shared_weights_are_no_chain():
    relu, layer = nn.ReLU(), nn.Linear(2, 2)
    kinds = [
        layer.kind for layer in parse_perceptron(nn.Sequential(layer, relu, nn.Linear(2, 2), relu))
    ]
    assert kinds == ["linear", "relu", "linear", "relu"]
    assert parse_perceptron(nn.Sequential(layer, nn.ReLU(), layer)) is None
    tied = nn.Linear(2, 2)
    tied.weight = layer.weight
    assert parse_perceptron(nn.Sequential(layer, nn.ReLU(), tied)) is None
    norm = nn.BatchNorm1d(2)
    norm.bias = None
    assert parse_perceptron(nn.Sequential(nn.Linear(2, 2), norm)) is None


@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=12).filter(lambda v: len(v) % 2 == 0),
    st.floats(0, 0.9),
    st.sampled_from([0.25, 1.0, 3.0]),
    st.sampled_from(F.SCALES),
    st.sampled_from(["erm", "flooding", "iflood", "softad", "smoothing"]),
)
def test_gradients_in_the_logits_are_autograds(values, knob, sigma, scale, name):
    """Every objective written out by hand, against autograd through torch's own cross-entropy."""
    method, logits = METHODS[name], torch.tensor(values, dtype=torch.float64).reshape(-1, 2)
    y = torch.arange(len(logits)) % 2
    more = {"sigma": sigma, "scale": scale} if name == "softad" else {}
    leaf, knob = logits.clone().requires_grad_(), torch.tensor(knob, dtype=torch.float64)
    smoothing = knob.item() if name == "smoothing" else 0.0
    losses = nn.functional.cross_entropy(leaf, y, reduction="none", label_smoothing=smoothing)
    method.objective(losses, knob, **more).backward()
    got = logit_gradient(method, logits, y, knob, **more)
    torch.testing.assert_close(got, leaf.grad, rtol=1e-12, atol=1e-15)


def test_other_networks_are_refused():
    other = lambda shape, classes: nn.Sequential(nn.Linear(2, 2), nn.Dropout())  # noqa: E731
    with pytest.raises(ValueError, match="use AutogradEngine"):
        make_engines("perceptron", "erm", (0,), model=other)
    cpu = torch.device("cpu")
    assert PerceptronEngine.supports(NETWORKS["mlp"](), cpu)
    assert not PerceptronEngine.supports(NETWORKS["mlp"](), cpu, bf16=True)
    assert not PerceptronEngine.supports(NETWORKS["mlp"](), torch.device("cuda"))
    assert not PerceptronEngine.supports(other(None, None), cpu)


def test_activations_of_a_network_by_hand():
    """2 → 16 → 16 → 2: each layer puts out its width."""
    assert count_activations(NETWORKS["mlp"](), (2,)) == 3 * 16 + 3 * 16 + 2
