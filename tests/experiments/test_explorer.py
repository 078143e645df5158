"""The explorer: what is drawn is the formula at the sliders' values, and a picture stays without widgets."""

import base64
import json
import sys
from functools import partial

import nbformat
import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.quiver import Quiver

from softadlib._validation import UserError
from softadlib.experiments import explorer
from softadlib.workbook import report

POINTS = np.array([[3.0, 0.0], [0.0, 1.0], [-2.0, 2.0]])
CANDIDATES = {"red": np.array([0.0, 0.0]), "green": np.array([1.0, -1.0])}
draw_updates = partial(explorer.draw_updates, points=POINTS, candidates=CANDIDATES)
VIEW = "application/vnd.jupyter.widget-view+json"


def lines(figure):
    """Label → (loss, value, weight) of the curves."""
    left, right = figure.axes
    value, weight = (
        {line.get_label(): line.get_data() for line in ax.get_lines()} for ax in (left, right)
    )
    return {name: (*value[name], weight[name][1]) for name in ("ERM", "iFlood", "SoftAD")}


@pytest.mark.parametrize(("theta", "sigma", "scale"), [
    (0.25, 1, "code"), (0.5, 1, "code"), (-0.3, 0.2, "code"), (0.5, 4, "code"), (0.5, 4, "text"),
])  # fmt: skip
def test_the_curves_are_the_formulas(theta, sigma, scale):
    drawn = lines(explorer.draw_shapes(theta, sigma, scale))
    loss = drawn["ERM"][0]
    u, size = (loss - theta) / sigma, sigma if scale == "code" else 1
    expected = {
        "ERM": (loss, np.ones_like(loss)),
        "iFlood": (theta + abs(loss - theta), np.sign(loss - theta)),
        "SoftAD": (theta + size * sigma * (np.sqrt(1 + u**2) - 1), size * u / np.sqrt(1 + u**2)),
    }
    for name, (value, weight) in expected.items():
        np.testing.assert_allclose(drawn[name][1], value, atol=1e-12)
        np.testing.assert_allclose(drawn[name][2], weight, atol=1e-12)


def test_the_marked_threshold_moves_and_the_cliff_is_named():
    for theta in (0.25, 1.5):
        figure = explorer.draw_shapes(theta, 1.0)
        for ax in figure.axes:
            dotted = [line for line in ax.get_lines() if line.get_linestyle() == ":"]
            assert [list(line.get_xdata()) for line in dotted] == [[theta, theta]]
        assert ("ln 2" in figure.get_suptitle()) == (theta > np.log(2))


@pytest.mark.parametrize(("theta", "sigma", "scale"), [
    (4, 1, "text"), (6, 1, "text"), (6, 3, "text"), (6, 3, "code"),
])  # fmt: skip
def test_the_arrows_are_the_formula(theta, sigma, scale):
    figure = draw_updates(theta, sigma, scale, step=0.5)
    assert [ax.get_title() for ax in figure.axes] == ["Flooding", "iFlood", "SoftAD"]
    for ax in figure.axes:
        drawn = [c for c in ax.collections if isinstance(c, Quiver)]
        assert len([c for c in ax.collections if isinstance(c, PathCollection)]) == 4
        for (terms, update), w in zip([drawn[:2], drawn[2:]], CANDIDATES.values()):
            losses = ((w - POINTS) ** 2).sum(1)
            u = (losses - theta) / sigma
            weight = {
                "Flooding": np.sign(losses.mean() - theta) * np.ones(3),
                "iFlood": np.sign(u),
                "SoftAD": u / np.sqrt(1 + u**2) * (sigma if scale == "code" else 1),
            }[ax.get_title()]
            expected = -0.5 * weight[:, None] * (w - POINTS)
            np.testing.assert_allclose(np.stack([terms.U, terms.V], 1), expected, atol=1e-12)
            mean = [update.U.item(), update.V.item()]
            np.testing.assert_allclose(mean, expected.mean(0), atol=1e-12)


def test_a_moved_slider_changes_the_picture_to_the_one_of_its_value():
    shown = explorer.Explorer(explorer.draw_shapes, (0.25, 1.0, "code"), (0, 2))
    theta, sigma, scale = shown.controls
    assert [c.description for c in shown.controls] == ["θ", "σ", "scale"]
    assert shown.image.value == shown.still == explorer.png(explorer.draw_shapes(0.25, 1.0, "code"))
    theta.value = 0.5
    assert shown.image.value == explorer.png(explorer.draw_shapes(0.5, 1.0, "code")) != shown.still
    sigma.value = 2.0
    scale.value = "text"
    assert shown.image.value == explorer.png(explorer.draw_shapes(0.5, 2.0, "text"))


def bundle():
    return explorer.Explorer(draw_updates, (5.0, 1.0, "text"), (0, 9))._repr_mimebundle_()


def test_a_front_end_chooses_between_sliders_and_a_picture(monkeypatch):
    live = bundle()
    assert live[VIEW]["model_id"]
    assert live["text/plain"] == "picture at θ = 5, σ = 1, scale text"
    still = base64.b64decode(live["image/png"])
    assert still == explorer.png(draw_updates(5.0, 1.0, "text"))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    without = bundle()
    assert set(without) == {"image/png", "text/plain"}
    assert base64.b64decode(without["image/png"]) == still


@pytest.mark.parametrize(
    "damage", [{"cells": [{"cell_type": "code"}]}, {"metadata": {"papermill": 3}}]
)
def test_a_broken_notebook_is_one_line_in_the_report(tmp_path, damage):
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({**nbformat.v4.new_notebook(), **damage}))
    with pytest.raises(UserError, match=r"n\.ipynb is broken \(.*\); delete it and run again"):
        report.section(path, "n")


def test_the_report_shows_the_picture_and_not_dead_sliders(tmp_path):
    cell = nbformat.v4.new_code_cell(
        "shown", outputs=[nbformat.v4.new_output("display_data", data=bundle())]
    )
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "n.ipynb")
    page = report.section(tmp_path / "n.ipynb", "n").body
    assert "data:image/png" in page
    assert "model_id" not in page
