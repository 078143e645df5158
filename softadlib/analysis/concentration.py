"""How the losses of single samples lie around θ, from the quantiles of `results.read_losses`.

A run has its own θ; a method without one gets the θ of SoftAD's selected run in the same trial.
Shares come from 101 quantiles by linear interpolation, so they are right to one in a hundred.
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from softadlib import results
from softadlib._validation import MissingData
from softadlib.analysis import tables
from softadlib.analysis.statistics import mean_interval
from softadlib.methods import METHODS

WIDTH = 0.1
"""A loss is near θ if it is within this many nats of it, and within θ/2."""
STAGES = ("start", "quarter", "half", "three quarters", "end")
"""Parts of training after which losses are stored."""
MEASURES = ("near", "spread", "below")
CELLS = {
    "theta": tables.Cell("θ", 2),
    "near": tables.Cell(f"within min({WIDTH}, θ/2) of θ, %", 0, 100),
    "spread": tables.Cell("interquartile range, nats"),
    "below": tables.Cell("below θ/2, %", 0, 100),
    "start": tables.Cell("near before the first step, %", 0, 100),
}
"""How `tables.render` writes the columns."""


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
    has_theta = rows["method"].map({n: m.knob == "theta" for n, m in METHODS.items()})
    case = ["dataset", "label_noise", "trial"]
    softad = rows[rows["method"] == "softad"].drop_duplicates(case).set_index(case)["knob"]
    other = rows[case].join(softad.rename("theta"), on=case)["theta"]
    return rows.assign(theta=rows["knob"].where(has_theta, other)).dropna(subset=["theta"])


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `with_theta` of the rows and MEASURES, a line per run, epoch and part."""
    rows = with_theta(rows)
    lines = []
    for q, theta in zip(rows["quantiles"], rows["theta"]):
        width = min(WIDTH, theta / 2)
        low, high, half = share_below(q, [theta - width, theta + width, theta / 2])
        lines.append((high - low, float(np.quantile(q, 0.75) - np.quantile(q, 0.25)), half))
    return rows.assign(**dict(zip(MEASURES, np.array(lines).reshape(-1, 3).T)))


def concentration(rows: pd.DataFrame, part: str = "train") -> pd.DataFrame:
    """Return mean θ, MEASURES with Student's intervals and n at the last epoch, per dataset and method.

    `start` is the share near θ before the first step.
    """
    rows = shares(rows[rows["part"] == part])
    lines = []
    for (dataset, method), runs in rows.groupby(["dataset", "method"]):
        ends = results.final(runs)
        line = {"dataset": dataset, "method": method, "n": len(ends), "theta": ends["theta"].mean()}
        for name in MEASURES:
            line[name], line[f"{name}_low"], line[f"{name}_high"], _ = mean_interval(ends[name])
        lines.append(line | {"start": runs.loc[runs["epoch"] == 0, "near"].mean()})
    return tables.ordered(pd.DataFrame(lines))


def development(rows: pd.DataFrame, part: str = "train") -> pd.DataFrame:
    """Return mean share of losses near θ per dataset and method (rows) at each stage of training (columns)."""
    rows = shares(rows[rows["part"] == part])
    means = rows.groupby(["dataset", "method", "epoch"])["near"].mean().reset_index()
    ends = means.groupby(["dataset", "method"])["epoch"].transform("max").clip(lower=1)
    means["stage"] = (4 * means["epoch"] / ends).round().astype(int)
    means = means.drop_duplicates(["dataset", "method", "stage"], keep="last")
    table = means.pivot(index=["dataset", "method"], columns="stage", values="near")
    table = tables.ordered(table.rename(columns=dict(enumerate(STAGES))).reset_index())
    return table.set_index(["dataset", "method"]).rename_axis(columns=None)
