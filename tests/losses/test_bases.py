"""Base losses: equal to torch's options or refused with the reason, warned of where θ turns them."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from softadlib import (
    ERM,
    AccumulatedFlooding,
    AdaFlood,
    CalibrationWarning,
    CVaR,
    Flooding,
    IFlood,
    InertWarning,
    LossMonitor,
    SoftAD,
    get_criterion,
    hf_loss,
    list_criteria,
)
from softadlib.losses.levels import cross_entropy_levels

LN2 = 0.6931471805599453
TWO = torch.tensor([0, 1])
CROSS_ENTROPIES = [nn.CrossEntropyLoss, nn.NLLLoss, nn.BCELoss, nn.BCEWithLogitsLoss]


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


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (lambda x, y: (x, y), "must give a tensor of one loss per sample, .* got tuple"),
        (lambda x, y: x.mean(), "a single value: use reduction='none', or a callable without"),
    ],
)
def test_what_a_base_gives_is_named(base, words):
    with pytest.raises(ValueError, match=words):
        SoftAD(0.1, base=base)(torch.ones(2, 2), torch.ones(2))


def test_a_base_with_parameters_is_taken_as_it_is_or_refused():
    class Scaled(nn.Module):
        def __init__(self, reduction):
            super().__init__()
            self.scale, self.reduction = nn.Parameter(torch.ones(())), reduction

        def forward(self, input, target):
            losses = self.scale * nn.functional.cross_entropy(input, target, reduction="none")
            return losses if self.reduction == "none" else losses.mean()

    base = Scaled("none")
    assert next(SoftAD(0.1, base=base).parameters()) is base.scale
    with pytest.raises(ValueError, match="make it with reduction='none'"):
        SoftAD(0.1, base=Scaled("mean"))


# The cliff


@given(
    kind=st.sampled_from(CROSS_ENTROPIES),
    make=st.sampled_from([SoftAD, IFlood]),
    theta=st.floats(-1, 4, width=32),
)
def test_every_cross_entropy_warns_from_ln_2_on_and_only_there(kind, make, theta):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make(theta, base=kind(reduction="none"))
    assert [w.category for w in caught] == [CalibrationWarning] * (theta >= LN2)
    for warning in caught:
        assert "predicts the wrong" in str(warning.message)


def test_weights_of_binary_cross_entropy_move_the_level():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftAD(1.0, base=nn.BCEWithLogitsLoss(weight=torch.tensor([2.0])))
    with pytest.warns(CalibrationWarning, match=r"theta = 0\.3466"):
        SoftAD(0.4, base=nn.BCEWithLogitsLoss(pos_weight=torch.tensor([0.5, 3.0])))


# Accumulated flooding


@given(st.lists(st.booleans(), min_size=1, max_size=5).filter(any))
def test_calls_without_gradients_are_no_parts(trains):
    """Validation between micro-batches changes neither the value nor the gradients."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x, y = torch.randn(len(trains), 4, 3), torch.randint(2, (len(trains), 4))
    flooding = AccumulatedFlooding(5.0)
    for i, train in enumerate(trains):
        if train:
            flooding(model(x[i]), y[i]).backward()
        else:
            with torch.no_grad():
                flooding(model(100 * x[i]), y[i])
    value = flooding.scale_gradients(model.parameters())
    ours = model.weight.grad.clone()
    model.zero_grad()
    parts = torch.tensor(trains)
    expected = Flooding(5.0)(model(x[parts].flatten(0, 1)), y[parts].flatten())
    expected.backward()
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(ours, model.weight.grad)


@pytest.mark.parametrize("weight", [None, 1.0 + torch.arange(200)])
def test_uint8_targets_all_count_and_pick_their_class_weight(weight):
    """Class 156 too, which is −100 in 8 bits."""
    base = nn.CrossEntropyLoss(weight=weight)
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([0, 156, 1, 199], dtype=torch.uint8)
    torch.testing.assert_close(ERM(base=base)(logits, target), base(logits, target.long()))


@pytest.mark.parametrize("classes", [2, 5])
def test_class_weights_of_another_length_are_refused(classes):
    criterion = SoftAD(0.1, base=nn.CrossEntropyLoss(weight=torch.ones(classes)))
    with pytest.raises(ValueError, match=r"shape \(3,\), one per class of the logits, got"):
        criterion(torch.zeros(2, 3), torch.tensor([0, 1]))


def test_sums_per_sample_of_half_precision_are_taken_in_float32():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 500, generator=generator).log_softmax(1).bfloat16()
    targets = torch.rand(4, 500, generator=generator).bfloat16()
    sums = nn.functional.kl_div(inputs.float(), targets.float(), reduction="none").sum(1)
    criterion = ERM(base=nn.KLDivLoss(reduction="batchmean"), reduction="none")
    assert criterion(inputs, targets).dtype == torch.float32
    torch.testing.assert_close(criterion(inputs, targets), sums)


