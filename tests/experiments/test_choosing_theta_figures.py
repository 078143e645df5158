"""What the pictures of the θ study draw is what the tables hold."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.choosing import rows

from softadlib.experiments.choosing_theta import figures as choosing_figures
from softadlib.experiments.choosing_theta import strategies


@pytest.fixture
def lines():
    cases = [*strategies.RISK, ("digits", 0.0)]
    parts = [rows(3, noise=q, dataset=d) for d, q in cases]
    yield strategies.arms(*(pd.concat(tables, ignore_index=True) for tables in zip(*parts)))
    plt.close("all")


def test_suggested_has_a_dot_a_trial_at_its_risk(lines):
    fig = choosing_figures.suggested(lines)
    assert [ax.get_title() for ax in fig.axes] == ["gaussian", "sinusoid", "spiral"]
    dots = [line.get_xydata() for line in fig.axes[2].lines if line.get_marker() == "o"]
    wanted = [
        [(strategies.RISK["spiral", q], 0.05 + t / 100) for t in range(3)] for q in (0, 0.05, 0.1)
    ]
    np.testing.assert_allclose(dots, wanted)


def test_costs_are_means_over_trials(lines):
    fig = choosing_figures.costs(lines)
    titles = [ax.get_title() for ax in fig.axes[:4]]
    assert titles == ["digits", "gaussian", "sinusoid", "spiral"]
    (own,) = [
        line for line in fig.axes[0].lines if line.get_marker() == "o" and len(line.get_xdata()) > 1
    ]
    wanted = 100 * lines[lines["dataset"] == "digits"].groupby("arm")["regret"].mean()
    drawn = dict(zip(own.get_xdata(), own.get_ydata()))
    for place, arm in enumerate(strategies.ARMS):
        if arm in wanted:
            assert drawn[place] == pytest.approx(wanted[arm], abs=1e-9)


def test_forest_has_a_row_a_case(lines):
    table = strategies.compared(lines, "B", "D")
    fig = choosing_figures.forest({"B − D": table, "B − E": table}, margin=0.25)
    accuracy = fig.axes[0]
    assert [t.get_text() for t in accuracy.get_yticklabels()][:2] == ["digits", "gaussian"]
    ends = [segment[:, 0] for segment in accuracy.collections[0].get_segments()]
    np.testing.assert_allclose(ends, table[["points low", "points high"]])
    assert any(np.allclose(line.get_xdata(), -0.25) for line in accuracy.lines)
