"""Reliability of two classes: numbers by hand."""

import numpy as np
import pytest

from softadlib.workbook.analysis.reliability import reliability


def test_reliability_of_two_classes_by_counting():
    """Losses of a probability p of the right class, from draws; accuracy and confidence counted."""
    p = np.random.default_rng(0).beta(4, 2, 20_000)
    quantiles = np.quantile(-np.log(p), np.linspace(0, 1, 1001))
    table = reliability(quantiles, bins=5)
    confidence, right = np.maximum(p, 1 - p), p > 0.5
    for place in range(5):
        inside = (confidence >= 0.5 + place / 10) & (confidence < 0.6 + place / 10)
        assert table.loc[place, "confidence"] == pytest.approx(confidence[inside].mean(), abs=0.005)
        assert table.loc[place, "accuracy"] == pytest.approx(right[inside].mean(), abs=0.03)
        assert table.loc[place, "share"] == pytest.approx(inside.mean(), abs=0.01)
    assert table["share"].sum() == pytest.approx(1)


def test_a_loss_held_at_theta_is_right_and_hardly_confident():
    table = reliability(np.full((3, 101), 0.6))
    (line,) = table.to_dict("records")
    assert line == {"confidence": pytest.approx(np.exp(-0.6)), "accuracy": 1.0, "share": 1.0}