def test_a_callable_base_takes_whatever_it_takes():
    cross_entropy = nn.CrossEntropyLoss(reduction="none")
    criterion = ERM(base=lambda heads, y: cross_entropy(heads[0], y) + cross_entropy(heads[1], y))
    assert criterion((torch.zeros(2, 2), torch.zeros(2, 4)), torch.tensor([0, 1])).item() == (
        pytest.approx(math.log(8))
    )


def test_each_parameter_is_scaled_once_and_one_may_be_given_alone():
    for chosen in (lambda w: [w, w], lambda w: w):
        weight, flooding = nn.Parameter(torch.zeros(2, 2)), AccumulatedFlooding(0.1)
        x, y = torch.eye(2), torch.tensor([0, 1])
        flooding(x @ weight, y).backward()
        flooding.scale_gradients(chosen(weight))
        whole = nn.Parameter(torch.zeros(2, 2))
        Flooding(0.1)(x @ whole, y).backward()
        torch.testing.assert_close(weight.grad, whole.grad)


# What torch's options mean, however the base is spelled


@pytest.mark.parametrize("ignored", [-100, 2])
@pytest.mark.parametrize("kind", ["subclass", "partial"])
def test_class_weights_in_another_spelling_are_torchs_mean_or_refused(kind, ignored):
    class Own(nn.CrossEntropyLoss):
        def forward(self, input, target):
            return super().forward(input, target)

    weight = torch.tensor([1.0, 5.0, 2.0])
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([0, 1, ignored, 1])
    options = {"weight": weight, "ignore_index": ignored}
    if kind == "subclass":
        with pytest.raises(ValueError, match=r"a forward of its own, .*weights=w\[targets\]"):
            ERM(base=Own(weight))
        expected = nn.functional.cross_entropy(logits, target)
        torch.testing.assert_close(ERM(base=Own(reduction="none"))(logits, target), expected)
        return
    found = ERM(base=partial(nn.functional.cross_entropy, **options))(logits, target)
    assert found == nn.CrossEntropyLoss(**options)(logits, target)


@pytest.mark.parametrize("index", [np.int64(-100), -100], ids=["numpy", "int"])
@pytest.mark.parametrize("flat", [False, True])
def test_a_callable_with_an_ignore_index_ignores_it(index, flat):
    """Also where it flattens its losses, and where the index is an integer of numpy."""
    targets = torch.tensor([[0, 1, -100], [1, -100, -100]])
    logits = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0)).double()

    def base(input, target):
        losses = nn.functional.cross_entropy(input.mT, target, reduction="none")
        return losses.flatten() if flat else losses

    base.ignore_index = index
    expected = nn.functional.cross_entropy(logits.mT, targets)
    torch.testing.assert_close(ERM(base=base)(logits, targets), expected, rtol=0, atol=1e-12)


def test_a_callable_ignores_float_targets_too():
    def base(input, target):
        return nn.functional.binary_cross_entropy_with_logits(input, target, reduction="none")

    base.ignore_index = -100
    logits, target = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.0, -100.0])
    torch.testing.assert_close(ERM(base=base)(logits, target), base(logits[:2], target[:2]).mean())


# The way out


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: SoftAD(theta=None), "theta must be a finite number, got None"),
        (lambda: SoftAD(0.1, weight=torch.ones(3)), "unexpected keyword argument 'weight'"),
        (lambda: SoftAD([0.1, 0.2]), r"AdaFlood\(levels\)\(logits, targets, targets\)"),
        (lambda: IFlood(torch.tensor([0.1, 0.2])), r"AdaFlood\(levels\)\(logits, targets, targets\)"),
        (lambda: Flooding(0.1).per_sample(torch.zeros(2, 2), TWO), "Flooding has no value per sample"),
        (lambda: CVaR(0.1).per_sample(torch.zeros(2, 2), TWO), "CVaR has no value per sample"),
        (lambda: AccumulatedFlooding(0.1).per_sample(torch.zeros(2, 2), TWO), "Flooding has no value per sample"),
        (lambda: SoftAD(0.1)(torch.zeros(2, 5, 7), torch.zeros(2, 5).long()), r"\(2, 5, 7\) .*flatten\(0, -2\)"),
        (lambda: hf_loss(AdaFlood([0.1])), "AdaFlood takes the samples' indices"),
        (lambda: SoftAD(0.1, base=nn.CrossEntropyLoss(-torch.ones(3))), "class weights must be at least 0, got -1"),
        (partial(SoftAD(0.1, base=nn.NLLLoss()), torch.zeros(2, 2), TWO), "for logits give base=nn.CrossEntropyLoss"),
        (lambda: SoftAD(0.1)(torch.zeros(2, 2), TWO, torch.tensor([1.0, -1.0])), "weights must be .* 0, got -1"),
        (lambda: get_criterion("softAD", theta=0.1), "did you mean 'softad'"),
        (lambda: get_criterion("erm", theta=0.1), "unexpected keyword argument 'theta'"),
        (lambda: SoftAD(0.1)({"logits": torch.zeros(2, 2)}, TWO), "input must be a tensor, got dict; of .* its logits"),
        (lambda: SoftAD(0.1)(torch.zeros(2, 2), [0, 1]), "target must be a tensor, got list"),
        (lambda: LossMonitor(nn.MSELoss()), "takes a criterion of softadlib, got MSELoss"),
        (lambda: hf_loss(CVaR(0.5)), "CVaR is no sum over samples, and the Trainer adds up"),
        (lambda: hf_loss(AccumulatedFlooding(0.1)), "AccumulatedFlooding is no sum over samples"),
        (lambda: hf_loss(nn.MSELoss()), "MSELoss is no sum over samples"),
        (lambda: hf_loss(SoftAD(0.1, base=nn.CrossEntropyLoss(torch.ones(3)))), "counts labels and not class weights"),
        (lambda: hf_loss(SoftAD(0.1, base=nn.CrossEntropyLoss(ignore_index=0))), "base ignores 0; mark them by -100"),
    ],
)  # fmt: skip
def test_the_message_names_the_way_out(call, words):
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_the_loss_for_the_trainer_counts_samples_and_not_the_entries_of_soft_labels():
    """The Trainer counts each of K probabilities as a label; two micro-batches make the mean of all."""
    z, soft = torch.randn(6, 3), torch.eye(3)[[0, 1, 2, 0, 2, 1]]
    whole = 0.1 + ((((-soft * z.log_softmax(1)).sum(1) - 0.1) ** 2 + 1).sqrt() - 1).mean()
    loss = hf_loss(SoftAD(0.1))
    parts = [(z[:2], soft[:2]), (z[2:], soft[2:])]
    given = [loss({"logits": a.requires_grad_()}, b, num_items_in_batch=18) for a, b in parts]
    torch.testing.assert_close(sum(given), whole)
    torch.testing.assert_close(loss({"logits": z.clone().requires_grad_()}, soft), whole)

    base, logs = nn.KLDivLoss(reduction="batchmean"), z.log_softmax(1)
    given = hf_loss(ERM(base=base))({"logits": logs.requires_grad_()}, soft, 18)
    torch.testing.assert_close(given, base(logs, soft))


