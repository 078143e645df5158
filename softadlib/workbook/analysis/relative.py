"""Test loss relative to plain training with early stopping: numbers and one picture of many data sets."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
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
SCALED = "one temperature"
ENTRIES = (
    ("erm", LAST),
    ("erm", SCALED),
    ("softad", LAST),
    ("softad", BEST),
    ("sam", BEST),
)
"""Method and side of the marks of `relative_picture`, from the top of a line down."""
SHIFT = 0.13
"""Vertical distance between two marks of one line, so that none covers another."""
RANGE = (0.5, 2.1)
"""Ratios that `relative_picture` shows; an arrow stands for one beyond."""
TICKS = (0.5, 0.7, 1, 1.4, 2)
"""Marked ratios."""


def chosen_losses(rows: pd.DataFrame) -> pd.DataFrame:
    """Return test loss and accuracy of the run that each method selects, at its last and at its best epoch.

    Of each dataset, fraction of flipped labels, method and trial the value with the lowest validation
    loss is selected, once among the last epochs and once among the best ones (early stopping). ERM
    stands once more with the test loss after one temperature, where it is stored: its last epoch,
    divided by the temperature that the validation data ask for.

    Args:
        rows: of a profile with `best_epoch`.

    Raises MissingData for others.
    """
    if lack := lacks_best_epochs(rows):
        raise MissingData(lack)
    last = results.select(results.final(rows), "loss").assign(side=LAST)
    best = results.select(results.best(rows), "loss").assign(side=BEST)
    sides = [last, best]
    if "prior_loss_test" in rows:
        scaled = last[(last["method"] == "erm") & last["prior_loss_test"].notna()]
        sides.append(scaled.assign(side=SCALED, loss_test=scaled["prior_loss_test"]))
    columns = ["dataset", "label_noise", "method", "side", "trial", "loss_test", "acc_test"]
    return pd.concat(sides, ignore_index=True)[columns]


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

    Open marks are last epochs. In the shaded half a method is better than ERM stopped early. A mark
    beyond `RANGE` is an arrow with its number.

    Args:
        table: rows of `relative_to_stopped_erm` with a column `set`, the label of a line.
    """
    labels = list(dict.fromkeys(table["set"]))
    fig, axes = plots.panels(height=1.0 + 0.6 * len(labels))
    ax = axes[0, 0]
    ax.axvspan(RANGE[0], 1, color="0.95", zorder=0)
    ax.axvline(1, color="black", linewidth=1)
    measured = set(zip(table["method"], table["side"]))
    entries = [entry for entry in ENTRIES if entry in measured]
    for place, (method, side) in enumerate(entries):
        of = table[(table["method"] == method) & (table["side"] == side)].set_index("set")
        of = of.reindex(labels)
        height = np.arange(len(labels)) + SHIFT * (place - (len(entries) - 1) / 2) + 0.11
        low, high = of["low"].clip(*RANGE), of["high"].clip(*RANGE)
        ax.hlines(height, low, high, color=plots.PALETTE[method], linewidth=1.2)
        inside = of["ratio"].between(*RANGE)
        mark = _mark(method, side)
        ax.plot(of["ratio"].where(inside), height, markersize=5, clip_on=False, **mark)
        for ratio, y in zip(of["ratio"][~inside].dropna(), height[~inside & of["ratio"].notna()]):
            _beyond(ax, ratio, y, mark["color"])
    ax.set(xscale="log", xlim=RANGE, xlabel="test loss / test loss of ERM stopped early")
    ax.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    ax.minorticks_off()
    ax.grid(axis="y", visible=False)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    above: dict[str, Any] = {"fontsize": "small", "xycoords": ax.get_yaxis_transform()}
    for line, label in enumerate(labels):
        ax.axhline(line - 0.5, color="0.85", linewidth=0.8, zorder=0)
        ax.annotate(label, (0, line - 0.5), (3, -9), textcoords="offset points", **above)
    ax.annotate("← better", (0, 1), (0, 3), textcoords="offset points", xycoords="axes fraction")
    handles = []
    for method, side in entries:
        label = f"{METHODS[method].label}, {side}"
        handles.append(Line2D([], [], label=label, markersize=5, **_mark(method, side)))
    fig.legend(handles=handles, loc="outside upper center", ncols=2, fontsize="small")
    return fig


def _beyond(ax: Axes, ratio: float, y: float, colour: str) -> None:
    """Draw an arrow at the edge for a ratio outside `RANGE`, with its number."""
    left = ratio < RANGE[0]
    edge = RANGE[0] if left else RANGE[1]
    ax.plot(edge, y, "<" if left else ">", color=colour, markersize=5, clip_on=False)
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": "small"}
    place, side = ((6, 0), "left") if left else ((-6, 0), "right")
    ax.annotate(f"{ratio:.2f}", (edge, y), place, ha=side, color=colour, **beside)


def _mark(method: str, side: str) -> dict[str, Any]:
    """Return the mark of a method: open at the last epoch, a diamond after one temperature."""
    colour = plots.PALETTE[method]
    face = "white" if side == LAST else colour
    mark = "D" if side == SCALED else plots.MARKS[method]
    return {"linestyle": "", "color": colour, "marker": mark, "markerfacecolor": face}
