"""What the pictures of several pages share: data in, matplotlib Axes or Figure out. No file is opened here.

Methods keep the registry's colours, labels and order everywhere.
"""

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from matplotlib_inline.backend_inline import set_matplotlib_formats

from softadlib.functional import LN2
from softadlib.methods import GREY, METHODS
from softadlib.workbook.analysis.statistics import mean_interval
from softadlib.workbook.analysis.tables import LABELS, TITLES, by_registry

LINES: dict[str, Literal["-", "--"]] = {"train": "--", "test": "-"}
"""Each part's line style, the same on every page."""
MARKS = defaultdict(lambda: "d", zip(METHODS, itertools.cycle("osD^vPX*<>hpH8")))
"""Each method's marker, so that a grey print can be read; "d" is that of methods not registered here."""
PALETTE = defaultdict(lambda: GREY, {name: method.colour for name, method in METHODS.items()})
NAMES = {"loss": "cross-entropy (nats)", "acc": "accuracy", "model_norm": "model norm"}
HALO = [withStroke(linewidth=3, foreground="white")]
"""Outline of a line that is drawn over dark cells."""
SMOOTHED = 5
"""Measurements in the moving mean of an accuracy over the epochs."""
CLASS_COLOURS = ("#b2182b", "#2166ac")
"""Of class 0 and class 1: dark red and dark blue of matplotlib's scale "RdBu"."""
LOSS_FLOOR = 1e-4  # logarithmic loss axes end here: below, the training part is merely memorised
PAGE_WIDTH = 5.0
"""Width of a picture in inches: 358 points of a telephone show its smallest letters 8 points high."""


def use_style() -> None:
    """Set the style of all pictures and tables of a page. Call it once, before the first one.

    Pictures have 200 dots per inch. Tables show every row and column, and three decimals.
    """
    plt.style.use(["seaborn-v0_8-ticks", "softadlib.workbook.analysis.style"])
    pd.set_option("display.max_rows", None)
    pd.set_option("display.max_columns", None)
    pd.set_option("display.max_colwidth", None)
    pd.set_option("display.precision", 3)
    # Twice the dots, drawn at half their size; nothing happens outside IPython.
    set_matplotlib_formats("retina", pil_kwargs={"optimize": True})  # type: ignore[no-untyped-call]


def panels(
    rows: int = 1, columns: int = 1, height: float = 2.2, **options: Any
) -> tuple[Figure, np.ndarray]:
    """Make a picture of `PAGE_WIDTH`, and its panels as an array (rows, columns).

    Use one or two columns, and no letters below `fontsize="small"`. `head` writes the names of a
    panel and of its y-axis above it, so that labels take no width. Five methods fit in one line of
    `fig.legend(…, ncols=5, fontsize="small")`. seaborn's grids get the same width by
    `height=2.2, aspect=PAGE_WIDTH / 2 / 2.2`, with `col_wrap=2`.

    Args:
        height: of a row, in inches.
        options: of `plt.subplots`, such as `sharey="row"`.

    Example:
        >>> fig, axes = panels(2, 2)
        >>> axes.shape, fig.get_size_inches().tolist()
        ((2, 2), [5.0, 4.4])
    """
    size = (PAGE_WIDTH, height * rows)
    return plt.subplots(rows, columns, figsize=size, squeeze=False, **options)


def head(ax: Axes, title: str, y: str = "") -> None:
    """Write a panel's title above its left corner, and below that what its y-axis shows.

    Example: `head(ax, "gaussian", "test loss (nats)")`.
    """
    ax.set_title(title, loc="left", pad=17 if y else 5)
    beside: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
    ax.annotate(y, (0, 1), (0, 4), color="0.35", fontsize="small", **beside)


@contextlib.contextmanager
def facets() -> Iterator[None]:
    """Let seaborn lay out the panels of `relplot` or `catplot`, in place of the style's constrained layout."""
    with plt.rc_context({"figure.constrained_layout.use": False}):
        yield


def cell_edges(values: Sequence[float], geometric: bool = False) -> np.ndarray:
    """Return borders half-way between increasing values, or at their geometric means: (n,) → (n + 1,)."""
    v = np.log(values) if geometric else np.asarray(values, dtype=float)
    half = np.diff(v) / 2 if len(v) > 1 else np.array([0.5])
    edges = np.concatenate([[v[0] - half[0]], v[:-1] + half[: len(v) - 1], [v[-1] + half[-1]]])
    return np.exp(edges) if geometric else edges


