"""The criteria as drop-ins for `nn.CrossEntropyLoss`, and their warning at θ = ln 2."""

import io
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from softadlib.losses import (
    AccumulatedFlooding,
    AdaFlood,
    CalibrationWarning,
    Flooding,
    Focal,
    IFlood,
    SoftAD,
)

LN2 = 0.6931471805599453
LOGITS = torch.tensor([[0.2, -1.0, 0.5], [2.0, 0.1, -0.3], [-0.4, 0.0, 0.4], [1.0, 1.0, 1.0]])
TARGETS = torch.tensor([0, 0, 1, 2])


def cross_entropies():
    z = LOGITS.double().numpy()
    return np.log(np.exp(z).sum(1)) - z[np.arange(4), TARGETS.numpy()]


# Values


def test_softad_options_reach_the_formula():
    heights = np.sqrt(1 + ((cross_entropies() - 0.4) / 0.5) ** 2) - 1
    spread = 0.5**2 * heights.mean()
    assert SoftAD(0.4, 0.5, 0.0)(LOGITS, TARGETS).item() == pytest.approx(spread, rel=1e-5)
    text = SoftAD(0.4, 0.5, 0.0, scale="text")(LOGITS, TARGETS)
    assert text.item() == pytest.approx(2 * spread, rel=1e-5)


# The base loss


@pytest.mark.filterwarnings("ignore:.*has reduction='sum':UserWarning")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("make", [Flooding, IFlood, SoftAD])
def test_a_reducing_base_is_copied(make, reduction):
    mine = nn.MSELoss(reduction=reduction)
    criterion = make(0.3, base=mine)
    x, y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.5, 0.0, 0.0])
    reference = make(0.3, base=lambda a, b: (a - b) ** 2)
    assert criterion(x, y) == reference(x, y)
    assert mine.reduction == reduction


def test_moving_a_criterion_leaves_the_users_own_base_alone():
    mine = nn.CrossEntropyLoss(weight=torch.ones(3))
    SoftAD(0.1, base=mine).double()
    assert mine.weight.dtype == torch.float32


# Arguments

BAD = [math.nan, math.inf, "0.1", True, None, [0.1], 1j, torch.tensor(0.1, requires_grad=True)]


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Flooding, "theta"),
        (IFlood, "theta"),
        (SoftAD, "theta"),
        (lambda bad: SoftAD(0.1, bad), "sigma"),
        (lambda bad: SoftAD(0.1, eta=bad), "eta"),
        (Focal, "gamma"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_numbers_are_refused_in_one_line_with_name_and_value(make, name, bad):
    with pytest.raises(ValueError, match=f"^{name} must be ") as error:
        make(bad)
    assert repr(bad) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [0, -0.5, 1e-13])
def test_a_sigma_that_is_not_positive_is_refused(bad):
    with pytest.raises(ValueError, match=f"sigma .*at least 1e-12, got {bad}"):
        SoftAD(0.1, bad)


def test_an_unknown_scale_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="scale 'paper' unknown; choose from code, text"):
        SoftAD(0.1, scale="paper")


def test_repr_shows_the_numbers():
    assert "theta=0.1, sigma=2, eta=1, scale='text'" in repr(SoftAD(0.1, 2.0, scale="text"))
    assert "theta=0.25" in repr(Flooding(0.25))
    assert "theta=0.25" in repr(IFlood(0.25))


# AdaFlood, by the samples' indices

LEVELS = torch.tensor([0.1, 2.0, 0.3, 0.9])


def test_hooks_of_adaflood_see_flat_losses_as_those_of_other_criteria():
    criterion, seen = AdaFlood(LEVELS), []
    criterion.register_losses_hook(lambda *tensors: seen.extend(tensors))
    logits = torch.randn(1, 3, 2, 2, requires_grad=True)
    criterion(logits, torch.zeros(1, 2, 2).long(), torch.arange(4).view(1, 2, 2))
    criterion(logits[:0], torch.zeros(0, 2, 2).long(), torch.zeros(0, 2, 2).long())
    assert [None if t is None else t.shape for t in seen] == [(4,), None, (4,)]


def test_adaflood_from_the_formula():
    values = cross_entropies()
    expected = np.mean(np.abs(values - LEVELS.numpy()) + LEVELS.numpy())
    result = AdaFlood(LEVELS)(LOGITS, TARGETS, torch.arange(4))
    assert result.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 3, 0, 2], [2, 2, 0, 1]])
def test_adaflood_levels_follow_their_samples_through_shuffling(order):
    index, levels = torch.tensor(order), LEVELS.tolist()
    inputs = (LOGITS[index].requires_grad_(), TARGETS[index])
    result = AdaFlood(LEVELS)(*inputs, index)
    each = [AdaFlood([levels[i]])(LOGITS[[i]], TARGETS[[i]], torch.tensor([0])) for i in order]
    torch.testing.assert_close(result, torch.stack(each).mean())
    batch_order = AdaFlood(LEVELS)(*inputs, torch.arange(4))
    assert abs(result - batch_order) > 1e-3, "not by the place in the batch"


@pytest.mark.parametrize("strange", [4, -1, 10**9])
def test_an_index_without_a_level_is_an_error_and_never_zero(strange):
    index = torch.tensor([0, 1, strange, 3])
    with pytest.raises(IndexError, match=f"index {strange} has no flood level; 4 samples have one"):
        AdaFlood(LEVELS)(LOGITS, TARGETS, index)


