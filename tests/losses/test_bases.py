"""Base losses: equal to torch's options, and warned of where a θ turns or silences them."""

import math
import time
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from softadlib import ERM, CalibrationWarning, Flooding, IFlood, InertWarning, SoftAD, hf_loss
from softadlib.losses.levels import cross_entropy_levels

LN2 = 0.6931471805599453
CROSS_ENTROPIES = [nn.CrossEntropyLoss, nn.NLLLoss, nn.BCELoss, nn.BCEWithLogitsLoss]
GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.filterwarnings("ignore:.*reduction:UserWarning")
def test_batchmean_is_one_loss_per_sample():
    log_probs, target = torch.randn(4, 3).log_softmax(1), torch.rand(4, 3).softmax(1)
    base = nn.KLDivLoss(reduction="batchmean")
    torch.testing.assert_close(ERM(base=base)(log_probs, target), base(log_probs, target))
    each = nn.KLDivLoss(reduction="none")(log_probs, target).sum(1)
    torch.testing.assert_close(ERM(base=base, reduction="none")(log_probs, target), each)


def test_a_base_that_sums_says_where_the_sum_belongs():
    with pytest.warns(UserWarning, match=r"reduction='sum'.*give reduction= to the criterion"):
        SoftAD(0.1, base=nn.MSELoss(reduction="sum"))


def test_a_base_keeps_its_parameters():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, input, target):
            return self.scale * (input - target).square()

    base = Scaled()
    assert next(SoftAD(0.1, base=base).parameters()) is base.scale


class WithTemperature(nn.CrossEntropyLoss):
    def __init__(self):
        super().__init__(reduction="none")
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, input, target):
        return super().forward(input / self.temperature, target)


class WithOptions(nn.CrossEntropyLoss):
    def forward(self, input, target, *others, **options):
        return super().forward(input, target)


def test_a_loss_may_take_further_arguments_that_nobody_gives():
    logits = torch.tensor([[1.0, -1.0], [0.5, 0.0]])
    target = torch.tensor([0, 1])
    expected = nn.functional.cross_entropy(logits, target)
    torch.testing.assert_close(ERM(base=WithOptions())(logits, target), expected)


def test_a_loss_of_torch_with_parameters_is_trained():
    loss = WithTemperature()
    logits = torch.tensor([[1.0, -1.0], [0.5, 0.0]])
    target = torch.tensor([0, 1])
    ERM(base=loss)(logits, target).backward()
    temperature = torch.tensor(2.0, requires_grad=True)
    nn.functional.cross_entropy(logits / temperature, target).backward()
    torch.testing.assert_close(loss.temperature.grad, temperature.grad)


def test_a_criterion_and_the_users_own_loss_have_nothing_in_common():
    mine = nn.CrossEntropyLoss(weight=torch.ones(3))
    criterion = ERM(base=mine)
    logits, targets = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    before = criterion(logits, targets)
    mine.label_smoothing = 0.5
    mine.weight[1] = 9.0
    assert criterion(logits, targets) == before
    criterion.double()
    assert (mine.weight.dtype, mine.reduction) == (torch.float32, "mean")


@pytest.mark.parametrize("weight", [None, 1.0 + torch.arange(200)])
def test_uint8_targets_all_count_and_pick_their_class_weight(weight):
    """Class 156 too, which is −100 in 8 bits."""
    base = nn.CrossEntropyLoss(weight=weight)
    logits = torch.randn(4, 200, generator=GENERATOR)
    target = torch.tensor([0, 156, 1, 199], dtype=torch.uint8)
    torch.testing.assert_close(ERM(base=base)(logits, target), base(logits, target.long()))


def test_a_callable_base_takes_whatever_it_takes():
    cross_entropy = nn.CrossEntropyLoss(reduction="none")
    criterion = ERM(base=lambda heads, y: cross_entropy(heads[0], y) + cross_entropy(heads[1], y))
    value = criterion((torch.zeros(2, 2), torch.zeros(2, 4)), torch.tensor([0, 1]))
    assert value.item() == pytest.approx(math.log(8))


