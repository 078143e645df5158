"""The exact tests of a profile in its README, against signs counted by hand."""

import math

import pandas as pd
import pytest

from softadlib._validation import UserError
from softadlib.experiments.audit import page
from softadlib.results.schema import COLUMNS, MEASURES


def rows_of(trials: int, dataset: str, **loss_test: float) -> pd.DataFrame:
    """Final rows of methods with one value each; trials differ a little, alike for all methods."""
    lines = []
    for method, loss in loss_test.items():
        for trial in range(trials):
            numbers = dict.fromkeys(MEASURES, 0.5) | {"loss_test": loss + trial / 100}
            facts = {"dataset": dataset, "method": method, "trial": trial, "epoch": 1}
            facts |= {"knob": math.nan if method == "erm" else 0.1, "label_noise": 0.0}
            lines.append(facts | numbers)
    return pd.DataFrame(lines)[[*COLUMNS, "label_noise"]]


@pytest.fixture
def stored(monkeypatch):
    """Take these rows for those of every profile, without controls."""

    def store(*frames: pd.DataFrame) -> None:
        rows = pd.concat(frames, ignore_index=True)
        monkeypatch.setattr(page.reader, "read", lambda profile, final=False: rows)
        monkeypatch.setattr(page.reader, "provenances", lambda profile: rows)
        monkeypatch.setattr(
            page.controls, "read", lambda profile: pd.DataFrame(columns=page.controls.TABLE)
        )
        names = dict.fromkeys(rows["dataset"], "")
        monkeypatch.setattr(page.coverage, "labels", lambda provenances: names)

    return store


def test_each_comparison_stands_in_its_cell(stored):
    """Of six differences of one sign the exact p is 2/2⁶ = .031; of five it is .0625."""
    six = rows_of(6, "gaussian", erm=0.3, flooding=0.1, softad=0.2)
    five = rows_of(5, "spiral", erm=0.3, softad=0.2)
    stored(six, five)
    table = page.table(page.findings("tiny")).set_index(["SoftAD has", "than"])
    assert list(table) == ["gaussian, largest", "gaussian, smallest"]
    cells = table["gaussian, largest"]
    assert cells["a smaller test loss", "ERM"] == cells["a smaller gap", "ERM"] == "yes"
    assert cells["a smaller test loss", "Flooding"] == cells["a smaller gap", "Flooding"] == "no"
    assert cells["a larger θ", "Flooding"] == "open", "all equal"
    assert cells[page.ACCURACY, "ERM"] == "yes", "no trial differs"


def test_the_sentences_count_what_the_table_holds(stored):
    stored(
        rows_of(6, "gaussian", erm=0.3, flooding=0.1, softad=0.2),
        rows_of(5, "spiral", erm=0.3, softad=0.2),
    )
    text = page.tests("tiny")
    assert (
        "  - SoftAD has a smaller test loss than the other methods: found in 1 of 2 comparisons, "
        "the contrary in 1.\n"
    ) in text.partition("- With ties to the smallest value:")[0]
    assert "Left out, without 6 trials of SoftAD and a rival: spiral.\n" in text
    assert "matched step" not in text.split("SoftAD is compared")[0], "there are no controls"


def test_a_comparison_with_few_trials_shows_their_number(stored):
    few = rows_of(3, "gaussian", sam=0.4)
    stored(rows_of(6, "gaussian", erm=0.3, softad=0.2), few)
    cells = page.table(page.findings("tiny")).set_index(["SoftAD has", "than"])["gaussian, largest"]
    assert cells["a smaller gap", "SAM"] == "n = 3"


def test_too_few_trials_everywhere_are_refused(stored):
    stored(rows_of(5, "spiral", erm=0.3, softad=0.2))
    with pytest.raises(UserError, match="no comparison in profile 'tiny' has 6 trials"):
        page.tests("tiny")
