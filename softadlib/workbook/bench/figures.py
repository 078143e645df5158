"""Pictures of `softad bench --json`: ratios as bars, growth as lines."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

LAYOUTS = {"as-shipped": "0.2", "same": "0.65"}


def ratios(table: dict[str, Any]) -> pd.DataFrame:
    """Return published ÷ ours, one row a case and one column a layout, in the order measured."""
    rows = pd.DataFrame(table["rows"])
    wide = rows.pivot(index="case", columns="layout", values="ratio")
    return wide.loc[rows["case"].unique(), [name for name in LAYOUTS if name in wide]]


def over_machines(tables: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
    """Return smallest and largest ratio of each case over the machines of `tables`, and those of each.

    One row a case and layout: columns `min` and `max`, then one for each machine.
    """
    rows = {name: pd.DataFrame(table["rows"]) for name, table in tables.items()}
    each = [frame.set_index(["case", "layout"])["ratio"] for frame in rows.values()]
    wide = pd.concat(each, axis=1, keys=list(rows))
    return pd.concat([wide.agg(["min", "max"], axis=1), wide], axis=1)


def machines(tables: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
    """Return one row a machine: its processor, GFLOP/s at best and in the step's products, ERM's step."""
    rows = {}
    for name, table in tables.items():
        products = table.get("step_products", {})
        rows[name] = {
            "processor": table["hardware"].get("processor", "not recorded"),
            "best GFLOP/s": table["peaks"]["gflops"],
            "MKL, step": products.get("mkl"),
            "oneDNN, step": products.get("onednn"),
            "ERM's step, ms": 1000 * table["methods"][0]["step_s"],
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def ratio_bars(ax: Axes, wide: pd.DataFrame) -> None:
    """Draw horizontal bars on a logarithmic axis; 1 is as fast as the published loop."""
    height = 0.8 / len(wide.columns)
    for i, layout in enumerate(wide):
        positions = [row - 0.4 + height * (i + 0.5) for row in range(len(wide))]
        ax.barh(positions, wide[layout] - 1, height, 1, color=LAYOUTS[layout], label=layout)
        for position, value in zip(positions, wide[layout]):
            ax.text(max(value, 1) * 1.05, position, f"{value:.1f}", va="center", fontsize="small")
    ax.axvline(1, color="0.2", linewidth=1)
    ends = (min(0.9, wide.min(axis=None) * 0.9), wide.max(axis=None) * 1.6)
    ax.set(xscale="log", xlabel="published loop ÷ ours, seconds", xlim=ends)
    ax.set_yticks(range(len(wide)), wide.index)
    ticks = [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100) if ends[0] <= t <= ends[1]]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower right")


def growth_lines(ax: Axes, rows: pd.DataFrame, against: str) -> None:
    """Draw seconds against runs or epochs, with the line of proportion through the last point."""
    rows = rows.sort_values(against)
    x, y = rows[against], rows["seconds"]
    ax.plot([0, x.iloc[-1]], [0, y.iloc[-1]], ":", color="0.4", label="in proportion")
    ax.plot(x, y, "o-", color=LAYOUTS["as-shipped"], label="measured")
    ax.set(xlabel=against, ylabel="seconds", xlim=(0, None), ylim=(0, None))
    ax.legend()
