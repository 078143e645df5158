"""Test loss relative to plain training with early stopping: numbers and one picture of many data sets."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from softadlib._validation import MissingData
from softadlib.methods import METHODS
from softadlib.workbook.analysis import plots
from softadlib.workbook.analysis.statistics import mean_interval
from softadlib.workbook.studies import results
from softadlib.workbook.studies.selection import lacks_best_epochs

LAST = "last epoch"
BEST = "stopped early"
ENTRIES = (("erm", LAST), ("softad", LAST), ("softad", BEST), ("sam", BEST))
"""Method and epoch of the marks of `relative_picture`."""
SHIFT = 0.16
"""Vertical distance between two marks of one line, so that none covers another."""
TICKS = (0.33, 0.5, 1, 2)
"""Marked ratios."""


def chosen_losses(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the test loss of the run that each method selects, at its last and at its best epoch.

    Of each dataset, fraction of flipped labels, method and trial the value with the lowest validation
    loss is selected, once among the last epochs and once among the best ones (early stopping).

    Args:
        rows: of a profile with `best_epoch`.

    Raises MissingData for others.
    """
    if lack := lacks_best_epochs(rows):
        raise MissingData(lack)
    last = results.select(results.final(rows), "loss").assign(side=LAST)
    best = results.select(results.best(rows), "loss").assign(side=BEST)
    columns = ["dataset", "label_noise", "method", "side", "trial", "loss_test"]
    return pd.concat([last, best], ignore_index=True)[columns]


def relative_to_stopped_erm(losses: pd.DataFrame, across: str = "trial") -> pd.DataFrame:
    r"""Return the geometric mean of $\ell_{\text{method}} / \ell_{\text{ERM, stopped early}}$, with an interval.

    Args:
        losses: what `chosen_losses` returns.
        across: "trial" compares within each trial of one dataset; "dataset" compares the means of
            each dataset over its trials.

    Returns a row per method and side: `ratio`, `low` and `high` (Student's 95 % interval of the mean
    logarithm, NaN for fewer than three), and `n`, how many trials or datasets.
    """
    means = losses.groupby(["method", "side", across])["loss_test"].mean()
    reference = means["erm", BEST]
    lines = []
    for (method, side), values in means.groupby(level=["method", "side"]):
        ratios = values.droplevel(["method", "side"]) / reference
        logs = np.log(ratios.dropna())
        mean, low, high, n = mean_interval(logs)
        if n < 3:
            low, high = np.nan, np.nan
        ends = {"ratio": np.exp(mean), "low": np.exp(low), "high": np.exp(high)}
        lines.append({"method": method, "side": side, **ends, "n": n})
    return pd.DataFrame(lines)


def relative_picture(table: pd.DataFrame) -> Figure:
    """Draw ratios of test losses, a line of marks per value of `set`, on a logarithmic axis.

    Open marks are last epochs, filled marks are stopped early; left of 1 is better than ERM stopped early.

    Args:
        table: rows of `relative_to_stopped_erm` with a column `set`, the label of a line.
    """
    labels = list(dict.fromkeys(table["set"]))
    fig: Figure
    fig, ax = plt.subplots(figsize=(plots.WIDTH, 0.9 + 0.44 * len(labels)))
    measured = set(zip(table["method"], table["side"]))
    entries = [entry for entry in ENTRIES if entry in measured]
    for place, (method, side) in enumerate(entries):
        of = table[(table["method"] == method) & (table["side"] == side)].set_index("set")
        of = of.reindex(labels)
        height = np.arange(len(labels)) + SHIFT * (place - (len(entries) - 1) / 2)
        ax.hlines(height, of["low"], of["high"], color=plots.PALETTE[method], linewidth=1.2)
        ax.plot(of["ratio"], height, markersize=6, **_mark(method, side))
    ax.axvline(1, color="black", linewidth=1)
    ax.set_xscale("log")
    ax.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    ax.minorticks_off()
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlabel("← better      test loss / test loss of ERM stopped early")
    handles = []
    for method, side in entries:
        label = f"{METHODS[method].label}, {side}"
        handles.append(Line2D([], [], label=label, **_mark(method, side)))
    fig.legend(handles=handles, loc="outside upper center", ncols=2)
    return fig


def _mark(method: str, side: str) -> dict[str, Any]:
    """Return the mark of a method: open at the last epoch, filled where it stopped early."""
    colour = plots.PALETTE[method]
    face = "white" if side == LAST else colour
    mark = plots.MARKS[method]
    return {"linestyle": "", "color": colour, "marker": mark, "markerfacecolor": face}
