"""Base losses: equal to torch's options; what the first batch and a θ that turns or silences them say."""

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

from softadlib import ERM, CalibrationWarning, Flooding, IFlood, InertWarning, SoftAD
from softadlib.losses.thresholded import cross_entropy_levels

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


def test_a_base_that_sums_names_no_option_that_flooding_lacks():
    with pytest.warns(UserWarning, match=r"MSELoss.* sums and Flooding takes the mean$"):
        Flooding(0.1, base=nn.MSELoss(reduction="sum"))


def test_targets_that_are_smoothed_all_over_are_taken_as_torch_takes_them():
    logits, loss = (
        torch.randn(4, 3, generator=torch.manual_seed(0)),
        nn.CrossEntropyLoss(label_smoothing=1),
    )
    expected = loss(logits, torch.zeros(4).long())
    found = IFlood(0.0, base=loss)(logits, torch.zeros(4).long())
    torch.testing.assert_close(found, expected)


def test_a_base_that_sums_says_where_the_sum_belongs():
    with pytest.warns(UserWarning, match=r"MSELoss.* sums and .* give it reduction='sum'"):
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


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyLoss"), reason="needs a later torch")
def test_cross_entropy_behind_a_layer_leaves_out_ignored_targets_where_they_are_named():
    whole = nn.LinearCrossEntropyLoss(6, 4)
    base = nn.LinearCrossEntropyLoss(6, 4, reduction="none", ignore_index=-100)
    base.load_state_dict(whole.state_dict())
    x, y = torch.randn(12, 6), torch.arange(12) % 4
    y[:3] = -100
    torch.testing.assert_close(ERM(base=base)(x, y), whole(x, y))


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


def test_a_weighted_binary_loss_has_no_level_that_is_known():
    """A warning is an error where none is expected."""
    SoftAD(1.0, base=nn.BCEWithLogitsLoss(weight=torch.tensor([2.0])))
    SoftAD(1.0, base=nn.BCEWithLogitsLoss(pos_weight=torch.tensor([5.0])))


# Smoothed targets


@pytest.mark.parametrize("make", [SoftAD, IFlood, Flooding])
def test_a_theta_below_the_smallest_smoothed_loss_is_warned_of_with_the_level(make):
    """Ten classes, ε = .1: −.91 ln .91 − 9 · .01 ln .01 = .5003 nats at least."""
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    criterion = make(0.1, base=smoothed)
    logits, target = 3 * torch.randn(8, 10), torch.arange(8)
    with pytest.warns(InertWarning, match=r"is below 0\.5003.*theta = 0\.6003"):
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
    """Smoothed by .1 with ten classes no loss is below .5003, and from 1.0217 on a wrong class wins."""
    criterion = make(0.0, base=nn.CrossEntropyLoss(label_smoothing=0.1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, 150):
            criterion.theta = step / 100
            criterion(torch.zeros(4, 10), torch.arange(4))
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


def test_smoothed_cross_entropy_is_warned_of_from_its_own_level_on():
    """Smoothed by .3 with ten classes every loss is above 1.17: a θ beyond ln 2 is the only useful one."""
    levels = cross_entropy_levels(10, 0.3)
    assert levels.minimum > 1.17 > LN2
    base = nn.CrossEntropyLoss(label_smoothing=0.3)
    SoftAD(levels.calibrated_below - 1e-4, base=base)(torch.randn(4, 10), torch.arange(4))
    with pytest.warns(CalibrationWarning, match=f"from theta = {levels.calibrated_below:.4f} on"):
        SoftAD(levels.calibrated_below + 1e-4, base=base)(torch.randn(4, 10), torch.arange(4))


# The first batch: what torch would take without a word

SHARES = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])
READINGS = {  # logits, targets, words of the warning
    "several labels": (torch.zeros(2, 3), torch.tensor([[1.0, 1, 0], [0, 1, 0]]), "BCEWithLogitsLoss"),
    "no label": (torch.zeros(2, 3), torch.tensor([[0.0, 0, 0], [0, 1, 0]]), "do not sum to 1"),
    "a teacher's logits": (torch.zeros(2, 3), torch.tensor([[3.0, -2, 0], [0, 1, 0]]), "softmax"),
    "per cent": (torch.zeros(2, 3), 100 * SHARES, "class probabilities"),
    "one logit": (torch.zeros(4), torch.tensor([0.0, 1, 1, 0]), "one logit per target"),
    "a column of logits": (torch.zeros(4, 1), torch.tensor([[0.0], [1], [1], [0]]), "one logit"),
    "classes last": (torch.zeros(2, 3, 3), torch.zeros(2, 3).long(), r"read as \(batch, classes, length\)"),
}  # fmt: skip


@pytest.mark.parametrize("make", [partial(SoftAD, 0.1), partial(Flooding, 0.1), ERM])
@pytest.mark.parametrize("form", READINGS)
def test_targets_that_torch_reads_otherwise_are_warned_of_once(make, form):
    logits, targets, words = READINGS[form]
    criterion = make()
    with pytest.warns(UserWarning, match=words):
        criterion(logits, targets)
    criterion(logits, targets)  # a warning is an error here


def test_swapped_arguments_are_warned_of():
    logits = torch.zeros(2, 3, requires_grad=True)
    with pytest.warns(UserWarning, match=r"call criterion\(logits, targets\)"):
        SoftAD(0.1)(SHARES, logits)
    with pytest.warns(UserWarning, match=r"call criterion\(logits, targets\)"):
        SoftAD(0.1, base=nn.BCEWithLogitsLoss())(SHARES, logits)
    SoftAD(0.1)(logits, SHARES.clone().requires_grad_())  # learned targets


def test_probabilities_for_logits_and_logits_for_log_probabilities_are_warned_of():
    logits, targets = torch.randn(6, 3, 2, generator=GENERATOR), torch.zeros(6, 2).long()
    with pytest.warns(UserWarning, match="leave out the softmax at the end of the network"):
        SoftAD(0.1)(logits.softmax(1), targets)
    with pytest.warns(UserWarning, match="of logits give base=nn.CrossEntropyLoss()"):
        SoftAD(0.1, base=nn.NLLLoss())(logits, targets)
    SoftAD(0.1)(
        logits.softmax(2), targets
    )  # classes are second: no warning, which is an error here
    SoftAD(0.1)(logits.log_softmax(1), targets)
    SoftAD(0.1, base=nn.NLLLoss())(logits.log_softmax(1), targets)
    SoftAD(0.1)(torch.zeros(0, 3), torch.zeros(0).long())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_class_probabilities_in_half_precision_and_of_pixels_are_none_of_these(dtype):
    chances = torch.randn(8, 10, 4, generator=GENERATOR).softmax(1).to(dtype)
    SoftAD(0.1)(torch.zeros(8, 10, 4), chances)