@pytest.mark.parametrize("ignored", [-100, 2])
def test_a_partial_of_torchs_function_is_torchs_mean_with_its_options(ignored):
    options = {"weight": torch.tensor([1.0, 5.0, 2.0]), "ignore_index": ignored}
    logits, target = torch.randn(4, 3, generator=GENERATOR), torch.tensor([0, 1, ignored, 1])
    found = ERM(base=partial(nn.functional.cross_entropy, **options))(logits, target)
    torch.testing.assert_close(found, nn.CrossEntropyLoss(**options)(logits, target))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("index", [np.int64(-100), -100], ids=["numpy", "int"])
def test_a_callable_with_an_ignore_index_ignores_it(index, dtype):
    """Also where it flattens its losses, and where the index is an integer of numpy."""

    def base(input, target):
        return (input - target).square().flatten()

    base.ignore_index = index
    targets = torch.tensor([[0, 1, -100], [1, -100, -100]]).to(dtype)
    logits = torch.randn(2, 3, generator=GENERATOR)
    kept = targets != -100
    expected = (logits[kept] - targets[kept]).square().mean()
    torch.testing.assert_close(ERM(base=base)(logits, targets), expected)


# The Trainer


def test_the_loss_for_the_trainer_counts_samples_and_not_the_entries_of_soft_labels():
    """The Trainer counts each of K probabilities as a label; two micro-batches make the mean of all."""
    z, soft = torch.randn(6, 3), torch.eye(3)[[0, 1, 2, 0, 2, 1]]
    whole = 0.1 + ((((-soft * z.log_softmax(1)).sum(1) - 0.1) ** 2 + 1).sqrt() - 1).mean()
    loss = hf_loss(SoftAD(0.1))
    parts = [(z[:2], soft[:2]), (z[2:], soft[2:])]
    given = [loss({"logits": a.requires_grad_()}, b, num_items_in_batch=18) for a, b in parts]
    torch.testing.assert_close(sum(given), whole)
    torch.testing.assert_close(loss({"logits": z.clone().requires_grad_()}, soft), whole)


def test_without_a_number_of_items_the_trainer_gets_the_mean_over_counted_labels():
    z = torch.randn(4, 3, generator=GENERATOR, requires_grad=True)
    labels = torch.tensor([0, -100, 2, -100])
    counted = SoftAD(0.1)(z[[0, 2]], labels[[0, 2]])
    torch.testing.assert_close(hf_loss(SoftAD(0.1))({"logits": z}, labels), counted)


def test_regression_in_the_trainer_takes_outputs_of_one_column():
    z, y, loss = torch.randn(4, 1, requires_grad=True), torch.ones(4), ERM(base=nn.MSELoss())
    torch.testing.assert_close(hf_loss(loss)({"logits": z}, y), (z[:, 0] - 1).square().mean())


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyLoss"), reason="needs a later torch")
def test_cross_entropy_behind_a_layer_leaves_out_ignored_targets_and_refuses_weights():
    torch.manual_seed(0)
    whole = nn.LinearCrossEntropyLoss(6, 4)
    base = nn.LinearCrossEntropyLoss(6, 4, reduction="none")
    base.load_state_dict(whole.state_dict())
    x, y = torch.randn(12, 6), torch.arange(12) % 4
    y[:3] = -100
    torch.testing.assert_close(ERM(base=base)(x, y), whole(x, y))
    with pytest.warns(CalibrationWarning):
        SoftAD(1.0, base=base)
    weighted = nn.LinearCrossEntropyLoss(6, 4, reduction="none", weight=torch.ones(4))
    with pytest.raises(ValueError, match="parameters and class weights; leave out weight="):
        ERM(base=weighted)


# The cliff at ln 2


@given(
    kind=st.sampled_from(CROSS_ENTROPIES),
    make=st.sampled_from([SoftAD, IFlood]),
    theta=st.floats(-1, 4, width=32) | st.sampled_from([LN2, math.nextafter(LN2, 0)]),
)
def test_every_cross_entropy_warns_from_ln_2_on_and_only_there(kind, make, theta):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        criterion = make(theta, base=kind())
        make(theta, base=nn.MSELoss())
        Flooding(theta)
        criterion.theta = theta
    assert [w.category for w in caught] == [CalibrationWarning] * (theta >= LN2), "once"
    for warning in caught:
        assert f"{make.__name__}(theta={theta:g})" in str(warning.message)
        assert "use a smaller theta" in str(warning.message)
        assert warning.filename == __file__, "points at the caller's line"


