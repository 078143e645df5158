"""What the criteria refuse: each message has the value and the way out, in one line."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.refusals import refused
from torch import nn

from softadlib import (
    ERM,
    AdaFlood,
    ChiSquareDRO,
    Criterion,
    CVaR,
    Flooding,
    Focal,
    IFlood,
    LossMonitor,
    SoftAD,
    Tilted,
    cross_entropy_levels,
)

LOGITS = torch.zeros(2, 3)
TWO = torch.tensor([0, 1])
LEVELS = [0.1, 0.2]
WEIGHTED = partial(nn.CrossEntropyLoss, torch.ones(3))


class Scaled(nn.CrossEntropyLoss):
    """Torch's forward, and a parameter."""

    def __init__(self, weight):
        super().__init__(weight, reduction="none")
        self.scale = nn.Parameter(torch.ones(()))


class Squared(Criterion):
    """A criterion of the user's own, of the whole batch."""

    additive = False

    def reduce(self, losses, weights=None, reduction="mean"):
        return losses.mean() ** 2


class Trained(nn.Module):
    reduction = "mean"

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, input, target):
        return (self.scale * (input - target)).mean()


def set_to_none(criterion):
    """As opacus and fastai do."""
    criterion.reduction = "none"
    return criterion(LOGITS, TWO)


def on_two(criterion, target=TWO, **settings):
    return criterion(LOGITS, target, **settings)


REFUSALS = {
    "sigma": (lambda: SoftAD(0.1, 1e-13), "sigma", "at least 1e-12", "1e-13"),
    "scale": (lambda: SoftAD(0.1, scale="paper"), "'paper'", "code, text"),
    "reduction": (lambda: SoftAD(0.1, reduction="average"), "'average'", "mean, sum, none"),
    "classes": (lambda: cross_entropy_levels(2.5), "classes", "2.5"),
    "smoothing": (lambda: cross_entropy_levels(3, 1.0), "smoothing", "below 1", "1.0"),
    # bases
    "no callable": (lambda: SoftAD(0.1, base="mean"), "base must be a callable", "'mean'"),
    "a class": (lambda: SoftAD(0.1, base=nn.MSELoss), "nn.MSELoss()", "the class MSELoss"),
    "parameters": (lambda: SoftAD(0.1, base=Trained()), "'mean'", "reduction='none'"),
    "mean of shape (1,)": (lambda: on_two(ERM(lambda x, y: x.mean().view(1))), "a single value"),
    "mean": (lambda: on_two(ERM(lambda x, y: x.mean())), "a single value", "reduction='none'"),
    "weight, parameters": (lambda: ERM(Scaled(torch.ones(3))), "Scaled", "sample_weight=w[targets]"),
    "weight, smoothing": (
        lambda: ERM(WEIGHTED(label_smoothing=0.2)), "with label smoothing", "sample_weight=w[targets]"
    ),
    "weight, chances": (
        lambda: on_two(ERM(WEIGHTED()), torch.ones(2, 3)), "class probabilities", "sample_weight=w[targets]"
    ),
    "weight of another length": (
        lambda: on_two(ERM(nn.CrossEntropyLoss(torch.ones(5)))), "shape (3,)", "got (5,)"
    ),
    "weight below 0": (lambda: on_two(ERM(nn.CrossEntropyLoss(-torch.ones(3)))), "at least 0", "-1"),
    "weight, cvar": (lambda: CVaR(0.5, base=WEIGHTED()), "CVaR", "leave out weight=", "sample_weight="),
    "weight, chi2": (lambda: ChiSquareDRO(0.5, base=WEIGHTED()), "leave out weight=", "sample_weight="),
    "weight, tilted": (lambda: Tilted(0.5, base=WEIGHTED()), "leave out weight=", "sample_weight="),
    # calls
    "weight of the sample": (lambda: on_two(ERM(), sample_weight=torch.ones(3)), "(2,)", "(3,)"),
    "weight of the sample below 0": (
        lambda: on_two(ERM(), sample_weight=-torch.ones(2)), "sample_weight", "at least 0", "-1"
    ),
    "weight= of a criterion": (
        lambda: SoftAD(0.01, weight=torch.ones(3)), "SoftAD(…, base=nn.CrossEntropyLoss(weight=…))"
    ),
    "ignore_index= of a criterion": (lambda: ERM(ignore_index=0), "base=nn.CrossEntropyLoss(ignore"),
    "label_smoothing= of a criterion": (lambda: CVaR(0.5, label_smoothing=0.1), "CVaR(…, base="),
    "each, flooding": (lambda: Flooding(0.1).per_sample(LOGITS, TWO), "Flooding", "SoftAD and IFlood"),
    "none, flooding": (lambda: set_to_none(Flooding(0.1)), "Flooding has no value per sample"),
    "none, cvar": (lambda: set_to_none(CVaR(0.5)), "CVaR has no value per sample"),
    "none, chi2": (lambda: set_to_none(ChiSquareDRO(0.5)), "ChiSquareDRO has no value per sample"),
    "none, tilted": (lambda: set_to_none(Tilted(1.0)), "Tilted has no value per sample"),
    "sum by hand, flooding": (lambda: Flooding(0.1).reduce(torch.ones(2), None, "sum"), "Flooding has no"),
    "sum by hand, cvar": (lambda: CVaR(0.5).reduce(torch.ones(2), None, "sum"), "CVaR has no value"),
    "sum by hand, chi2": (lambda: ChiSquareDRO(0.5).reduce(torch.ones(2), None, "sum"), "ChiSquareDRO has no"),
    "none by hand, tilted": (lambda: Tilted(1.0).reduce(torch.ones(2), None, "none"), "Tilted has no value"),
    # AdaFlood
    "index": (lambda: AdaFlood(LEVELS)(LOGITS, TWO, torch.tensor([0, 2])), "index 2", "2 samples", IndexError),
    "index below 0": (lambda: AdaFlood(LEVELS)(LOGITS, TWO, torch.tensor([0, -1])), "index -1", IndexError),
    "index of floats": (lambda: AdaFlood(LEVELS)(LOGITS, TWO, torch.ones(2)), "index", "float32"),
    "index of a mask": (lambda: AdaFlood(LEVELS)(LOGITS, TWO, torch.ones(2) > 0), "index", "bool"),
    "index list": (lambda: AdaFlood(LEVELS)(LOGITS, TWO, [0, 1]), "index", "got list"),
    "index of another shape": (
        lambda: AdaFlood(LEVELS)(LOGITS, TWO, torch.arange(3)), "index", "(2,)", "(3,)"
    ),
    # the monitor and the Trainer
    "monitor": (lambda: LossMonitor(nn.MSELoss()), "MSELoss", "ERM(base=loss)"),
    "no batch": (lambda: LossMonitor(SoftAD(0.1)).summary(), "no batch", "train with the criterion"),
    # probabilities
    "p, flooding": (lambda: Flooding(0.1).probabilities(LOGITS), "Flooding", "fit_temperature"),
    "p, cvar": (lambda: CVaR(0.5).probabilities(LOGITS), "CVaR", "fit_temperature"),
    "p, adaflood": (lambda: AdaFlood(LEVELS).probabilities(LOGITS), "AdaFlood", "IFlood"),
    "f', own": (lambda: Squared().derivative(torch.ones(2)), "Squared", "depends on the other losses"),
    "T, flooding": (lambda: Flooding(0.1).temperature(), "Flooding", "fit_temperature"),
    "T, adaflood": (lambda: AdaFlood(LEVELS).temperature(), "AdaFlood", "IFlood"),
    "T, mse": (lambda: ERM(nn.MSELoss()).temperature(), "MSELoss"),
    "T, p": (lambda: SoftAD(0.1).temperature(0.5), "p must be", "above 0.5", "0.5"),
    "p, mse": (lambda: ERM(nn.MSELoss()).probabilities(LOGITS), "MSELoss", "class_probabilities"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "words"), [(c, w) for c, *w in REFUSALS.values()], ids=REFUSALS)
