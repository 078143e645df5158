"""Pictures of the cliff at θ = ln 2: tables in, Axes or Figure out. No file is opened here."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from softadlib.analysis.plotting.curves import NAMES, PALETTE, cell_edges, mark_ln2
from softadlib.methods import METHODS

HALO = [withStroke(linewidth=3, foreground="white")]


def minimiser_map(ax: Axes, table: pd.DataFrame) -> QuadMesh:
    """p* of class 1 coloured about ½: columns θ, rows its probability η; both borders marked."""
    grid = cell_edges(table.columns), cell_edges(table.index)
    mesh = ax.pcolormesh(*grid, table, cmap="RdBu_r", vmin=0, vmax=1, rasterized=True)
    ax.grid(False)
    ax.axhline(0.5, color="0.25", linestyle=":", linewidth=1.4, path_effects=HALO)
    mark_ln2(ax)
    ax.set(xlabel=METHODS["softad"].axis, ylabel="η = P(class 1 | x)")
    return mesh


def mark_classes(ax: Axes, classes: int, label: bool = True) -> None:
    """A dotted line at θ = ln K, as `figures.mark_ln2` draws that at ln 2."""
    at = float(np.log(classes))
    ax.axvline(at, color="0.25", linestyle=":", linewidth=1.4, zorder=3, path_effects=HALO)
    if label:
        place: dict[str, Any] = {
            "xycoords": ax.get_xaxis_transform(),
            "textcoords": "offset points",
        }
        ax.annotate(f"ln {classes}", (at, 1), (0, 3), ha="center", fontsize="small", **place)


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
    fig, axes = plt.subplots(2, len(tables), figsize=(3.6 * len(tables), 5.4), **shape)
    for column, (name, rows) in zip(axes.T, tables.items()):
        known = (theory or {}).get(name)
        for ax, measure in zip(column, ("acc_test", "loss_test")):
            _theory(ax, rows, known, measure)
            for method in methods:
                _band(ax, rows[rows["method"] == method], measure, PALETTE[method])
            level = rows.loc[rows["method"] == "erm", measure].mean()
            ax.axhline(level, color=PALETTE["erm"], linestyle="--", linewidth=1.2)
            top = ax is column[0]
            mark_ln2(ax, label=top)
            if classes[name] > 2:
                mark_classes(ax, classes[name], label=top)
        column[0].set_title(name, pad=16)
        column[1].set_xlabel(METHODS["softad"].axis)
    axes[0, 0].set_ylabel(f"test {NAMES['acc']}")
    axes[1, 0].set_ylabel(f"test {NAMES['loss']}")
    handles = [Line2D([], [], color=PALETTE[m], label=METHODS[m].label) for m in methods]
    handles.append(Line2D([], [], color=PALETTE["erm"], linestyle="--", label="ERM"))
    handles.append(Line2D([], [], color="0.55", linewidth=5, alpha=0.5, label="minimiser"))
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize="small")
    return fig


def _theory(ax: Axes, rows: pd.DataFrame, known: pd.DataFrame | None, measure: str) -> None:
    style: dict[str, Any] = {
        "color": "0.55",
        "linewidth": 5,
        "alpha": 0.5,
        "solid_capstyle": "butt",
    }
    if known is not None:
        ax.plot(known.index, known[measure], **style)
    elif measure == "loss_test":
        ends = [rows["knob"].min(), rows["knob"].max()]
        ax.plot(ends, ends, **style)


def _band(ax: Axes, rows: pd.DataFrame, measure: str, colour: str) -> None:
    by = rows.groupby("knob")[measure]
    mean = by.mean()
    ax.fill_between(mean.index, by.min(), by.max(), color=colour, alpha=0.15, linewidth=0)
    ax.plot(mean.index, mean, color=colour, marker="o", markersize=3, markeredgewidth=0)
