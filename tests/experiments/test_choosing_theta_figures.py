"""What the pictures of the θ study draw is what the tables hold."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.choosing import rows

from softadlib.experiments.choosing_theta import figures, strategies


@pytest.fixture
def lines():
    cases = [*strategies.BAYES_RISK, ("digits", 0.0)]
    parts = [rows(3, noise=q, dataset=d) for d, q in cases]
    grid, auto, low = (pd.concat(tables, ignore_index=True) for tables in zip(*parts))
    yield strategies.compare_strategies(grid, auto, auto, low)
    plt.close("all")


def test_levels_has_a_circle_a_trial(lines):
    lines.loc[(lines["strategy"] == "suggested") & (lines["dataset"] == "digits"), "theta"] = np.nan
    (ax,) = figures.levels(lines).axes
    assert ax.get_yticklabels()[0].get_text() == "digits"
    drawn = [line.get_xdata() for line in ax.lines if line.get_label() == "former rule"]
    np.testing.assert_allclose(drawn, [[0.05, 0.06, 0.07]])
    assert [text.get_text() for text in ax.texts] == ["no θ in 3 of 3"]


def test_costs_are_differences_from_the_ordinary_run(lines):
    accuracy, loss = figures.costs(lines).axes
    names = [label.get_text() for label in accuracy.get_yticklabels()]
    marks = next(line for line in accuracy.lines if "0 %" in str(line.get_label()))
    by_name = dict(zip(names, marks.get_xdata()))
    assert by_name["constant 0.1"] == pytest.approx(10)  # .90 − .80, in points
    assert by_name["suggested"] == pytest.approx(10)
    marks = next(line for line in loss.lines if "0 %" in str(line.get_label()))
    assert dict(zip(names, marks.get_xdata()))["constant 0.1"] == pytest.approx(-1)


def test_costs_leave_out_what_lacks_a_set(lines):
    lacks = (lines["strategy"] == "suggested") & (lines["dataset"] == "spiral")
    accuracy, _ = figures.costs(lines[~lacks]).axes
    names = [label.get_text() for label in accuracy.get_yticklabels()]
    marks = next(line for line in accuracy.lines if "0 %" in str(line.get_label()))
    assert np.isnan(dict(zip(names, marks.get_xdata()))["suggested"])


def test_forest_has_a_row_a_case(lines):
    table = strategies.compared(lines, "suggested", "grid, smallest tie")
    fig = figures.forest({"a": table, "b": table}, margin=0.25)
    accuracy = fig.axes[0]
    assert [t.get_text() for t in accuracy.get_yticklabels()][:2] == ["digits", "gaussian"]
    ends = [segment[:, 0] for segment in accuracy.collections[0].get_segments()]
    np.testing.assert_allclose(ends, table[["points low", "points high"]])
    assert any(np.allclose(line.get_xdata(), -0.25) for line in accuracy.lines)