@pytest.mark.parametrize(
    "bad",
    [torch.arange(3), torch.arange(4.0), [0, 1, 2, 3], torch.ones(4, dtype=torch.bool)],
    ids=str,
)
def test_bad_indices_are_refused(bad):
    with pytest.raises(ValueError, match="index must "):
        AdaFlood(LEVELS)(LOGITS, TARGETS, bad)


@pytest.mark.parametrize(
    "bad",
    [0.5, None, "x", [], {}, [0, 1], [[0.1]], [0.1, math.nan], {0: 0.1}, pd.Series([0.1, 0.2])],
)
def test_levels_that_are_no_vector_are_refused(bad):
    with pytest.raises(ValueError, match="theta must be a vector of finite levels, the i-th of"):
        AdaFlood(bad)


def test_levels_of_reversed_arrays_belong_to_their_samples():
    args = (LOGITS[:3], TARGETS[:3], torch.tensor([2, 0, 3]))
    reversed_view = LEVELS.double().numpy()[::-1].copy()[::-1]
    assert AdaFlood(reversed_view)(*args) == AdaFlood(LEVELS.tolist())(*args)


def test_adaflood_moves_and_saves_its_levels():
    criterion = AdaFlood(LEVELS)
    assert criterion.theta is not LEVELS
    assert list(criterion.state_dict()) == ["theta"]
    assert criterion(LOGITS.half(), TARGETS, torch.arange(4)).dtype == torch.float32
    assert criterion(LOGITS.double(), TARGETS, torch.arange(4)).dtype == torch.float64


def test_a_level_for_each_class_is_adaflood_by_the_classes():
    levels = [0.1, 1.0, 0.3]
    expected = np.mean([abs(v - levels[y]) + levels[y] for v, y in zip(cross_entropies(), TARGETS)])
    found = AdaFlood(levels)(LOGITS, TARGETS, TARGETS)
    assert found.item() == pytest.approx(expected, rel=1e-6)


# The warning at θ = ln 2


@pytest.mark.parametrize("make", [IFlood, SoftAD])
@pytest.mark.parametrize("theta", [LN2, 0.7, 5.0])
@pytest.mark.parametrize("base", [None, nn.CrossEntropyLoss()], ids=["default", "given"])
def test_theta_from_ln_2_up_warns_with_cross_entropy(make, theta, base):
    with pytest.warns(CalibrationWarning) as caught:
        make(theta, base=base)
    message = str(caught[0].message)
    assert make.__name__ in message
    assert f"theta={theta:g}" in message
    assert "ln 2" in message
    assert "use a smaller theta" in message
    assert caught[0].filename == __file__, "points at the caller's line"


@pytest.mark.parametrize("make", [IFlood, SoftAD])
def test_silent_below_ln_2_and_with_another_base(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(math.nextafter(LN2, 0))
        make(-1.0)
        make(3.0, base=nn.MSELoss())
        Flooding(5.0)


@pytest.mark.parametrize("base", ["mean", 3, nn.CrossEntropyLoss, Flooding(0.1)])
def test_a_base_that_cannot_be_called_is_refused(base):
    with pytest.raises(ValueError, match="base must be a callable"):
        SoftAD(0.1, base=base)


# θ that is assigned


@pytest.mark.parametrize("make", [Flooding, IFlood, SoftAD, AccumulatedFlooding])
@pytest.mark.parametrize("bad", ["0.1", math.nan, True, nn.Parameter(torch.tensor(0.1))], ids=repr)
def test_an_assigned_theta_is_checked_as_the_constructors(make, bad):
    criterion = make(0.3)
    with pytest.raises((ValueError, KeyError), match="theta"):
        criterion.theta = bad
    assert criterion.theta == 0.3
    assert not list(criterion.parameters())
    criterion.theta = np.float32(0.25)
    assert type(criterion.theta) is float


@pytest.mark.parametrize("make", [IFlood, SoftAD])
def test_an_assigned_theta_from_ln_2_up_warns(make):
    criterion = make(0.3)
    with pytest.warns(CalibrationWarning, match=f"{make.__name__}.theta=0.8.: from theta = 0.69"):
        criterion.theta = 0.8


@pytest.mark.parametrize("make", [Flooding, IFlood, SoftAD, AccumulatedFlooding])
def test_theta_is_in_the_state_of_a_model(make):
    model = nn.ModuleDict({"loss": make(0.3)})
    other = nn.ModuleDict({"loss": make(0.1)})
    state = io.BytesIO()
    torch.save(model.state_dict(), state)
    state.seek(0)
    other.load_state_dict(torch.load(state))
    assert other["loss"].theta == 0.3
    with pytest.raises(RuntimeError, match="Unexpected key"):
        other.load_state_dict({**model.state_dict(), "loss.other": torch.ones(1)})


def test_a_state_holds_theta_and_class_weights_and_no_setting():
    base = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    assert set(SoftAD(0.1, sigma=2.0, base=base).state_dict()) == {
        "_extra_state",
        "base.class_weights",
    }
    assert not Focal(3.0).state_dict()
    other = SoftAD(0.2, sigma=5.0)
    other.load_state_dict(SoftAD(0.1, sigma=2.0).state_dict())
    assert (other.theta, other.sigma) == (0.1, 5.0)
