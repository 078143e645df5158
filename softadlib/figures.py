"""Every picture of the workbook: data in, matplotlib Axes or Figure out. No file is opened here.

Methods keep the registry's colours, labels and order everywhere.
"""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from .errors import UserError, choose
from .functional import LN2
from .methods import METHODS

TRIAL_EPOCH = ("method", "trial", "epoch")
PALETTE = {name: method.colour for name, method in METHODS.items()}
NAMES = {"loss": "cross-entropy (nats)", "acc": "accuracy", "model_norm": "model norm"}
LOSS_FLOOR = 1e-4
"""Logarithmic loss axes stop here: below, curves say only that the training part is memorised."""


def use_style() -> None:
    """The one look of all figures; call it once, before the first of them."""
    rc = {
        "figure.dpi": 110,
        "figure.constrained_layout.use": True,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": "medium",
        "grid.color": "0.92",
        "legend.frameon": False,
        "lines.linewidth": 1.8,
    }
    sns.set_theme(context="notebook", style="ticks", font_scale=0.85, rc=rc)


def cell_edges(values: Sequence[float], geometric: bool = False) -> np.ndarray:
    """Borders half-way between increasing values, or at their geometric means: (n,) → (n + 1,)."""
    v = np.log(values) if geometric else np.asarray(values, dtype=float)
    gaps = np.diff(v) if len(v) > 1 else np.ones(1)
    edges = np.concatenate([[v[0] - gaps[0] / 2], v[:-1] + np.diff(v) / 2, [v[-1] + gaps[-1] / 2]])
    return np.exp(edges) if geometric else edges


def colour_scale(values: Sequence[float], cmap: str) -> ScalarMappable:
    """One flat colour per value; the palest tenth of the map, hard to see on white, is left out."""
    colours = plt.get_cmap(cmap)(np.linspace(0, 0.9, len(values)))
    return ScalarMappable(BoundaryNorm(cell_edges(values), len(values)), ListedColormap(colours))


