"""The page at a glance: its numbers by hand, its training against what each criterion asks for."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from softadlib.experiments import overview

LOSSES = pd.DataFrame({"erm": [0.0, 0.0, 0.05, 0.6], "softad": [0.15, 0.2, 0.25, 0.3]})


def test_concentration_by_hand():
    table = overview.concentration(LOSSES, theta=0.2)
    assert table.loc["SoftAD", "within 0.1 of θ"] == 1
    assert table.loc["ERM", "within 0.1 of θ"] == 0
    assert table.loc["ERM", "below θ/2"] == 0.75
    assert table.loc["SoftAD", "lower quartile"] == pytest.approx(0.1875)


def test_the_sentence_follows_the_losses():
    assert overview.reading(LOSSES, 0.2).endswith("SoftAD 100%, ERM 0%.")
    swapped = LOSSES.rename(columns={"erm": "softad", "softad": "erm"})
    assert overview.reading(swapped, 0.2).endswith("ERM 100%, SoftAD 0%.")


def test_training_moves_losses_where_the_criteria_ask():
    """ERM's fall; the mean of Flooding's and the losses of SoftAD come nearer to θ than ERM's do."""
    losses = overview.final_losses("gaussian", 0.2, epochs=25, seed=3)
    assert losses.shape == (100, len(overview.CRITERIA))
    assert losses["erm"].mean() < 0.1
    distance = (losses - 0.2).abs().mean()
    assert distance["softad"] < distance["erm"]
    assert abs(losses["flooding"].mean() - 0.2) < abs(losses["erm"].mean() - 0.2)


def test_the_drawn_weights_are_those_of_the_criteria():
    """SoftAD's line is x/√(1+x²) at x = ℓ − θ, iFlood's the sign, ERM's one."""
    figure, ax = plt.subplots()
    overview.draw_weights(ax, theta=0.5)
    lines = dict(zip(overview.CRITERIA, ax.get_lines()))
    x = lines["softad"].get_xdata()
    assert np.allclose(lines["erm"].get_ydata(), 1)
    at = np.abs(x - 1.25).argmin()
    assert lines["softad"].get_ydata()[at] == pytest.approx(0.75 / 1.25)
    assert lines["iflood"].get_ydata()[0] == -1
    plt.close(figure)