def scatter_classes(ax: Axes, x: np.ndarray, y: np.ndarray, size: float = 20) -> None:
    """Draw points (n, 2) of two classes, 0 as red squares and 1 as blue discs, without axes.

    Args:
        size: of a mark, in square points.
    """
    for label, (colour, mark) in enumerate(zip(CLASS_COLOURS, "so")):
        across, up = x[y == label].T
        look: dict[str, Any] = {"color": colour, "edgecolors": "white", "linewidths": 0.6}
        ax.scatter(across, up, s=size, marker=mark, label=f"class {label}", **look)
    ax.set_aspect("equal")
    ax.set_axis_off()


def arrows(ax: Axes, start: np.ndarray, vectors: np.ndarray, **style: Any) -> None:
    """Draw arrows (n, 2) in data units, all from `start` (2,)."""
    at = np.broadcast_to(start, np.shape(vectors)).T
    units: dict[str, Any] = {"width": 0.012, "angles": "xy", "scale_units": "xy", "scale": 1}
    ax.quiver(*at, *np.transpose(vectors), **units | style)


def mark_log(ax: Axes, label: bool = True) -> None:
    """Draw a dotted line at θ = ln 2. From there on SoftAD's and iFlood's minimiser predicts wrong."""
    ax.axvline(LN2, zorder=3, color="0.25", linestyle=":", linewidth=1.4, path_effects=HALO)
    if label:
        at: dict[str, Any] = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
        ax.annotate("ln 2", (LN2, 1), (0, 3), ha="center", fontsize="small", **at)


def _log_loss(ax: Axes) -> None:
    """Make the axis of the loss logarithmic, with ticks such as 0.05 in place of 5 × 10⁻²."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    low = max(low, LOSS_FLOOR)
    ax.set_ylim(low, max(high, 2 * low))
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1, 3)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _in_order(rows: pd.DataFrame) -> list[str]:
    """Return the methods of `rows` in the registry's order."""
    return by_registry(rows["method"])


def legend_handles(rows: pd.DataFrame, parts: bool = False) -> list[Line2D]:
    """Return handles for the methods of `rows`, with how many runs diverged, and the styles of the parts."""
    handles = []
    ends = rows[rows["epoch"] == rows.groupby(["dataset", "method"])["epoch"].transform("max")]
    for name in _in_order(rows):
        lost = ~np.isfinite(ends.loc[ends["method"] == name, "loss_train"])
        note = f" ({lost.sum()} of {len(lost)} diverged)" if lost.any() else ""
        handles.append(Line2D([], [], label=LABELS[name] + note, **_style(name)))
    lines = LINES.items() if parts else ()
    return handles + [Line2D([], [], color="0.4", linestyle=d, label=part) for part, d in lines]


def _style(name: str) -> dict[str, Any]:
    """Return colour and mark of a method's line."""
    return {"color": PALETTE[name], "marker": MARKS[name], "markersize": 4}


def band(values: pd.DataFrame) -> pd.DataFrame:
    """Return mean, low and high of Student's 95 % interval of every row; NaN and ∞ are left out.

    Rows of fewer than three values have no interval: that of two is 18 standard deviations long.
    """
    lines = []
    for _, row in values.iterrows():
        kept = row[np.isfinite(row)]
        lines.append(mean_interval(kept)[:3] if len(kept) > 2 else (kept.mean(), np.nan, np.nan))
    return pd.DataFrame(lines, index=values.index, columns=["mean", "low", "high"])


def _draw(ax: Axes, name: str, line: pd.DataFrame, **options: Any) -> None:
    """Draw a method's mean, and its interval as a band; a grey line is labelled at its end."""
    ax.plot(line.index, line["mean"], **_style(name) | options)
    shade: dict[str, Any] = {"color": PALETTE[name], "alpha": 0.13, "linewidth": 0}
    ax.fill_between(line.index, line["low"], line["high"], **shade)
    if PALETTE[name] == GREY:
        label_end(ax, line.index[-1], line["mean"].iloc[-1], LABELS[name])


def label_end(ax: Axes, x: float, y: float, text: str, colour: str = GREY) -> None:
    """Write a label to the right of a line's last point, in place of a legend."""
    if np.isfinite(y):
        place: dict[str, Any] = {
            "textcoords": "offset points",
            "va": "center",
            "annotation_clip": False,
        }
        ax.annotate(text, (x, y), (5, 0), color=colour, fontsize="small", **place)


