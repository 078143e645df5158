"""The temperature of two: against the stored files, read by pandas alone."""

import numpy as np
import pandas as pd
import pytest
from helpers.workspace import REPOSITORY

from softadlib.workbook.experiments import temperature

FOLDER = REPOSITORY / "outputs" / "link" / "spambase"


def last(method):
    """Return the rows of one study at the last epoch, without flipped labels."""
    rows = pd.read_parquet(FOLDER / f"{method}.parquet")
    return rows[(rows["epoch"] == rows["epoch"].max()) & (rows["label_noise"] == 0)]


def test_a_cell_is_that_of_the_files():
    cells = temperature.beside_erm(temperature.mean_rows(["link"]), "softad", 0.01)
    place = (cells["dataset"] == "spambase") & (cells["label_noise"] == 0)
    (cell,) = cells[place].itertuples()
    erm, soft = last("erm"), last("softad")
    soft = soft[np.isclose(soft["knob"], 0.01)]
    logs = [np.log(rows["prior_temperature"]).mean() for rows in (erm, soft)]
    assert cell.temperature == pytest.approx(np.exp(logs[0]), rel=1e-9)
    assert cell.temperature_ratio == pytest.approx(np.exp(logs[0] - logs[1]), rel=1e-9)
    losses = [rows["loss_test"].mean() for rows in (soft, erm)]
    assert cell.ratio == pytest.approx(losses[0] / losses[1], rel=1e-9)
    after = [rows["prior_loss_test"].mean() for rows in (soft, erm)]
    assert cell.ratio_after == pytest.approx(after[0] / after[1], rel=1e-9)
    assert cell.n == 10


def test_a_cell_without_validation_is_that_of_the_files():
    """SoftAD on all rows of `no-validation` beside ERM of `link`, which keeps rows for its temperature."""
    cells = temperature.without_validation()
    place = (cells["dataset"] == "spambase") & (cells["label_noise"] == 0.2)
    (cell,) = cells[place].itertuples()

    def last_of(profile, method):
        rows = pd.read_parquet(REPOSITORY / f"outputs/{profile}/spambase/{method}.parquet")
        return rows[(rows["epoch"] == 40) & (rows["label_noise"] == 0.2)]

    erm, plain, softad = (
        last_of("link", "erm"),
        last_of("no-validation", "erm"),
        last_of("no-validation", "softad"),
    )
    zero, hundredth = (softad[softad["knob"] == theta] for theta in (0.0, 0.01))
    loss = zero["loss_test"].mean()
    assert cell.temperature == pytest.approx(np.exp(np.log(erm["prior_temperature"]).mean()))
    assert cell.ratio == pytest.approx(loss / plain["loss_test"].mean())
    assert cell.ratio_temperature == pytest.approx(loss / erm["prior_loss_test"].mean())
    assert cell.ratio_theta == pytest.approx(loss / hundredth["loss_test"].mean())
    assert cell.accuracy == pytest.approx(zero["acc_test"].mean() - erm["acc_test"].mean())
    assert cell.n == 10
    assert len(cells) == 60


def test_right_cells_are_counted_on_both_sides_of_a_threshold():
    cells = pd.DataFrame({"temperature": [1.0, 1.0, 2.0, 2.0], "ratio": [1.1, 0.9, 1.1, 0.9]})
    assert temperature.right_cells(cells, 1.4) == 2  # the first and the last
    assert temperature.right_cells(cells, 0.5) == 2  # all predicted lower
    assert temperature.right_cells(cells, 3.0) == 2  # none


def test_a_distance_is_the_same_for_a_ratio_and_its_inverse():
    assert temperature.distance(pd.Series([2.0, 0.5])) == pytest.approx(np.log(2))
