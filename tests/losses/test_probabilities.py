"""`criterion.probabilities(logits)`: p at the minimum of the criterion itself."""

from functools import partial

import pytest
import torch
from helpers.steps import closure_from
from torch import nn

from softadlib import ERM, Focal, IFlood, SoftAD

P = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
SMOOTHED = nn.CrossEntropyLoss(label_smoothing=0.1)
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))
CRITERIA = [
    ERM(),
    SoftAD(0.01),
    SoftAD(0.1, sigma=0.3),
    SoftAD(0.0, sigma=2.0, scale="text", eta=0.5),
    IFlood(0.2),
    Focal(2.0),
    ERM(base=SMOOTHED),
    Focal(1.0, base=SMOOTHED),
    SoftAD(0.0, sigma=0.5, base=SMOOTHED),
    SoftAD(0.01, base=WEIGHTED),
    ERM(base=WEIGHTED),
    SoftAD(0.01, reduction="sum"),
]


def minimum(criterion):
    """The logits of one input whose class is y in P_y of all cases, trained to the end."""
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    precise = {"tolerance_grad": 1e-12, "tolerance_change": 1e-16}
    optimizer = torch.optim.LBFGS([logits], max_iter=500, line_search_fn="strong_wolfe", **precise)
    of_each = partial(criterion, target=torch.arange(3), sample_weight=P)
    optimizer.step(closure_from(optimizer, lambda: of_each(logits.expand(3, 3))))
    return logits.detach()


@pytest.mark.parametrize("criterion", CRITERIA, ids=repr)
def test_the_probabilities_are_those_of_the_classes_at_the_minimum(criterion):
    logits = minimum(criterion)
    found = criterion.probabilities(logits.expand(2, 3))
    torch.testing.assert_close(found, P.expand(2, 3), rtol=0, atol=1e-6)


def test_softad_alone_is_not_calibrated():
    q = minimum(SoftAD(0.01)).softmax(0)
    assert q[0] < 0.55 < P[0]


@pytest.mark.parametrize("make", [ERM, partial(SoftAD, 0.0, 1e6)])
def test_a_class_of_weight_0_has_no_probability(make):
    """The others by hand: (0.2/1, 0.4/2) in parts of their sum. SoftAD of a huge σ has f′ ∝ ℓ."""
    criterion = make(base=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.0, 2.0])))
    logits = torch.tensor([[0.2, 0.4, 0.4]]).log().requires_grad_()
    found = criterion.probabilities(logits)
    share = torch.tensor([0.2, 0.2]) / (1 if make is ERM else torch.tensor([0.2, 0.4]).log().abs())
    share = share / share.sum()
    torch.testing.assert_close(found, torch.stack([share[0], torch.tensor(0.0), share[1]])[None])
    found[0, 0].backward()
    assert logits.grad.isfinite().all()


def test_nll_takes_log_probabilities():
    logits = torch.randn(5, 3, generator=torch.manual_seed(0))
    of_nll = SoftAD(0.01, base=nn.NLLLoss()).probabilities(logits.log_softmax(1))
    torch.testing.assert_close(of_nll, SoftAD(0.01).probabilities(logits))


@pytest.mark.parametrize("make", [ERM, IFlood, SoftAD, Focal])
def test_a_binary_logit_is_that_of_two_classes(make):
    settings = [] if make is ERM else [0.1]
    logits = torch.randn(5, 3, generator=torch.manual_seed(0))
    p = make(*settings, base=nn.BCEWithLogitsLoss()).probabilities(logits)
    both = torch.stack([torch.zeros(15), logits.flatten()], 1)
    of_two = make(*settings).probabilities(both)[:, 1]
    torch.testing.assert_close(p.flatten(), of_two)
    assert p.shape == logits.shape


def test_a_binary_loss_with_its_own_forward_has_no_closed_form():
    class OfTwice(nn.BCEWithLogitsLoss):
        def forward(self, input, target):
            return super().forward(2 * input, target)

    with pytest.raises(ValueError, match="OfTwice"):
        SoftAD(0.1, base=OfTwice()).probabilities(torch.zeros(4))


@pytest.mark.parametrize("make", [ERM, partial(SoftAD, 0.01), partial(Focal, 2.0)])
@pytest.mark.parametrize(
    "inside", [{"pos_weight": 3.0}, {"weight": 0.5}, {"weight": 2.0, "pos_weight": 0.7}], ids=str
)
def test_weights_inside_a_binary_loss_are_undone(make, inside):
    """The logit at the minimum over cases of which 0.7 are positive stands for 0.7."""
    inside = {name: torch.tensor(value, dtype=torch.float64) for name, value in inside.items()}
    criterion = make(base=nn.BCEWithLogitsLoss(**inside))
    logit = torch.zeros((), dtype=torch.float64, requires_grad=True)
    precise = {"tolerance_grad": 1e-12, "tolerance_change": 1e-16}
    optimizer = torch.optim.LBFGS([logit], max_iter=500, line_search_fn="strong_wolfe", **precise)
    share, labels = torch.tensor([0.7, 0.3]).double(), torch.tensor([1.0, 0.0]).double()
    optimizer.step(closure_from(optimizer, lambda: criterion(logit.expand(2), labels, share)))
    found = criterion.probabilities(logit.detach().view(1, 1))
    assert found.item() == pytest.approx(0.7, abs=1e-6)
    assert abs(logit.sigmoid().item() - 0.7) > 0.01 or make is ERM


def test_pixels_have_their_classes_second():
    logits = torch.randn(2, 4, 5, 6, generator=torch.manual_seed(0))
    p = SoftAD(0.01).probabilities(logits)
    torch.testing.assert_close(p.sum(1), torch.ones(2, 5, 6))
    torch.testing.assert_close(p[1, :, 3, 2], SoftAD(0.01).probabilities(logits[1, :, 3, 2]))


@pytest.mark.parametrize("criterion", CRITERIA, ids=repr)
def test_they_are_the_same_in_evaluation_under_transforms_and_have_a_gradient(criterion):
    logits = torch.randn(6, 3, generator=torch.manual_seed(0), dtype=torch.float64)
    p = criterion.probabilities(logits)
    with torch.no_grad():
        torch.testing.assert_close(criterion.probabilities(logits), p)
    with torch.inference_mode():
        torch.testing.assert_close(criterion.probabilities(logits.clone()), p)
        assert criterion.temperature() > 0.9
    each = torch.vmap(criterion.probabilities)(logits.expand(2, 6, 3))
    torch.testing.assert_close(each, p.expand(2, 6, 3))
    torch.compiler.reset()
    whole = torch.compile(criterion.probabilities, backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(logits), p)
    assert torch.autograd.gradcheck(criterion.probabilities, logits[:2].requires_grad_())


def test_a_users_criterion_needs_its_value_alone():
    class Squared(ERM):
        def reduce(self, losses, weights=None, reduction="mean"):
            return super().reduce(losses**2, weights, reduction)

    logits = minimum(Squared())
    torch.testing.assert_close(Squared().probabilities(logits), P, rtol=0, atol=1e-6)
