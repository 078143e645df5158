"""Pictures of the cliff at θ = ln 2: tables in, Axes or Figure out. No file is opened here."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from softadlib.analysis.plotting.curves import HALO, NAMES, PALETTE, cell_edges, mark_log
from softadlib.methods import METHODS


def minimiser_map(ax: Axes, table: pd.DataFrame) -> QuadMesh:
    """Draw p* of class 1 coloured about ½: columns θ, rows its probability η; both borders marked."""
    grid = cell_edges(table.columns), cell_edges(table.index)
    mesh = ax.pcolormesh(*grid, table, cmap="RdBu_r", vmin=0, vmax=1, rasterized=True)
    ax.grid(False)
    ax.axhline(0.5, color="0.25", linestyle=":", linewidth=1.4, path_effects=HALO)
    mark_log(ax)
    ax.set(xlabel=METHODS["softad"].axis, ylabel="η = P(class 1 | x)")
    return mesh


def through(
    tables: Mapping[str, pd.DataFrame],
    classes: Mapping[str, int],
    theory: Mapping[str, pd.DataFrame] | None = None,
    methods: Sequence[str] = ("flooding", "iflood", "softad"),
) -> Figure:
    """Test accuracy and test loss against θ, a column per dataset: mean over trials, band min to max.

    `tables`: the last epoch of every run of one dataset each. `theory`: accuracy and loss of SoftAD's
    minimiser, indexed by θ, drawn in grey where given; in the loss, θ itself where not. ERM is level.
    """
    shape: dict[str, Any] = {"sharex": "col", "sharey": "row", "squeeze": False}
    fig: Figure
    fig, axes = plt.subplots(2, len(tables), figsize=(3.6 * len(tables), 5.4), **shape)
    for column, (name, rows) in zip(axes.T, tables.items()):
        minimiser = (theory or {}).get(name)
        for ax, measure in zip(column, ("acc_test", "loss_test")):
            _draw_minimiser(ax, rows, minimiser, measure)
            for method in methods:
                _band(ax, rows[rows["method"] == method], measure, PALETTE[method])
            level = rows.loc[rows["method"] == "erm", measure].mean()
            ax.axhline(level, color=PALETTE["erm"], linestyle="--", linewidth=1.2)
            top = ax is column[0]
            for count in sorted({2, classes[name]}):
                mark_log(ax, count, label=top)
        column[0].set_title(name, pad=16)
        column[1].set_xlabel(METHODS["softad"].axis)
    axes[0, 0].set_ylabel(f"test {NAMES['acc']}")
    axes[1, 0].set_ylabel(f"test {NAMES['loss']}")
    handles = [Line2D([], [], color=PALETTE[m], label=METHODS[m].label) for m in methods]
    handles.append(Line2D([], [], color=PALETTE["erm"], linestyle="--", label="ERM"))
    handles.append(Line2D([], [], color="0.55", linewidth=5, alpha=0.5, label="minimiser"))
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize="small")
    return fig


def _draw_minimiser(
    ax: Axes, rows: pd.DataFrame, minimiser: pd.DataFrame | None, measure: str
) -> None:
    """Draw the minimiser's measure in grey; without a table its loss, which is θ itself."""
    if minimiser is None:
        ends = [rows["knob"].min(), rows["knob"].max()]
        minimiser = pd.DataFrame({"loss_test": ends}, index=ends)
    if measure in minimiser:
        style: dict[str, Any] = {"color": "0.55", "alpha": 0.5, "solid_capstyle": "butt"}
        ax.plot(minimiser.index, minimiser[measure], linewidth=5, **style)


def _band(ax: Axes, rows: pd.DataFrame, measure: str, colour: str) -> None:
    """Draw the mean over trials against the knob, with a band from minimum to maximum."""
    trials = rows.groupby("knob")[measure]
    mean = trials.mean()
    ax.fill_between(mean.index, trials.min(), trials.max(), color=colour, alpha=0.15, linewidth=0)
    ax.plot(mean.index, mean, color=colour, marker="o", markersize=3, markeredgewidth=0)
