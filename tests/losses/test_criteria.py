"""The criteria as drop-ins for `nn.CrossEntropyLoss`: settings, θ in the state, levels of AdaFlood."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from softadlib.losses import AdaFlood, Flooding, Focal, IFlood, SoftAD

LOGITS = torch.tensor([[0.2, -1.0, 0.5], [2.0, 0.1, -0.3], [-0.4, 0.0, 0.4], [1.0, 1.0, 1.0]])
TARGETS = torch.tensor([0, 0, 1, 2])


def cross_entropies():
    z = LOGITS.double().numpy()
    return np.log(np.exp(z).sum(1)) - z[np.arange(4), TARGETS.numpy()]


def test_softad_options_reach_the_formula():
    heights = np.sqrt(1 + ((cross_entropies() - 0.4) / 0.5) ** 2) - 1
    spread = 0.5**2 * heights.mean()
    assert SoftAD(0.4, 0.5, 0.0)(LOGITS, TARGETS).item() == pytest.approx(spread, rel=1e-5)
    text = SoftAD(0.4, 0.5, 0.0, scale="text")(LOGITS, TARGETS)
    assert text.item() == pytest.approx(2 * spread, rel=1e-5)
    assert "theta=0.1, sigma=2, eta=1, scale='text'" in repr(SoftAD(0.1, 2.0, scale="text"))


# The state


@pytest.mark.parametrize("make", [Flooding, IFlood, SoftAD])
def test_theta_is_in_the_state_of_a_model(make):
    model = nn.ModuleDict({"loss": make(0.3)})
    other = nn.ModuleDict({"loss": make(0.1)})
    state = io.BytesIO()
    torch.save(model.state_dict(), state)
    state.seek(0)
    other.load_state_dict(torch.load(state))
    assert other["loss"].theta == 0.3


def test_a_checkpoint_of_a_network_with_plain_cross_entropy_is_loaded():
    """The criterion keeps its θ, and whatever else is missing is still named."""
    earlier = nn.ModuleDict({"layer": nn.Linear(2, 2), "loss": nn.CrossEntropyLoss()})
    model = nn.ModuleDict({"layer": nn.Linear(2, 2), "loss": SoftAD(0.1)})
    model.load_state_dict(earlier.state_dict())
    assert model["loss"].theta == 0.1
    assert torch.equal(model["layer"].weight, earlier["layer"].weight)
    with pytest.raises(RuntimeError, match=r"layer\.weight"):
        model.load_state_dict({"layer.bias": torch.zeros(2)})


def test_a_state_holds_theta_and_class_weights_and_no_setting():
    base = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    criterion = SoftAD(0.1, sigma=2.0, base=base)
    assert set(criterion.state_dict()) == {"_extra_state", "base.class_weights"}
    assert not Focal(3.0).state_dict()
    other = SoftAD(0.2, sigma=2.0, base=nn.CrossEntropyLoss(weight=torch.ones(3)))
    other.load_state_dict(criterion.state_dict())
    assert other(LOGITS, TARGETS) == criterion(LOGITS, TARGETS)
    plain = SoftAD(0.2, sigma=5.0)
    plain.load_state_dict(SoftAD(0.1, sigma=2.0).state_dict())
    assert (plain.theta, plain.sigma) == (0.1, 5.0)


# AdaFlood, by the samples' indices

LEVELS = torch.tensor([0.1, 2.0, 0.3, 0.9])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 2, 0, 1]])
@pytest.mark.parametrize("reversed_view", [False, True])
def test_adaflood_is_the_formula_with_levels_by_index(order, reversed_view):
    levels = LEVELS.numpy()[::-1].copy()[::-1] if reversed_view else LEVELS
    values = cross_entropies()[order]
    theta = LEVELS.numpy()[order]
    result = AdaFlood(levels)(LOGITS[order], TARGETS[order], torch.tensor(order))
    assert result.item() == pytest.approx(np.mean(np.abs(values - theta) + theta), rel=1e-6)


def test_a_level_for_each_class_is_adaflood_by_the_classes():
    levels = [0.1, 1.0, 0.3]
    expected = np.mean([abs(v - levels[y]) + levels[y] for v, y in zip(cross_entropies(), TARGETS)])
    found = AdaFlood(levels)(LOGITS, TARGETS, TARGETS)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_hooks_of_adaflood_see_flat_losses_as_those_of_other_criteria():
    criterion, seen = AdaFlood(LEVELS), []
    criterion.register_losses_hook(lambda *tensors: seen.extend(tensors))
    logits = torch.randn(1, 3, 2, 2, requires_grad=True)
    criterion(logits, torch.zeros(1, 2, 2).long(), torch.arange(4).view(1, 2, 2))
    criterion(logits[:0], torch.zeros(0, 2, 2).long(), torch.zeros(0, 2, 2).long())
    assert [None if t is None else t.shape for t in seen] == [(4,), None, (4,)]


def test_adaflood_saves_a_copy_of_its_levels_and_keeps_the_precision_of_the_logits():
    criterion = AdaFlood(LEVELS)
    assert criterion.theta is not LEVELS
    assert list(criterion.state_dict()) == ["theta"]
    assert criterion(LOGITS.half(), TARGETS, torch.arange(4)).dtype == torch.float32
    assert criterion(LOGITS.double(), TARGETS, torch.arange(4)).dtype == torch.float64


def test_levels_keep_their_digits_beside_losses_of_half_precision():
    """Losses of 0 below a level of 0.3 have the value 0.6, and 0.3008 is the bfloat16 next to 0.3."""
    criterion = AdaFlood([0.3, 0.3], base=lambda x, y: (0 * x).bfloat16())
    value = criterion(torch.zeros(2), torch.zeros(2), torch.tensor([0, 1]))
    assert value.item() == pytest.approx(0.6, rel=1e-6)


def test_adafloods_values_per_sample_are_the_formula():
    index = torch.tensor([3, 0, 1, 2])
    values, theta = cross_entropies(), LEVELS.numpy()[index]
    found = AdaFlood(LEVELS).per_sample(LOGITS, TARGETS, index)
    np.testing.assert_allclose(found, np.abs(values - theta) + theta, rtol=1e-6)


def test_a_network_without_the_criterion_loads_the_state_of_one_with_it():
    """By `strict=False`, as the docstring of `Criterion` says; strictly torch names the key."""
    held = nn.ModuleDict({"layer": nn.Linear(2, 2), "loss": SoftAD(0.1)})
    plain = nn.ModuleDict({"layer": nn.Linear(2, 2)})
    plain.load_state_dict(held.state_dict(), strict=False)
    assert torch.equal(plain["layer"].weight, held["layer"].weight)
    with pytest.raises(RuntimeError, match=r"loss\._extra_state"):
        plain.load_state_dict(held.state_dict())