def test_the_message_has_the_value_and_the_way_out(call, words):
    kind = words[-1] if isinstance(words[-1], type) else ValueError
    refused(call, *[word for word in words if word is not kind], kind=kind)
    refused(call, kind=kind)  # and again, as a criterion that is called twice


BAD = [math.nan, math.inf, "0.1", True, None, [0.1], 1j, torch.tensor(0.1, requires_grad=True)]
NUMBERS = {
    "theta": [Flooding, IFlood, SoftAD],
    "sigma": [partial(SoftAD, 0.1)],
    "eta": [lambda eta: SoftAD(0.1, eta=eta)],
    "gamma": [Focal],
    "beta": [CVaR],
    "radius": [ChiSquareDRO],
    "t": [Tilted],
}


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_bad_numbers_are_refused_with_name_and_value(name, bad):
    for make in NUMBERS[name]:
        refused(lambda make=make: make(bad), f"{name} must be ", repr(bad))


@pytest.mark.parametrize(
    ("make", "bad"), [(CVaR, 1), (CVaR, -0.1), (ChiSquareDRO, -0.1), (Focal, -1)]
)
def test_numbers_out_of_range_are_refused(make, bad):
    refused(lambda: make(bad), " must be a number of at least 0", repr(bad))


@pytest.mark.parametrize("make", [Flooding, IFlood, SoftAD])
@pytest.mark.parametrize("bad", ["0.1", math.nan, True, nn.Parameter(torch.tensor(0.1))], ids=repr)
def test_an_assigned_theta_is_checked_as_the_constructors(make, bad):
    refused(lambda: make(bad), "theta")
    criterion = make(0.3)
    refused(lambda: setattr(criterion, "theta", bad), "theta", kind=(ValueError, KeyError))
    assert criterion.theta == 0.3
    assert not list(criterion.parameters())
    criterion.theta = np.float32(0.25)
    assert type(criterion.theta) is float


@pytest.mark.parametrize(
    "bad", [0.5, None, "x", [], {}, [0, 1], [[0.1]], [0.1, math.nan], pd.Series([0.1, 0.2])]
)
def test_levels_that_are_no_vector_are_refused(bad):
    refused(lambda: AdaFlood(bad), "theta must be a vector of finite floats, the level of sample i")
