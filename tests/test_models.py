"""The networks: sizes and initial norms of the paper's, and weights that a seed decides."""

import math

import pytest
import torch
from torch import nn

from softadlib._validation import UserError
from softadlib.models import MODELS, build, linear, mlp
from softadlib.workbook.studies.seeds import trial_seeds


def norm(model):
    return nn.utils.parameters_to_vector(model.parameters()).norm().item()


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_mlp4x500_has_the_papers_size_and_norm():
    # 2·500 + 3·500² weights without bias, γ and β of four norms, a last layer with bias
    assert 2 * 500 + 3 * 500**2 + 4 * 2 * 500 + 500 * 2 + 2 == 756_002
    for seed in trial_seeds(3):
        model = build("mlp4x500", (2,), 2, seed)
        assert count(model) == 756_002
        # U(±1/√in) has variance 1/(3·in): 51.65, and each seed within a standard deviation or two
        squares = 2000 + 1000 / (3 * 2) + 3 * 500**2 / (3 * 500) + 1002 / (3 * 500)
        assert norm(model) == pytest.approx(squares**0.5, abs=0.15)
        assert norm(model) == pytest.approx(51.6, abs=0.1)


def test_mlp1x1000_has_the_papers_size_and_norm():
    model = build("mlp1x1000", (784,), 10, trial_seeds(1)[0])
    assert count(model) == 784 * 1000 + 2 * 1000 + 1000 * 10 + 10
    assert norm(model) == pytest.approx(36.57, abs=0.1)


def test_mlp_layers():
    kinds = [type(layer) for layer in mlp((2,), 3, width=7, depth=2)]
    block = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert kinds == [*block, *block, nn.Linear]
    model = mlp((2,), 3, width=7, depth=2)
    without_bias = [layer.bias is None for layer in model if isinstance(layer, nn.Linear)]
    assert without_bias == [True, True, False]


def test_without_batch_norm_the_hidden_layers_have_biases():
    network = build("mlp4x500-no-norm", (2,), 2, 0)
    assert not any(isinstance(layer, nn.BatchNorm1d) for layer in network)
    assert count(network) == 2 * 500 + 3 * 500**2 + 4 * 500 + 500 * 2 + 2


@pytest.mark.parametrize("name", [n for n in MODELS if "resnet" not in n])
@pytest.mark.parametrize("shape", [(6,), (2, 2, 3)])
def test_every_model_maps_samples_of_any_shape_to_logits(name, shape):
    model = build(name, shape, 5, 0).eval()
    x = torch.arange(4 * math.prod(shape), dtype=torch.float32).view(4, *shape).sin()
    assert model(x).shape == (4, 5)
    flat = build(name, (math.prod(shape),), 5, 0).eval()
    torch.testing.assert_close(model(x), flat(x.flatten(1)))
    weights = zip(model.parameters(), flat.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)


def test_linear_is_affine():
    model = linear((2,), 2)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    expected = torch.stack([model.weight[:, 0], model.weight[:, 1], torch.zeros(2)]) + model.bias
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("name", ["linear", "mlp4x500", "mlp1x1000"])
def test_build_is_manual_seed_then_construction(name):
    torch.manual_seed(961412)
    expected = MODELS[name]((2,), 2).state_dict()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    built = build(name, (2,), 2, 961412).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert list(built) == list(expected)
    assert all(torch.equal(built[key], expected[key]) for key in expected)
    other = build(name, (2,), 2, 961413).state_dict()
    assert not all(torch.equal(built[key], other[key]) for key in built)


def test_a_network_with_a_frozen_parameter_is_refused(monkeypatch):
    def frozen(shape, classes):
        return nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, classes))

    monkeypatch.setitem(MODELS, "frozen", frozen)
    with pytest.raises(UserError, match=r"model 'frozen': 0.weight has requires_grad=False"):
        build("frozen", (2,), 2, 0)


def test_dropout_is_refused_unless_it_drops_nothing(monkeypatch):
    for p in (0.0, 0.5):
        made = nn.Sequential(nn.Dropout(p), nn.Linear(2, 2))
        monkeypatch.setitem(MODELS, "dropping", lambda shape, classes, made=made: made)
        if not p:
            assert build("dropping", (2,), 2, 0) is made
    with pytest.raises(UserError, match=r"model 'dropping' draws random numbers .* as dropout"):
        build("dropping", (2,), 2, 0)


def test_unknown_model_is_refused_with_the_choices():
    with pytest.raises(UserError, match="model 'resnet' unknown; choose from linear, mlp4x500"):
        build("resnet", (2,), 2, 0)
