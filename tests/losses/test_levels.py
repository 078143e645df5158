"""Levels of smoothed losses: against PyTorch's losses minimised by machine, and known distributions."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from helpers.steps import closure_from
from torch import nn

from softadlib import IFlood, SoftAD
from softadlib.losses.thresholded import cross_entropy_levels


def least(loss, classes, wrong):
    """Least loss of class 0 over scores, by L-BFGS; `wrong` keeps the score of class 1 above."""
    free = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([free], max_iter=500, line_search_fn="strong_wolfe")

    def value():
        above = free[0] + free[1].square()
        scores = torch.cat([free[:1], above[None] if wrong else free[1:2], free[2:]])[None]
        return loss(scores, torch.tensor([0]))

    optimizer.step(closure_from(optimizer, value))
    return value().item()


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("smoothing", [0.1, 0.4])
def test_levels_of_smoothed_cross_entropy_are_its_minima(classes, smoothing):
    levels = cross_entropy_levels(classes, smoothing)
    loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
    assert levels.minimum == pytest.approx(least(loss, classes, wrong=False), rel=1e-5)
    assert levels.calibrated_below == pytest.approx(least(loss, classes, wrong=True), rel=1e-5)
    assert levels.inverted_from == math.inf


def test_levels_by_hand():
    assert cross_entropy_levels(10) == (0, pytest.approx(math.log(2)), math.log(10))
    half = cross_entropy_levels(2, 0.5)  # targets (3/4, 1/4)
    assert half.minimum == pytest.approx(2 * math.log(2) - 0.75 * math.log(3))
    assert half.calibrated_below == pytest.approx(math.log(2))


@pytest.mark.filterwarnings("ignore::softadlib.CalibrationWarning")
@pytest.mark.filterwarnings("ignore::softadlib.InertWarning")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("likely", [0.55, 0.9])
@pytest.mark.parametrize("criterion", [partial(SoftAD, sigma=5.0, scale="text"), SoftAD, IFlood])
def test_the_minimiser_of_two_classes_changes_sides_at_the_level(criterion, likely, smoothing):
    level = cross_entropy_levels(2, smoothing).calibrated_below
    loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
    margin = torch.linspace(-4, 4, 1601, dtype=torch.float64)
    scores = torch.stack([margin, torch.zeros_like(margin)], 1)
    for factor, side in ((0.5, 1), (0.95, 1), (1.05, -1), (1.5, -1)):
        made = criterion(factor * level, base=loss, reduction="none")
        risk = likely * made(scores, torch.zeros(1601).long())
        risk = risk + (1 - likely) * made(scores, torch.ones(1601).long())
        assert np.sign(margin[risk.argmin()].item()) == side