def trajectory_panels(rows: pd.DataFrame) -> Figure:
    """Draw loss, accuracy and model norm over the epochs, and a legend beside the last.

    Lines are means over trials with Student's 95 % interval, one per method; test is solid, train
    dashed. Values that are not finite are left out of the means and counted in the legend. The axis
    of the loss is logarithmic, down to `LOSS_FLOOR`; that of the accuracy starts below all means
    after the first tenth of training.

    Args:
        rows: columns `studies.schema.ALL_COLUMNS`, one dataset, one label noise, one run per method and trial.
    """
    fig, grid = panels(2, 2)
    *axes, rest = grid.flat
    for ax, measure in zip(axes, NAMES):
        _trajectories(ax, rows, measure)
    _log_loss(axes[0])
    lines = [np.asarray(line.get_ydata(), dtype=float) for line in axes[1].get_lines()]
    late = np.concatenate([y[-max(1, 9 * len(y) // 10) :] for y in lines])
    if np.isfinite(late).any() and (low := np.nanmin(late)) < (high := np.nanmax(late)):
        axes[1].set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
    handles = legend_handles(rows, parts=True)
    rest.set_axis_off()
    rest.legend(handles=handles, loc="center", ncols=1 + (len(handles) > 8), fontsize="small")
    return fig


def measure_curves(
    rows: pd.DataFrame, measures: Sequence[str] = ("loss_test", "acc_test")
) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """Draw measures over the epochs, a panel for each dataset and measure, two datasets side by side.

    This is how the paper draws Figures 4, 5, 8 and 9 (test loss over test accuracy) and, with
    `measures=("model_norm",)`, Figures 6 and 10. Lines are means over trials. The shade is Student's
    95 % interval; of fewer than six trials it spans all of them. An accuracy is a moving mean over
    `SMOOTHED` measurements, and its axis leaves out the lowest twentieth of the values, most of them of
    the first epochs.

    Args:
        rows: columns `studies.schema.ALL_COLUMNS`, one label noise, one run per dataset, method and trial.
        measures: columns of `rows`, such as `loss_train`.

    Returns: the picture, and its panels by dataset and measure.
    """
    datasets = list(dict.fromkeys(rows["dataset"]))
    columns = min(2, len(datasets))
    fig, grid = panels(-(-len(datasets) // columns) * len(measures), columns, 1.9)
    for ax in grid.flat:
        ax.set_axis_off()
    axes = {}
    for place, dataset in enumerate(datasets):
        of_set = rows[rows["dataset"] == dataset]
        for line, measure in enumerate(measures, place // columns * len(measures)):
            ax = grid[line, place % columns]
            ax.set_axis_on()
            methods = _in_order(of_set)
            for rank, name in enumerate(methods):
                runs = of_set[of_set["method"] == name]
                _measure_curve(ax, name, runs, measure, rank / len(methods))
            if measure.startswith("acc"):
                ax.set_ylim(bottom=of_set[measure].quantile(0.05))
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            kind, _, part = measure.rpartition("_")
            title = TITLES[dataset] if measure == measures[0] else ""
            head(ax, title, NAMES[measure] if measure in NAMES else f"{part} {NAMES[kind]}")
            axes[dataset, measure] = ax
        axes[dataset, measures[-1]].set_xlabel("epoch")
    handles = legend_handles(rows)
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize="small")
    return fig, axes


def _measure_curve(ax: Axes, name: str, rows: pd.DataFrame, measure: str, shift: float) -> None:
    """Draw one method's measure: its mean with an interval, or with all of fewer than six trials.

    `shift`: share of the distance between two marks by which this line's are moved.
    """
    runs = rows.pivot(index="epoch", columns="trial", values=measure)
    if measure.startswith("acc"):
        runs = runs.rolling(SMOOTHED, center=True, min_periods=1).mean()
    line = band(runs)
    if runs.shape[1] < 6:
        line = line.assign(low=runs.min(axis=1), high=runs.max(axis=1))
    step = max(1, len(line) // 4)
    _draw(ax, name, line, linewidth=1.4, markevery=(int(shift * step), step))


def _trajectories(ax: Axes, rows: pd.DataFrame, measure: str) -> None:
    """Draw one measure of NAMES, a line per method and part."""
    methods = _in_order(rows)
    for part, dash in {"": "-"}.items() if measure == "model_norm" else LINES.items():
        column = f"{measure}_{part}".strip("_")
        for rank, name in enumerate(methods):
            runs = rows[rows["method"] == name].pivot(index="epoch", columns="trial", values=column)
            step = max(1, len(runs) // 6)
            every = (rank * step // len(methods), step)  # marks do not coincide
            _draw(ax, name, band(runs), linestyle=dash, markevery=every)
    ax.set_xlabel("epoch")
    head(ax, "", NAMES[measure])
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
