"""What the authors' notebooks print and the paper does not, beside our stored rows.

The numbers are means over trials in the stored outputs of github.com/feedbackward/bdd-flood;
`authors_outputs.csv` names notebook, cell and commit of each.
"""

from collections.abc import Iterable
from importlib.resources import files

import pandas as pd

from softadlib import results
from softadlib.analysis.tables import ordered

CELL = ["dataset", "label_noise", "method", "epochs"]
"""What both sides must share to stand on one line."""


def printed_by_authors() -> pd.DataFrame:
    """Return the numbers of the authors' notebooks, a row per dataset, label noise, method and quantity.

    `quantity` is a column of `results.read`. `mean` and `sd` (ddof = 1, NaN where they print none)
    are over `n` trials of the selected runs at the last of `epochs`; `notebook` and `cell` say where.
    """
    with files("softadlib.analysis").joinpath("authors_outputs.csv").open() as file:
        return pd.read_csv(file, comment="#")


def beside_authors(
    rows: pd.DataFrame, quantities: Iterable[str] = ("knob", "loss_test", "acc_test", "model_norm")
) -> pd.DataFrame:
    """Return the authors' means beside ours, a line per dataset, label noise, method and quantity.

    Our runs are selected as theirs: the highest validation accuracy, ties to the largest value. Only
    runs of as many epochs as theirs are shown, clean labels first.

    Args:
        rows: of one or more profiles, as `results.read` gives them.
        quantities: columns of `rows`, in the order of the lines.

    Columns: `authors`, `authors_sd`, `authors_n`, `ours`, `ours_sd`, `ours_n`; a standard deviation
    (ddof = 1) is NaN where it is not printed, and of a single trial.

    Example:
        >>> from softadlib import results
        >>> beside_authors(results.read("paper", "gaussian"))  # doctest: +SKIP
    """
    quantities = list(quantities)
    selected = results.select(rows, "largest").rename(columns={"epoch": "epochs"})
    ours = selected.melt([*CELL, "trial"], quantities, "quantity")
    ours = ours.groupby([*CELL, "quantity"])["value"].agg(
        ours="mean", ours_sd="std", ours_n="count"
    )

    theirs = printed_by_authors().rename(
        columns={"mean": "authors", "sd": "authors_sd", "n": "authors_n"}
    )
    theirs = theirs[theirs["quantity"].isin(quantities)]
    both = theirs.merge(ours.reset_index(), on=[*CELL, "quantity"])
    numbers = ["authors", "authors_sd", "authors_n", "ours", "ours_sd", "ours_n"]
    both = both[["dataset", "label_noise", "method", "quantity", *numbers]]
    both["quantity"] = pd.Categorical(both["quantity"], quantities)
    both = ordered(both.sort_values("quantity", kind="stable"))
    both["quantity"] = both["quantity"].astype(str)
    return both.sort_values("label_noise", kind="stable", ignore_index=True)
