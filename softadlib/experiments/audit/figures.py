"""Pictures of the audit: comparisons as intervals, weights along a run. No file is opened here."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from softadlib.analysis import paper
from softadlib.analysis.readings import percent
from softadlib.experiments.audit.claims import REPLAY, label

RULES = {"largest": ("0.15", "o"), "smallest": ("0.55", "s")}
"""Colour and marker of each tie rule."""
DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
"""Line styles of the label noises, the smallest first."""
STAT_LABELS = {
    "weight": "mean |w|",
    "ascent": "share with ℓ < θ",
    "ascent_weight": "mean |w| of those",
}


def intervals(
    tables: Mapping[str, pd.DataFrame], claim: str, unit: str, order: Sequence[str]
) -> Figure:
    """Draw SoftAD minus each rival with Student's 95 % interval: a panel per dataset and label noise.

    `tables`: tie rule → `audit.compare`. A hollow mark is a comparison that the
    exact test leaves open; a single trial has no interval.
    """
    every = pd.concat(tables.values())
    cases = every.groupby(["dataset", "label_noise"]).groups
    cases = {
        (d, q): cases[d, q] for d in paper.in_order(every["dataset"]) for c, q in cases if c == d
    }
    rivals = [r for r in order if (every["against"] == r).any()]
    columns = min(len(cases), 3)
    rows = -(-len(cases) // columns)
    size = (2.9 * columns + 0.8, (0.3 * len(rivals) + 0.75) * rows + 0.7)
    grid: dict[str, Any] = {"figsize": size, "sharey": True, "squeeze": False}
    fig: Figure
    fig, axes = plt.subplots(rows, columns, **grid)
    for ax in axes.flat[len(cases) :]:
        ax.set_axis_off()
    for ax, ((dataset, noise), case) in zip(axes.flat, cases.items()):
        for shift, (rule, table) in zip((-0.14, 0.14), tables.items()):
            _marks(ax, table.loc[table.index.isin(case)], rivals, shift, *RULES[rule])
        ax.axvline(0, color="0.3", linewidth=1)
        ax.set_title(dataset + (f", {percent(noise)} flipped" if noise else ""))
        ax.set_yticks(range(len(rivals)), [label(r) for r in rivals])
        ax.set_ylim(len(rivals) - 0.5, -0.5)
        ax.xaxis.set_major_locator(MaxNLocator(4))
    name = f"SoftAD − rival, {claim} ({unit})" if unit else f"SoftAD − rival, {claim}"
    fig.supxlabel(name, fontsize="medium")
    handles = [
        Line2D([], [], color=colour, marker=mark, label=f"ties to the {rule}")
        for rule, (colour, mark) in RULES.items()
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=2, fontsize="small")
    return fig


def _marks(
    ax: Axes, part: pd.DataFrame, rivals: Sequence[str], shift: float, colour: str, mark: str
) -> None:
    part = part.set_index("against")
    for row, rival in enumerate(rivals):
        if rival not in part.index:
            continue
        comparison = part.loc[rival]
        if np.isfinite(comparison["low"]):
            ax.hlines(row + shift, *comparison[["low", "high"]], color=colour, linewidth=1.8)
        face = "white" if comparison["finds"] == "open" else colour
        ax.plot([comparison["mean"]], [row + shift], mark, color=colour, ms=5, markerfacecolor=face)


def weights(chosen: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the trials' mean `controls.WEIGHT_STATS`: a column per dataset, a line per rule and noise.

    `chosen`: tie rule → the rows of the watched runs that it selects.
    """
    every = pd.concat(chosen.values())
    every = every[every["control"] == REPLAY]
    datasets, noises = paper.in_order(every["dataset"]), sorted(every["label_noise"].unique())
    shape: dict[str, Any] = {"sharex": "col", "sharey": "row", "squeeze": False}
    fig: Figure
    fig, axes = plt.subplots(
        len(STAT_LABELS), len(datasets), figsize=(min(2.6 * len(datasets), 9.5), 6), **shape
    )
    for column, dataset in zip(axes.T, datasets):
        for rule, rows in chosen.items():
            rows = rows[(rows["control"] == REPLAY) & (rows["dataset"] == dataset)]
            for dash, noise in zip(DASHES, noises):
                mean = rows[rows["label_noise"] == noise].groupby("epoch")[list(STAT_LABELS)].mean()
                for ax, name in zip(column, STAT_LABELS):
                    ax.plot(mean.index, mean[name], dash, color=RULES[rule][0], linewidth=1.4)
        column[0].set_title(dataset)
        column[-1].set_xlabel("epoch")
        column[1].set_ylim(-0.02, 1.02)
    for ax, text in zip(axes[:, 0], STAT_LABELS.values()):
        ax.set_ylabel(text)
    handles = [Line2D([], [], color=c, label=f"ties to the {r}") for r, (c, _) in RULES.items()]
    for dash, noise in zip(DASHES, noises if len(noises) > 1 else ()):
        handles.append(
            Line2D([], [], color="0.4", linestyle=dash, label=f"{percent(noise)} flipped")
        )
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize="small")
    return fig