def sweep(
    ax: Axes,
    x: np.ndarray,
    curves: Iterable[np.ndarray],
    values: Sequence[float],
    cmap: str,
    symbol: str | None = None,
    **line,
) -> None:
    """One curve (m,) per value, coloured by it; with `symbol`, a colourbar of at most 10 ticks."""
    scale = colour_scale(values, cmap)
    for value, curve in zip(values, curves):
        ax.plot(x, curve, color=scale.to_rgba(value), **line)
    if symbol:
        ticks = values[:: -(-len(values) // 10)]
        bar = ax.figure.colorbar(scale, ax=ax, ticks=ticks, format="{x:.3g}", pad=0.02)
        bar.ax.set_title(symbol)
        bar.ax.tick_params(length=0)


def scatter_classes(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Points (n, 2) of two classes, 0 as crosses and 1 as rings, without axes."""
    marks = {"marker": "x", "color": "xkcd:red orange"}, {"marker": "o", "ec": "xkcd:ocean blue"}
    for label, mark in enumerate(marks):
        face = {"facecolors": "none"} if "ec" in mark else {}
        ax.scatter(*x[y == label].T, s=14, linewidths=0.8, label=f"class {label}", **mark, **face)
    ax.set_aspect("equal")
    ax.axis("off")


def arrows(ax: Axes, start: np.ndarray, vectors: np.ndarray, **style) -> None:
    """Arrows (n, 2) in data units, all from `start` (2,)."""
    at = np.broadcast_to(start, np.shape(vectors))
    style = {"width": 0.012, "zorder": 2} | style
    ax.quiver(*at.T, *np.transpose(vectors), angles="xy", scale_units="xy", scale=1, **style)


def mark_ln2(ax: Axes, label: bool = True) -> None:
    """A dotted line at θ = ln 2, from where SoftAD's and iFlood's minimiser predicts wrong."""
    ax.axvline(LN2, color="0.25", linestyle=":", linewidth=1.4, zorder=3)
    if label:
        place = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
        ax.annotate("ln 2", (LN2, 1), (0, 3), ha="center", fontsize="small", **place)


def heatmap(ax: Axes, table: pd.DataFrame, **colours) -> QuadMesh:
    """Rows σ (geometric), columns θ: cells centred on their values, ln 2 marked.

    One row draws a strip without a σ axis. `colours` as in `pcolormesh`.
    """
    sigma = cell_edges(table.index, geometric=True) if len(table) > 1 else [0, 1]
    mesh = ax.pcolormesh(cell_edges(table.columns), sigma, table, **colours)
    ax.grid(False)
    ax.set_yticks([])
    if len(table) > 1:
        ax.set(yscale="log", ylabel="σ")
        _plain_log(ax.yaxis)
    mark_ln2(ax, label=False)
    return mesh


def _plain_log(axis: Axis, subs: Sequence[float] = (1, 2, 5)) -> None:
    """0.05, not 5 × 10⁻²."""
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _log_loss(ax: Axes) -> None:
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    low = max(low, LOSS_FLOOR)
    ax.set_ylim(low, max(high, 2 * low))
    _plain_log(ax.yaxis, (1, 2, 5) if high < 100 * low else (1,))


def _checked(rows: pd.DataFrame, *key: str) -> tuple[pd.DataFrame, list[str]]:
    """Rows of one study and its methods in order; `key` names a row, or means would mislead."""
    if rows.empty:
        raise UserError("there are no rows to draw")
    for name in rows["method"].unique():
        choose("method", name, METHODS)
    for column in {"dataset", "label_noise"} & set(rows):
        held = rows[column].unique()
        if len(held) > 1:
            raise UserError(f"rows hold {column} {', '.join(map(str, held))}; draw one at a time")
    if rows.duplicated(list(key)).any():
        raise UserError(f"several rows share {', '.join(key)}; pass one run of each")
    methods = [name for name in METHODS if (rows["method"] == name).any()]
    return rows.replace([np.inf, -np.inf], np.nan), methods


def _legend(rows: pd.DataFrame, methods: Sequence[str], dashes: Mapping[str, str]) -> list[Line2D]:
    """Methods, with how many of their trials ended without a finite loss, then line styles."""
    handles = []
    for name in methods:
        mine = rows[rows["method"] == name]
        last = mine.loc[mine["epoch"] == mine["epoch"].max(), "loss_train"]
        lost = f" ({last.isna().sum()} of {len(last)} diverged)" if last.isna().any() else ""
        handles.append(Line2D([], [], color=PALETTE[name], label=METHODS[name].label + lost))
    return handles + [Line2D([], [], color="0.4", ls=d, label=part) for part, d in dashes.items()]


def _dashes(solid: str) -> dict[str, str]:
    choose("solid", solid, ("train", "test"))
    return {part: "-" if part == solid else "--" for part in ("train", "test")}


def trajectories(
    rows: pd.DataFrame,
    measure: str,
    *,
    ax: Axes | None = None,
    solid: str = "test",
    log: bool = False,
    legend: bool = True,
) -> Axes:
    """Mean over trials against epoch, a line per method: measure "loss", "acc" or "model_norm".

    `rows` have the columns `metrics.COLUMNS`: one dataset, one label noise, one run per method and
    trial. Loss and accuracy are drawn on train and test; `solid` names the one not dashed. `log`
    gives the loss a logarithmic axis, down to `LOSS_FLOOR`: it alone shows a training loss of 1e-3
    beside a test loss that runs away. Values that are not finite are left out of the means, and
    counted in the legend. Raises UserError for rows or arguments other than these.
    """
    choose("measure", measure, NAMES)
    rows, methods = _checked(rows, *TRIAL_EPOCH)
    ax, dashes = plt.gca() if ax is None else ax, _dashes(solid)
    columns = {f"{measure}_{part}": dash for part, dash in dashes.items()}
    if measure == "model_norm":
        columns, dashes = {measure: "-"}, {}
    dots = {"-": "o", "--": "X"} if rows["epoch"].nunique() == 1 else {}  # a point makes no line
    hue = {"hue": "method", "hue_order": methods, "palette": PALETTE, "legend": False}
    for column, dash in columns.items():
        style = {"linestyle": dash, "marker": dots.get(dash)}
        sns.lineplot(rows, x="epoch", y=column, errorbar=None, ax=ax, **hue, **style)
    trials = rows["trial"].nunique()
    mean = f" (mean of {trials} trials)" if trials > 1 else ""
    ax.set(xlabel="epoch" + mean, ylabel=NAMES[measure])
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if log and measure == "loss":
        _log_loss(ax)
    if legend:
        ax.legend(handles=_legend(rows, methods, dashes), fontsize="small")
    return ax


def trajectory_panels(rows: pd.DataFrame, *, solid: str = "test", log_loss: bool = True) -> Figure:
    """Loss, accuracy and model norm side by side, as `trajectories` draws them, one legend above."""
    fig, axes = plt.subplots(1, 3, figsize=(9.5, 3.3))
    for ax, measure in zip(axes, NAMES):
        trajectories(rows, measure, ax=ax, solid=solid, log=log_loss, legend=False)
    handles = _legend(*_checked(rows, *TRIAL_EPOCH), _dashes(solid))
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize="small")
    return fig


def knob_curves(rows_final: pd.DataFrame) -> Figure:
    """Test accuracy and loss against the knob, last epoch of all runs: mean, band from min to max.

    Methods with a θ share one column, ln 2 marked; the radius has its own, logarithmic. ERM, which
    has no knob, is a level dashed line. `rows_final` and the loss axis as in `trajectories`.
    """
    rows, methods = _checked(rows_final, "method", "trial", "knob", "epoch")
    rows = rows[rows["epoch"] == rows["epoch"].max()]
    symbol = rows["method"].map({name: method.knob for name, method in METHODS.items()})
    knobs = [knob for knob in ("theta", "radius") if (symbol == knob).any()] or ["theta"]
    size = (4.75 * len(knobs), 5.4)
    fig, axes = plt.subplots(2, len(knobs), figsize=size, sharex="col", sharey="row", squeeze=False)
    hue = {"hue": "method", "hue_order": methods, "palette": PALETTE, "legend": False}
    hue |= {"marker": "o", "markersize": 3, "markeredgewidth": 0}
    for (i, j), ax in np.ndenumerate(axes):
        column, mine = ("acc_test", "loss_test")[i], rows[symbol == knobs[j]]
        if len(mine):
            sns.lineplot(mine, x="knob", y=column, errorbar=("pi", 100), ax=ax, **hue)
        for name, level in rows[symbol.isna()].groupby("method")[column].mean().items():
            ax.axhline(level, color=PALETTE[name], linestyle="--", linewidth=1.2)
        ax.set(xlabel=knobs[j].replace("theta", "θ (nats)"), ylabel=f"test {NAMES[column[:-5]]}")
        if knobs[j] == "theta":
            mark_ln2(ax, label=i == 0)
        elif (mine["knob"] > 0).all():
            ax.set_xscale("log")
            _plain_log(ax.xaxis)
    _log_loss(axes[1, 0])
    handles = _legend(rows, methods, {})
    for handle, name in zip(handles, methods):
        handle.set_linestyle("-" if METHODS[name].knob else "--")
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize="small")
    return fig
