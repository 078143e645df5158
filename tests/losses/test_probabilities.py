"""`criterion.probabilities(logits)`: p at the minimum of the criterion itself, and refusals."""

import pytest
import torch
from torch import nn

from softadlib import (
    ERM,
    AccumulatedFlooding,
    AdaFlood,
    ChiSquareDRO,
    CVaR,
    Flooding,
    Focal,
    IFlood,
    SoftAD,
    Tilted,
)

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
    optimizer = torch.optim.LBFGS(
        [logits],
        max_iter=500,
        tolerance_grad=1e-12,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        value = criterion(logits.expand(3, 3), torch.arange(3), P)
        value.backward()
        return value

    optimizer.step(closure)
    return logits.detach()


@pytest.mark.parametrize("criterion", CRITERIA, ids=repr)
def test_the_probabilities_are_those_of_the_classes_at_the_minimum(criterion):
    logits = minimum(criterion)
    found = criterion.probabilities(logits.expand(2, 3))
    torch.testing.assert_close(found, P.expand(2, 3), rtol=0, atol=1e-6)


def test_softad_alone_is_not_calibrated():
    q = minimum(SoftAD(0.01)).softmax(0)
    assert q[0] < 0.55 < P[0]


def test_nll_takes_log_probabilities():
    logits = torch.randn(5, 3, generator=torch.manual_seed(0))
    of_nll = SoftAD(0.01, base=nn.NLLLoss()).probabilities(logits.log_softmax(1))
    torch.testing.assert_close(of_nll, SoftAD(0.01).probabilities(logits))


def test_pixels_have_their_classes_second():
    logits = torch.randn(2, 4, 5, 6, generator=torch.manual_seed(0))
    p = SoftAD(0.01).probabilities(logits)
    torch.testing.assert_close(p.sum(1), torch.ones(2, 5, 6))
    torch.testing.assert_close(p[1, :, 3, 2], SoftAD(0.01).probabilities(logits[1, :, 3, 2]))


def test_a_criterion_of_ones_own_gives_its_weights():
    class Squared(ERM):
        def reduce(self, losses, weights=None, reduction="mean"):
            return super().reduce(losses**2, weights, reduction)

        def gradient_weights(self, losses):
            return 2 * losses

    logits = minimum(Squared())
    torch.testing.assert_close(Squared().probabilities(logits), P, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("criterion", "said"),
    [
        (Flooding(0.1), "Flooding.*mean loss.*fit_temperature"),
        (AccumulatedFlooding(0.1), "AccumulatedFlooding.*mean loss.*fit_temperature"),
        (CVaR(0.5), "CVaR.*other losses.*fit_temperature"),
        (ChiSquareDRO(0.5), "ChiSquareDRO.*other losses.*fit_temperature"),
        (Tilted(0.5), "Tilted.*other losses.*fit_temperature"),
        (AdaFlood([0.1, 0.2]), "AdaFlood.*level of its own.*IFlood"),
        (SoftAD(0.1, base=nn.MSELoss()), "MSELoss.*class_probabilities"),
        (
            SoftAD(0.1, base=nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0]))),
            "weight 0.*leave it out",
        ),
    ],
)
def test_without_a_closed_form_the_reason_is_said(criterion, said):
    with pytest.raises(ValueError, match=said):
        criterion.probabilities(torch.zeros(1, 2))
