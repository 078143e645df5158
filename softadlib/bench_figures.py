"""Pictures of `softad bench --json`: ratios as bars, growth as lines."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

LAYOUTS = {"as-shipped": "xkcd:pinkish red", "same": "0.55"}


def ratios(table: dict[str, Any]) -> pd.DataFrame:
    """published ÷ ours, one row a case and one column a layout, in the order measured."""
    rows = pd.DataFrame(table["rows"])
    wide = rows.pivot(index="case", columns="layout", values="ratio")
    return wide.loc[rows["case"].unique(), [name for name in LAYOUTS if name in wide]]


def ratio_bars(ax: Axes, wide: pd.DataFrame) -> None:
    """Horizontal bars on a logarithmic axis; 1 is as fast as the published loop."""
    height = 0.8 / len(wide.columns)
    for i, layout in enumerate(wide):
        places = [row - 0.4 + height * (i + 0.5) for row in range(len(wide))]
        bars = ax.barh(places, wide[layout] - 1, height, 1, color=LAYOUTS[layout], label=layout)
        ax.bar_label(bars, [f"{value:.1f}" for value in wide[layout]], padding=3, fontsize="small")
    ax.axvline(1, color="0.2", linewidth=1)
    ax.set(
        xscale="log", xlabel="published loop ÷ ours, seconds", xlim=(0.9, wide.max(axis=None) * 1.6)
    )
    ax.set_yticks(range(len(wide)), wide.index)
    ax.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    ax.set_xlim(0.9, wide.max(axis=None) * 1.6)
    ax.minorticks_off()
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower right")


def growth_lines(ax: Axes, rows: pd.DataFrame, against: str) -> None:
    """Seconds against runs or epochs, with the line of proportion through the last point."""
    rows = rows.sort_values(against)
    x, y = rows[against], rows["seconds"]
    ax.loglog(x, y, "o-", color=LAYOUTS["as-shipped"], label="measured")
    ax.loglog(x, y.iloc[-1] * x / x.iloc[-1], ":", color="0.4", label="in proportion")
    ax.set_xticks(x, [str(v) for v in x])
    ax.set(xlabel=against, ylabel="seconds")
    ax.minorticks_off()
    ax.legend()