def test_regression_in_the_trainer_takes_outputs_of_one_column():
    z, y, loss = torch.randn(4, 1, requires_grad=True), torch.ones(4), ERM(base=nn.MSELoss())
    torch.testing.assert_close(hf_loss(loss)({"logits": z}, y), (z[:, 0] - 1).square().mean())


def test_criteria_by_name():
    assert set(list_criteria()) >= {"erm", "softad", "focal", "cvar", "adaflood"}
    assert repr(get_criterion("softad", theta=0.1, sigma=2.0)) == repr(SoftAD(0.1, 2.0))


# Smoothed and mixed targets


@pytest.mark.parametrize("make", [SoftAD, IFlood, Flooding])
def test_a_theta_below_the_smallest_smoothed_loss_is_warned_of_with_the_level(make):
    """Ten classes, ε = .1: −.91 ln .91 − 9 · .01 ln .01 = .5003 nats at least."""
    criterion = make(0.1, base=nn.CrossEntropyLoss(label_smoothing=0.1))
    logits, target = 3 * torch.randn(8, 10), torch.arange(8)
    with pytest.warns(InertWarning, match=r"at least 0\.5003, .*theta = 0\.6003"):
        criterion(logits, target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        criterion(logits, target)  # once
        make(0.6, base=nn.CrossEntropyLoss(label_smoothing=0.1))(logits, target)
        make(0.0, base=nn.CrossEntropyLoss(label_smoothing=0.1))(logits, target)
        make(0.6)(logits, target)
        criterion.theta = 0.6
        criterion(logits, target)
    criterion.theta = 0.1
    with pytest.warns(InertWarning):
        criterion(logits, target)


def test_mixed_targets_are_held_against_their_entropy():
    share = torch.tensor([0.5, 0.9, 0.5, 1.0])[:, None]
    hot = nn.functional.one_hot(torch.tensor([[0, 1], [1, 2], [2, 0], [0, 1]]), 3).float()
    mixed = share * hot[:, 0] + (1 - share) * hot[:, 1]  # entropies ln 2, .3251, ln 2, 0
    with pytest.warns(InertWarning, match=r"half of the targets are .*mixed .* at least 0\.3251"):
        SoftAD(0.1)(torch.randn(4, 3), mixed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftAD(0.4)(torch.randn(4, 3), mixed)


def test_smoothed_cross_entropy_is_warned_of_from_its_own_level_on():
    """Smoothed by .3 with ten classes every loss is above 1.17: a θ beyond ln 2 is the only useful one."""
    levels = cross_entropy_levels(10, 0.3)
    assert levels.minimum > 1.17 > LN2
    base, logits, target = (
        nn.CrossEntropyLoss(label_smoothing=0.3),
        torch.randn(4, 10),
        torch.arange(4),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftAD(levels.calibrated_below - 1e-4, base=base)(logits, target)
    with pytest.warns(CalibrationWarning, match=f"from theta = {levels.calibrated_below:.4f} on"):
        SoftAD(levels.calibrated_below + 1e-4, base=base)(logits, target)
