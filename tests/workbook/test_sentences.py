"""Every sentence that is computed from stored rows turns round where the rows do."""

import re
from functools import partial

import nbformat
import numpy as np
import pytest
from helpers.workspace import REPOSITORY

from softadlib.analysis import concentration, readings, temperature
from softadlib.experiments import beyond
from softadlib.experiments.audit import claims
from softadlib.results import reader, sample_losses, selection
from softadlib.results.schema import LEVELS, MEASURES
from softadlib.workbook import findings
from softadlib.workbook.notebooks.plan import TRAIN

STEEPER = 50
"""Differences are so many times as large in the altered rows: what was within a margin leaves it."""
SIZE_ONLY = re.compile(r"n = \d+( to \d+)?(\.|; sets with fewer than)|At n = ")
"""Sentences on the number of trials alone, which the altered rows keep."""


def altered(rows, measures):
    """Rows whose measures run the other way, the largest value of a set being the smallest; small θ for SoftAD."""
    rows = rows.assign(knob=rows["knob"] / np.where(rows["method"] == "softad", 100, 1))
    for name in measures:
        least = rows.groupby("dataset")[name].transform("min")
        rows[name] = -STEEPER * (rows[name] - least)
    return rows


def spread_out(losses):
    """Single losses of which SoftAD's lie anywhere and all others at the θ they are measured from."""
    theta = concentration.with_theta(losses)["theta"]
    losses = losses.loc[theta.index].copy()
    wide = list(np.linspace(0, 9, len(LEVELS)))
    losses["quantiles"] = [
        wide if method == "softad" else [level] * len(LEVELS)
        for method, level in zip(losses["method"], theta)
    ]
    return losses


@pytest.fixture(scope="module")
def rows():
    rows = reader.read("audit", label_noise=0.0)
    return rows[rows["dataset"].isin(["gaussian", "sinusoid", "spiral"])]


CHOSEN_ALIKE = tuple(name for name in MEASURES if name != "acc_val")
"""What does not decide which runs are selected."""


def means(rows):
    """What `findings.compare` reads."""
    chosen = selection.select(rows)
    chosen = chosen.assign(gap=chosen["loss_test"] - chosen["loss_train"])
    groups = chosen.groupby(["dataset", "method"])
    table = groups[["gap", "loss_test", "acc_test", "model_norm"]].mean()
    return table.assign(n=groups.size()).reset_index()


def audited(rows):
    return claims.readings(claims.verdicts(claims.comparisons(rows, rows[:0].assign(control=""))))


def compared(rows):
    return [line for lines in findings.compare(means(rows)) for line in lines]


def named(rows):
    chosen = selection.select(rows)
    chosen["name"] = chosen["method"].map(beyond.LABELS).replace("iFlood", "iFlood (θ: auto)")
    return beyond.readings(chosen.assign(gap=chosen["loss_test"] - chosen["loss_train"]))


def one_set(rows):
    return readings.trajectory_readings(selection.curves(rows[rows["dataset"] == "spiral"]))


@pytest.mark.parametrize(
    ("sentences", "measures"),
    [
        (readings.gap_readings, CHOSEN_ALIKE),
        (readings.theta_readings, MEASURES),
        (readings.grid_readings, CHOSEN_ALIKE),
        (one_set, CHOSEN_ALIKE),
        (named, CHOSEN_ALIKE),
        (audited, CHOSEN_ALIKE),
        (compared, CHOSEN_ALIKE),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_every_sentence_on_metrics_turns_round(rows, sentences, measures):
    said = sentences(rows)
    assert len(said) > 1
    left = {s for s in said if not SIZE_ONLY.match(s)} & set(sentences(altered(rows, measures)))
    assert left == set()


SCALED_LOSSES = tuple(f"{fit}loss" for fit in temperature.SCALINGS)
TEMPERATURES = ("plain_temperature", "prior_temperature")


@pytest.mark.parametrize(
    ("sentences", "change"),
    [
        (concentration.readings, spread_out),
        (temperature.readings, partial(altered, measures=SCALED_LOSSES)),
        (temperature.best_readings, partial(altered, measures=(*SCALED_LOSSES, *TEMPERATURES))),
    ],
    ids=["concentration", "temperature", "best of all"],
)
def test_every_sentence_on_single_losses_turns_round(sentences, change):
    losses = sample_losses.read("paper", label_noise=0.0)
    losses = losses[losses["dataset"].isin(["gaussian", "sinusoid", "spiral"])]
    said = sentences(losses)
    assert len(said) > 1
    left = {s for s in said if not SIZE_ONLY.match(s)} & set(sentences(change(losses)))
    assert left == set()


def test_no_page_of_a_profile_has_a_sentence_on_results_by_hand():
    """Such pages are drawn from other rows than those they are stored with."""
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        code = next(c.source for c in cells if c.cell_type == "code")
        if re.search(r"^profile: ", code, re.M):
            prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
            assert "We see" not in prose, path.stem
            computed = any("Markdown(" in c.source for c in cells)
            assert computed or path.stem == TRAIN, path.stem
