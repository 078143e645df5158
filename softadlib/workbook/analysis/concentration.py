"""How the losses of single samples lie around θ, from the quantiles of `results.read_losses`.

A run has its own θ; a method without one gets the θ of SoftAD's selected run in the same trial.
Shares come from 101 quantiles by linear interpolation, so they are right to one in a hundred.
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from softadlib._validation import MissingData
from softadlib.methods import METHODS
from softadlib.workbook.analysis import tables
from softadlib.workbook.studies import results

WIDTH = 0.1
"""A loss is near θ if it is within this many nats of it."""
MEASURES = ("near", "spread")
"""The share of samples near θ, and the interquartile range of their losses in nats."""


def read(profile: str, label_noise: float = 0.0) -> pd.DataFrame:
    """Return `results.read_losses`; UserError, in one line, where a profile has none."""
    rows = results.read_losses(profile, label_noise=label_noise)
    rows = rows[rows["quantiles"].notna()]  # a study with best_epoch has none
    if with_theta(rows).empty:
        raise MissingData(
            f"profile {profile!r} has no losses of single samples of a method with a θ at label noise "
            f"{label_noise:g}; curves: selected, without best_epoch, stores them"
        )
    return rows


def share_below(quantiles: np.ndarray, values: ArrayLike) -> np.ndarray:
    """Return the share of samples with a loss of at most each value: the inverse of quantiles (q,)."""
    levels = np.linspace(0, 1, len(quantiles))
    wanted = np.asarray(values, dtype=float)
    return np.asarray(np.interp(wanted, quantiles, levels, left=0, right=1))


def with_theta(rows: pd.DataFrame) -> pd.DataFrame:
    """Add a column `theta`; rows without any θ are left out."""
    has_theta = rows["method"].map({n: m.hyperparameter == "theta" for n, m in METHODS.items()})
    case = ["dataset", "label_noise", "trial"]
    softad = rows[rows["method"] == "softad"].drop_duplicates(case).set_index(case)["knob"]
    other = rows[case].join(softad.rename("theta"), on=case)["theta"]
    return rows.assign(theta=rows["knob"].where(has_theta, other)).dropna(subset=["theta"])


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `with_theta` of the rows and MEASURES, a line per run, epoch and part."""
    rows = with_theta(rows)
    near = []
    spread = []
    for quantiles, theta in zip(rows["quantiles"], rows["theta"]):
        below, above = share_below(quantiles, [theta - WIDTH, theta + WIDTH])
        near.append(above - below)
        low, high = np.quantile(quantiles, [0.25, 0.75])
        spread.append(high - low)
    return rows.assign(near=near, spread=spread)


def concentration(rows: pd.DataFrame, split: str = "train") -> pd.DataFrame:
    """Return the means of θ and MEASURES at the last epoch, and n, per dataset and method."""
    ends = results.final(shares(rows[rows["split"] == split]))
    groups = ends.groupby(["dataset", "method"])
    table = groups[["theta", *MEASURES]].mean().assign(n=groups.size())
    return tables.ordered(table.reset_index())