def test_weights_of_binary_cross_entropy_move_the_level():
    SoftAD(1.0, base=nn.BCEWithLogitsLoss(weight=torch.tensor([2.0])))
    with pytest.warns(CalibrationWarning, match=r"theta = 0\.3466"):
        SoftAD(0.4, base=nn.BCEWithLogitsLoss(pos_weight=torch.tensor([0.5, 3.0])))


# Smoothed and mixed targets. A warning is an error where none is expected.


@pytest.mark.parametrize("make", [SoftAD, IFlood, Flooding])
def test_a_theta_below_the_smallest_smoothed_loss_is_warned_of_with_the_level(make):
    """Ten classes, ε = .1: −.91 ln .91 − 9 · .01 ln .01 = .5003 nats at least."""
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    criterion = make(0.1, base=smoothed)
    logits, target = 3 * torch.randn(8, 10), torch.arange(8)
    with pytest.warns(InertWarning, match=r"at least 0\.5003.*theta = 0\.6003"):
        criterion(logits, target)
    criterion(logits, target)  # once
    for quiet in (make(0.6, base=smoothed), make(0.0, base=smoothed), make(0.6)):
        quiet(logits, target)
    falling = make(0.6, base=smoothed)
    falling(logits, target)
    with pytest.warns(InertWarning):
        falling.theta = 0.1


@pytest.mark.parametrize("make", [SoftAD, IFlood, Flooding])
def test_a_schedule_of_levels_is_warned_of_once(make):
    criterion, targets = make(0.0), torch.full((4, 10), 0.1)  # of entropy ln 10
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, 100):
            criterion.theta = step / 100
            criterion(torch.zeros(4, 10), targets)
    expected = [InertWarning] if make is Flooding else [InertWarning, CalibrationWarning]
    assert [w.category for w in caught] == expected


def test_a_theta_that_moves_costs_no_check_at_every_step():
    """With 50,257 classes a check of all of them cost more than the loss itself."""
    logits = torch.randn(1, 50257, generator=GENERATOR)
    criterion = SoftAD(1.5, base=nn.CrossEntropyLoss(label_smoothing=0.1))
    least = {"fixed": math.inf, "moving": math.inf}
    for step in range(60):
        name = ("fixed", "moving")[step % 2]
        started = time.perf_counter()
        if name == "moving":
            criterion.theta = 1.5 + step / 1e4
        criterion(logits, torch.tensor([7]))
        least[name] = min(least[name], time.perf_counter() - started)
    assert least["moving"] < 5 * least["fixed"]


def test_mixed_targets_are_held_against_their_entropy():
    share = torch.tensor([0.5, 0.9, 0.5, 1.0])[:, None]
    hot = nn.functional.one_hot(torch.tensor([[0, 1], [1, 2], [2, 0], [0, 1]]), 3).float()
    mixed = share * hot[:, 0] + (1 - share) * hot[:, 1]  # entropies ln 2, .3251, ln 2, 0
    with pytest.warns(InertWarning, match=r"mixed .* at least 0\.3251.* try theta = 0\.4251"):
        SoftAD(0.1)(torch.randn(4, 3), mixed)
    with pytest.warns(InertWarning, match=r"may predict the wrong class, so mix or smooth less"):
        SoftAD(0.1)(torch.randn(2, 3), mixed[::2])  # ln 2 + 0.1 is beyond ln 2
    SoftAD(0.4)(torch.randn(4, 3), mixed)


def test_smoothed_cross_entropy_is_warned_of_from_its_own_level_on():
    """Smoothed by .3 with ten classes every loss is above 1.17: a θ beyond ln 2 is the only useful one."""
    levels = cross_entropy_levels(10, 0.3)
    assert levels.minimum > 1.17 > LN2
    base = nn.CrossEntropyLoss(label_smoothing=0.3)
    SoftAD(levels.calibrated_below - 1e-4, base=base)(torch.randn(4, 10), torch.arange(4))
    with pytest.warns(CalibrationWarning, match=f"from theta = {levels.calibrated_below:.4f} on"):
        SoftAD(levels.calibrated_below + 1e-4, base=base)(torch.randn(4, 10), torch.arange(4))
