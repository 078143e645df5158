"""Pages drawn of the committed profiles that they were not written for: drawn, or refused in one line."""

import contextlib
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import pytest
from helpers.workspace import REPOSITORY

from softadlib._validation import MissingData
from softadlib.methods import METHODS, PAPER
from softadlib.workbook.pages.notebooks import without_conclusions

PAGES = (
    "calibration",
    "claims",
    "compare",
    "gap",
    "rivals",
    "tab1_3_loss_gaps",
    "tab2_4_hyperparameters",
)
PROFILES = ("fashion-40", "flooding-text", "full-batch", "images", "smoke")


def draw(page, profile):
    """Execute the cells that are not written for one profile alone; return their names, and what they showed."""
    notebook = nbformat.read(REPOSITORY / f"notebooks/{page}.ipynb", as_version=4)
    mpl.use("Agg")
    shown = []
    space = {"display": shown.append}
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", ())
        if cell.cell_type == "code" and "stored" not in tags:
            exec(cell.source, space)
            plt.close("all")
        if "parameters" in tags:
            space["profile"] = profile
    return space, shown


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_drawn_of_a_profile_or_says_what_it_lacks(page, profile):
    with contextlib.suppress(MissingData):
        draw(page, profile)


@pytest.mark.parametrize("page", PAGES)
def test_the_text_of_a_page_names_no_method_that_a_profile_may_not_have(page):
    """What stays where the conclusions of our own results are left out; the paper's methods may be named."""
    cells = nbformat.read(REPOSITORY / f"notebooks/{page}.ipynb", as_version=4).cells
    kept = [c.source for c in without_conclusions(cells) if c.cell_type == "markdown"]
    others = {method.label for name, method in METHODS.items() if name not in PAPER}
    words = re.findall(r"[\w-]+", "\n".join(kept))
    assert others.isdisjoint(words)


def test_the_report_of_another_profile_has_no_numbers_of_the_projects_own():
    """`rivals` has losses of single images of its digits, `paper` a profile with flipped labels beside it."""
    space, shown = draw("rivals", "images")
    assert "by_image" not in space
    assert shown
    assert not any("digits" in repr(table) or "355" in repr(table) for table in shown)
    space, shown = draw("tab1_3_loss_gaps", "smoke")
    assert space["noisy"] is None
    assert shown
    assert not any("0.315" in repr(table) for table in shown), "the gap of ERM on spiral in `paper`"
