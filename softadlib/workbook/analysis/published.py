"""The numbers that the paper's tables and the authors' notebooks print."""

from importlib.resources import files

import pandas as pd


def printed(*tables: int) -> pd.DataFrame:
    """Return mean and std (NaN where not printed) of tables of the paper, indexed by (dataset, method).

    A later table adds the cells that earlier ones lack.
    """
    with files("softadlib.workbook.analysis").joinpath("paper_tables.csv").open() as file:
        rows = pd.read_csv(file)
    combined = pd.DataFrame()
    for table in tables:
        part = rows[rows["table"] == table].set_index(["dataset", "method"])[["mean", "std"]]
        combined = combined.combine_first(part) if len(combined) else part
    return combined


def printed_by_authors() -> pd.DataFrame:
    """Return the numbers of the authors' notebooks, a row per dataset, label noise, method and quantity.

    They are means over trials in the stored outputs of github.com/feedbackward/bdd-flood.
    `quantity` is a column of `results.read`. `mean` and `sd` (ddof = 1, NaN where they print none)
    are over `n` trials of the selected runs at the last of `epochs`; `notebook` and `cell` say where.
    """
    with files("softadlib.workbook.analysis").joinpath("authors_outputs.csv").open() as file:
        return pd.read_csv(file, comment="#")


def curves_by_authors() -> pd.DataFrame:
    """Return curves of the authors' notebooks, read off their pictures: a row per dataset, method and tenth epoch.

    Columns: `dataset`, `method`, `epoch`, `loss_test`, `model_norm`; a covered point is NaN.
    """
    with files("softadlib.workbook.analysis").joinpath("authors_curves.csv").open() as file:
        return pd.read_csv(file, comment="#")
