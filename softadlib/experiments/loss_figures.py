"""SoftAD around other losses: score, gap and norm against θ, a row a loss."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from softadlib.analysis.plotting.curves import PALETTE, legend_handles

MARKS = (":", "-.", "--")
"""Line styles of a loss's marked levels, from the lowest."""


def loss_panels(
    rows: pd.DataFrame, scores: Mapping[str, str], marks: Mapping[str, Mapping[str, float]]
) -> Figure:
    """Rows of `loss_demos.sweep`: mean over trials, band from min to max, ERM's mean dashed.

    `scores`: loss → axis label of its test score. `marks`: loss → named levels of θ, drawn upright.
    """
    panels = {"score_test": None, "gap": "gap, test − train loss", "norm": "model norm"}
    size: dict[str, Any] = {"figsize": (9.5, 2.5 * len(scores) + 0.4), "squeeze": False}
    fig, axes = plt.subplots(len(scores), len(panels), **size)
    for line, (loss, score) in zip(axes, scores.items()):
        mine = rows[rows["loss"] == loss]
        swept, erm = mine[mine["theta"].notna()], mine[mine["theta"].isna()]
        for ax, (column, label) in zip(line, panels.items()):
            hue = {"hue": "method", "palette": PALETTE, "legend": False}
            dots = {"marker": "o", "markersize": 4, "errorbar": ("pi", 100)}
            sns.lineplot(swept, x="theta", y=column, ax=ax, **hue, **dots)
            ax.axhline(erm[column].mean(), color=PALETTE["erm"], linestyle="--", linewidth=1.2)
            ax.set(xscale="log", xlabel="θ", ylabel=label or score)
            ax.xaxis.set_major_locator(FixedLocator(sorted(swept["theta"].unique())))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            for style, (name, level) in zip(MARKS, marks.get(loss, {}).items()):
                ax.axvline(level, color="0.35", linestyle=style, linewidth=1.2, label=name)
        line[0].set_title(loss, loc="left")
        if marks.get(loss):
            line[0].legend(fontsize="x-small", frameon=True, edgecolor="none", framealpha=1)
    handles = legend_handles(rows.assign(epoch=0))
    handles[0].set_linestyle("--")
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return fig
