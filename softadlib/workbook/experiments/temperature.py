"""The temperature of two, from stored rows: what criteria ask for, when that helps, what one temperature leaves."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import gmean

from softadlib import Focal, IFlood, SoftAD
from softadlib.losses.criterion import Criterion
from softadlib.workbook.analysis.relative import BEST, LAST
from softadlib.workbook.experiments.closed_form import rows_by_side
from softadlib.workbook.studies import results
from softadlib.workbook.studies.selection import CASE

TWO_CLASSES = ("gaussian", "sinusoid", "spiral", "chess", "german", "magic", "phoneme", "spambase")
"""Data sets of profile `link` with two classes."""
CRITERIA: dict[str, tuple[str, float, Criterion]] = {
    "iFlood": ("iflood", 0.01, IFlood(0.01)),
    "focal, γ = 2": ("focal", 2.0, Focal(2.0)),
    **{
        f"SoftAD, σ = {sigma:g}": ("softad-width", sigma, SoftAD(0.01, sigma=sigma))
        for sigma in (0.03, 0.1, 0.3, 1.0, 3.0)
    },
}
"""Label → method and hyperparameter in the rows of profile `link`, and the criterion itself."""


def mean_rows(profiles: Sequence[str], side: str = LAST) -> pd.DataFrame:
    """Return one row per profile, data set, label noise, method and hyperparameter: means over trials.

    Columns: `temperature`, fitted on validation data, its geometric mean; `loss`, test loss in nats;
    `loss_after`, test loss after division by each trial's temperature; and n, the number of trials.
    """
    tables = [rows_by_side(profile)[side].assign(profile=profile) for profile in profiles]
    rows = pd.concat(tables, ignore_index=True)
    groups = rows.groupby(["profile", *CASE, "method", "knob"], dropna=False)
    return groups.agg(
        temperature=("prior_temperature", gmean),
        loss=("loss_test", "mean"),
        loss_after=("prior_loss_test", "mean"),
        n=("loss_test", "size"),
    ).reset_index()


def beside_erm(means: pd.DataFrame, method: str, value: float) -> pd.DataFrame:
    """Return one row per profile, data set and label noise: a method at one hyperparameter beside ERM.

    Columns: `temperature` of ERM, `temperature_ratio` T(ERM)/T(method), `ratio` of test losses method/ERM,
    `ratio_after` the same after one temperature for each.
    """
    place = ["profile", *CASE]
    erm = means[means["method"] == "erm"].set_index(place)
    of_method = (means["method"] == method) & np.isclose(means["knob"], value)
    other = means[of_method].set_index(place)
    erm = erm.loc[other.index]
    return pd.DataFrame(
        {
            "temperature": erm["temperature"],
            "temperature_ratio": erm["temperature"] / other["temperature"],
            "ratio": other["loss"] / erm["loss"],
            "ratio_after": other["loss_after"] / erm["loss_after"],
            "n": other["n"],
        }
    ).reset_index()


def without_validation() -> pd.DataFrame:
    """Return SoftAD at θ = 0 trained on the validation rows, too, beside ERM with and without them.

    One row per data set and label noise, means over trials at the last epoch. Columns: `temperature` of
    ERM with validation rows; ratios of test losses, SoftAD's to that of ERM without validation rows
    (`ratio`), of ERM with them after one temperature (`ratio_temperature`), and of SoftAD at θ = 0.01
    (`ratio_theta`); `accuracy`, SoftAD's minus that of ERM with validation rows; and n.
    """
    all_rows = results.final(results.read("no-validation")).set_index("method")
    with_split = pd.concat([results.final(results.read(name)) for name in ("link", "held-out")])
    erm_all = all_rows.loc["erm"].groupby(CASE)["loss_test"].mean()
    erm_split = with_split[with_split["method"] == "erm"].groupby(CASE)
    thetas = all_rows.loc["softad"].groupby("knob")
    softad = thetas.get_group(0.0).groupby(CASE)
    softad_theta = thetas.get_group(0.01).groupby(CASE)["loss_test"].mean()
    loss = softad["loss_test"].mean()
    cells = pd.DataFrame(
        {
            "temperature": erm_split["prior_temperature"].agg(gmean),
            "ratio": loss / erm_all,
            "ratio_temperature": loss / erm_split["prior_loss_test"].mean(),
            "ratio_theta": loss / softad_theta,
            "accuracy": softad["acc_test"].mean() - erm_split["acc_test"].mean(),
            "n": softad.size(),
        }
    )
    return cells.dropna().reset_index()


def asked_and_measured(means: pd.DataFrame) -> pd.DataFrame:
    """Return T(ERM)/T(criterion), as the criterion alone asks for it and as measured, of two classes.

    One row per criterion: `asked`, `measured` the geometric mean over cells, `low` and `high` the
    extreme cells, `cells`. A cell is a data set at one label noise.
    """
    lines = []
    for label, (method, value, criterion) in CRITERIA.items():
        cells = beside_erm(means[means["dataset"].isin(TWO_CLASSES)], method, value)
        ratios = cells["temperature_ratio"]
        lines.append(
            {
                "criterion": label,
                "asked": criterion.temperature(),
                "measured": gmean(ratios),
                "low": ratios.min(),
                "high": ratios.max(),
                "cells": len(ratios),
            }
        )
    return pd.DataFrame(lines)


def right_cells(cells: pd.DataFrame, threshold: float) -> int:
    """Count the cells where the method's test loss is below ERM's exactly if T(ERM) > `threshold`."""
    return int(((cells["temperature"] > threshold) == (cells["ratio"] < 1)).sum())


def distance(ratios: pd.Series) -> float:
    """Return the mean of |ln ratio|: how far a ratio is from 1, whichever is lower."""
    return float(np.log(ratios).abs().mean())


__all__ = [
    "BEST",
    "CRITERIA",
    "LAST",
    "TWO_CLASSES",
    "asked_and_measured",
    "beside_erm",
    "distance",
    "mean_rows",
    "right_cells",
    "without_validation",
]
