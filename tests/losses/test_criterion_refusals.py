"""What criteria and `hf_loss` refuse: each message has the value and the way out, in one line."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.refusals import refused
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
    LossMonitor,
    SoftAD,
    Tilted,
    cross_entropy_levels,
    hf_loss,
)

LOGITS = torch.zeros(2, 3)
TWO = torch.tensor([0, 1])
LEVELS = [0.1, 0.2]
WEIGHTED = partial(nn.CrossEntropyLoss, torch.ones(3))


class Own(nn.CrossEntropyLoss):
    def forward(self, input, target):
        return super().forward(input, target)


class Scaled(nn.CrossEntropyLoss):
    """Torch's forward, and a parameter."""

    def __init__(self, weight):
        super().__init__(weight, reduction="none")
        self.scale = nn.Parameter(torch.ones(()))


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


ANSWERS = SimpleNamespace(start_logits=LOGITS, end_logits=LOGITS)
MASKS = {"logits": torch.zeros(2, 4, 8, 8)}
REFUSALS = {
    "levels": (lambda: SoftAD(LEVELS), "[0.1, 0.2]", "AdaFlood(levels)(logits, targets, targets)"),
    "tensor": (lambda: IFlood(torch.ones(2)), "AdaFlood(levels)(logits, targets, targets)"),
    "sigma": (lambda: SoftAD(0.1, 1e-13), "sigma", "at least 1e-12", "1e-13"),
    "scale": (lambda: SoftAD(0.1, scale="paper"), "'paper'", "code, text"),
    "reduction": (lambda: SoftAD(0.1, reduction="average"), "'average'", "mean, sum, none"),
    "classes": (lambda: cross_entropy_levels(2.5), "classes", "2.5"),
    "smoothing": (lambda: cross_entropy_levels(3, 1.0), "smoothing", "below 1", "1.0"),
    # bases
    "no callable": (lambda: SoftAD(0.1, base="mean"), "base must be a callable", "'mean'"),
    "a class": (lambda: SoftAD(0.1, base=nn.MSELoss), "nn.MSELoss()", "the class MSELoss"),
    "a criterion": (lambda: SoftAD(0.1, base=Flooding(0.1)), "base must be a callable", "Flooding"),
    "one class": (lambda: ERM()(LOGITS[:, :1], TWO), "one class", "nn.BCEWithLogitsLoss()"),
    "parameters": (lambda: SoftAD(0.1, base=Trained()), "'mean'", "reduction='none'"),
    "tuple": (lambda: on_two(ERM(lambda x, y: (x, y))), "got tuple", "one loss per sample"),
    "mean of shape (1,)": (lambda: on_two(ERM(lambda x, y: x.mean().view(1))), "a single value"),
    "mean": (lambda: on_two(ERM(lambda x, y: x.mean())), "a single value", "reduction='none'"),
    "weight, parameters": (lambda: ERM(Scaled(torch.ones(3))), "Scaled", "weights=w[targets]"),
    "weight, own": (lambda: ERM(Own(torch.ones(3))), "Own", "weights=w[targets]"),
    "weight, smoothing": (
        lambda: ERM(WEIGHTED(label_smoothing=0.2)), "label_smoothing=", "weights=w[targets]"
    ),
    "weight, chances": (
        lambda: on_two(ERM(WEIGHTED()), torch.ones(2, 3)), "class probabilities", "weights=w[targets]"
    ),
    "weight of another length": (
        lambda: on_two(ERM(nn.CrossEntropyLoss(torch.ones(5)))), "shape (3,)", "got (5,)"
    ),
    "weight below 0": (lambda: on_two(ERM(nn.CrossEntropyLoss(-torch.ones(3)))), "at least 0", "-1"),
    "weight, cvar": (lambda: CVaR(0.5, base=WEIGHTED()), "CVaR", "leave out weight=", "weights="),
    "weight, chi2": (lambda: ChiSquareDRO(0.5, base=WEIGHTED()), "leave out weight=", "weights="),
    "weight, tilted": (lambda: Tilted(0.5, base=WEIGHTED()), "leave out weight=", "weights="),
    "three inputs": (
        lambda: ERM(nn.TripletMarginLoss()), "anchor, positive, negative", "a function of two"
    ),
    "four inputs": (lambda: SoftAD(0.1, base=nn.CTCLoss()), "input_lengths", "a function of two"),
    # calls
    "float classes": (lambda: on_two(ERM(), TWO.float()), "(2,)", "(2, 3)", "targets.long()"),
    "no labels": (
        lambda: hf_loss(SoftAD(0.1))(SimpleNamespace(logits=LOGITS), None), "labels", "NoneType"
    ),
    "dict": (lambda: SoftAD(0.1)({"logits": LOGITS}, TWO), "input", "got dict", "its logits"),
    "list": (lambda: on_two(SoftAD(0.1), [0, 1]), "target", "got list"),
    "weights": (lambda: on_two(ERM(), weights=torch.ones(3)), "weights", "(2,)", "(3,)"),
    "weights below 0": (lambda: on_two(ERM(), weights=-torch.ones(2)), "weights", "at least 0", "-1"),
    "classes last": (
        lambda: SoftAD(0.1)(torch.zeros(2, 5, 7), torch.zeros(2, 5).long()),
        "(2, 5, 7)", "(2, 5)", "logits.movedim(-1, 1)", "flatten(0, -2)",
    ),
    "each, flooding": (lambda: Flooding(0.1).per_sample(LOGITS, TWO), "Flooding", "SoftAD and IFlood"),
    "each, parts": (lambda: AccumulatedFlooding(0.1).per_sample(LOGITS, TWO), "AccumulatedFlooding"),
    "none, flooding": (lambda: set_to_none(Flooding(0.1)), "Flooding has no value per sample"),
    "none, cvar": (lambda: set_to_none(CVaR(0.5)), "CVaR has no value per sample"),
    "none, chi2": (lambda: set_to_none(ChiSquareDRO(0.5)), "ChiSquareDRO has no value per sample"),
    "none, tilted": (lambda: set_to_none(Tilted(1.0)), "Tilted has no value per sample"),
    "no part": (lambda: AccumulatedFlooding(0.1).scale_gradients([]), "call the criterion", RuntimeError),
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
    "hf, adaflood": (lambda: hf_loss(AdaFlood(LEVELS)), "the samples' indices", "SoftAD"),
    "hf, cvar": (lambda: hf_loss(CVaR(0.5)), "CVaR", "SoftAD"),
    "hf, parts": (lambda: hf_loss(AccumulatedFlooding(0.1)), "AccumulatedFlooding", "SoftAD"),
    "hf, torch": (lambda: hf_loss(nn.MSELoss()), "MSELoss", "ERM(base=loss)"),
    "hf, weight": (lambda: hf_loss(ERM(WEIGHTED())), "class weights", "compute_loss_func"),
    "hf, ignored": (lambda: hf_loss(ERM(nn.CrossEntropyLoss(ignore_index=0))), "ignores 0", "-100"),
    "hf, answers": (lambda: hf_loss(ERM())(ANSWERS, TWO), "SimpleNamespace has no logits"),
    "hf, dict": (lambda: hf_loss(ERM())(vars(ANSWERS), TWO), "dict has no logits"),
    "hf, masks": (
        lambda: hf_loss(ERM())(MASKS, torch.zeros(2, 32, 32).long()), "(2, 4, 8, 8)", "(2, 32, 32)"
    ),
    # probabilities
    "p, array": (lambda: ERM().probabilities(LOGITS.numpy()), "must be a tensor, got ndarray"),
    "p, flooding": (lambda: Flooding(0.1).probabilities(LOGITS), "Flooding", "fit_temperature"),
    "p, parts": (lambda: AccumulatedFlooding(0.1).probabilities(LOGITS), "fit_temperature"),
    "p, cvar": (lambda: CVaR(0.5).probabilities(LOGITS), "CVaR", "fit_temperature"),
    "p, adaflood": (lambda: AdaFlood(LEVELS).probabilities(LOGITS), "AdaFlood", "IFlood"),
    "p, mse": (lambda: ERM(nn.MSELoss()).probabilities(LOGITS), "MSELoss", "class_probabilities"),
    "p, weight 0": (
        lambda: ERM(nn.CrossEntropyLoss(torch.tensor([0.0, 1, 1]))).probabilities(LOGITS),
        "weight 0", "leave it out",
    ),
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


@pytest.mark.parametrize("make", [Flooding, IFlood, SoftAD, AccumulatedFlooding])
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
    refused(lambda: AdaFlood(bad), "theta must be a vector of finite levels, the i-th of sample i")


@pytest.mark.parametrize(
    ("factors", "way_out"),
    [((1024, 1024), "scale_gradients(parameters, scaler=scaler)"), ((0.5, 1), "value itself")],
)
def test_parts_that_were_scaled_otherwise_are_refused(factors, way_out):
    weight = nn.Parameter(torch.zeros(3, 3))
    flooding = AccumulatedFlooding(0.3)
    for factor in factors:
        (factor * flooding(torch.ones(2, 3) @ weight, TWO)).backward()
    refused(lambda: flooding.scale_gradients(weight), way_out, f"{max(factors):g}")
