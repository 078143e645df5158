"""What is left after one temperature: against pandas on the stored files themselves."""

import pandas as pd
import pytest
from helpers.workspace import REPOSITORY

from softadlib.workbook.experiments import left
from softadlib.workbook.studies.params import load

FOLDER = REPOSITORY / "outputs" / "rivals" / "gaussian"
GRIDS = load("rivals", "gaussian").grids


def lowest(method, rule, shown):
    """Return, by trial, `shown` of the last epoch's row with the lowest `rule`, from the file alone."""
    rows = pd.read_parquet(FOLDER / f"{method}.parquet")
    if method in GRIDS:  # the file also holds values of an earlier grid
        rows = rows[rows["knob"].isin(GRIDS[method])]
    last = rows[rows["epoch"] == rows["epoch"].max()].reset_index(drop=True)
    return last.loc[last.groupby("trial")[rule].idxmin()].set_index("trial")[shown]


@pytest.mark.parametrize("method", ["softad", "sam"])
def test_gains_are_those_of_the_files(method):
    gains = left.gains("rivals")
    place = (gains["dataset"] == "gaussian") & (gains["method"] == method)
    (row,) = gains[place & (gains["side"] == left.LAST)].itertuples()
    raw = lowest("erm", "loss_val", "loss_test") - lowest(method, "loss_val", "loss_test")
    after = lowest("erm", "prior_loss_val", "prior_loss_test")
    after = after - lowest(method, "prior_loss_val", "prior_loss_test")
    assert row.raw == pytest.approx(raw.mean(), rel=1e-6)
    assert row.left == pytest.approx(after.mean(), rel=1e-6)
    assert row.low < row.left < row.high
    assert row.n == 15
