"""Pictures of the theory notebooks: measured against bounds, on logarithmic axes."""

from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

BOUNDS: dict[str, tuple[Literal["--", ":"], float]] = {
    "stated": ("--", 1.8),
    "corrected": (":", 2.6),
}
"""Line style and width of each bound."""


def against_bounds(
    ax: Axes, rows: pd.DataFrame, colour: str, rate: float, trivial: float | None = None
) -> None:
    """Draw column `mean` against T beside `stated`, `corrected` and a line ∝ T^rate.

    `trivial`: a level that holds without any proof.
    """
    ax.loglog(rows["T"], rows["mean"], "o-", color=colour, markersize=5)
    guide = 0.6 * rows["mean"].iloc[0] * (rows["T"] / rows["T"].iloc[0]) ** rate
    ax.loglog(rows["T"], guide, ":", color=colour, linewidth=1.2)
    for name, (dash, width) in BOUNDS.items():
        ax.loglog(rows["T"], rows[name], dash, color="0.2", linewidth=width)
    if trivial is not None:
        ax.axhline(trivial, color="0.6", linestyle="-", linewidth=1.2)
    ax.set(xlabel="T")
    ax.minorticks_off()


def against_factors(ax: Axes, ratios: pd.DataFrame, factors: dict[str, float], colour: str) -> None:
    """Draw columns of measured/q against T, paler one by one, beside the factor of each bound."""
    for i, name in enumerate(ratios):
        style = {"color": colour, "alpha": 1 - 0.3 * i, "markersize": 4, "label": name}
        ax.semilogx(ratios.index, ratios[name], "o-", **style)
    for name, (dash, width) in BOUNDS.items():
        ax.axhline(factors[name], color="0.2", linestyle=dash, linewidth=width)
    ax.set(xlabel="T", ylim=(0, None))
    ax.legend(fontsize="small", loc="upper right", bbox_to_anchor=(1, 0.92))
    ax.minorticks_off()


def bound_legend(fig: Figure) -> None:
    """Draw one legend above: measured, both bounds, the trivial one."""
    handles = [Line2D([], [], color="0.2", marker="o", label="measured")]
    for name, (dash, width) in BOUNDS.items():
        handles.append(
            Line2D([], [], color="0.2", linestyle=dash, linewidth=width, label=f"bound, {name}")
        )
    handles.append(Line2D([], [], color="0.6", linewidth=1.2, label="trivial bound G, or G²"))
    fig.legend(handles=handles, loc="outside upper center", ncols=4)
