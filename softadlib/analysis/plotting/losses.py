"""Pictures of the losses of single samples, from `selected.parquet`."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from softadlib.analysis import paper
from softadlib.analysis.concentration import (
    NEAR,
    STAGES,
    WIDTH,
    development,
    last,
    share_below,
    with_theta,
)
from softadlib.analysis.plotting.curves import LINES, MARKS, PALETTE
from softadlib.methods import METHODS

LEFT, RIGHT = -0.75, 1.0
"""Ends of the axis of loss − θ, in nats."""
QUARTERS = ("0", "¼", "½", "¾", "1")


def distributions(rows: pd.DataFrame, labels: dict[str, str] | None = None) -> Figure:
    """Share of samples with loss − θ below x, mean over trials: a column per dataset, a row per part.

    `rows`: of one label noise. Grey is the band within WIDTH of θ. `labels` replaces dataset names.
    """
    ends = with_theta(last(rows))
    datasets = paper.in_order(ends["dataset"])
    x = np.linspace(LEFT, RIGHT, 701)
    size = (_width(datasets), 5.2)
    fig, axes = plt.subplots(
        2, len(datasets), figsize=size, sharex=True, sharey=True, squeeze=False
    )
    for (i, j), ax in np.ndenumerate(axes):
        part = ("train", "test")[i]
        lines = ends[(ends["dataset"] == datasets[j]) & (ends["part"] == part)]
        ax.axvspan(-WIDTH, WIDTH, color="0.92", zorder=0)
        ax.axvline(0, color="0.25", linestyle=":", linewidth=1.2)
        for place, method in enumerate(_methods(ends)):
            runs = lines[lines["method"] == method]
            if runs.empty:
                continue
            curves = [share_below(q, t + x) for q, t in zip(runs["quantiles"], runs["theta"])]
            style: dict[str, Any] = {"marker": MARKS[method], "markersize": 4}
            style["markevery"] = (14 * place, 90)
            ax.plot(x, np.mean(curves, axis=0), LINES[part], color=PALETTE[method], **style)
        if i == 0:
            ax.set_title(_title(datasets[j], labels))
    for ax, part in zip(axes[:, 0], ("training", "test")):
        ax.set_ylabel(f"share of\n{part} losses below")
    for ax in axes[-1]:
        ax.set_xlabel("loss − θ (nats)")
    axes[0, 0].set(xlim=(LEFT, RIGHT), ylim=(-0.02, 1.02))
    _legend(fig, _methods(ends))
    return fig


def stages(rows: pd.DataFrame, labels: dict[str, str] | None = None) -> Figure:
    """Share of training losses near θ, as `shares` has it, at the five stored epochs, a panel per dataset."""
    table = development(rows)
    datasets = list(dict.fromkeys(table.index.get_level_values("dataset")))
    size = (_width(datasets), 3.0)
    fig, axes = plt.subplots(1, len(datasets), figsize=size, sharey=True, squeeze=False)
    for ax, dataset in zip(axes[0], datasets):
        for method, values in table.loc[dataset].iterrows():
            style: dict[str, Any] = {"marker": MARKS[str(method)], "markersize": 5}
            shown = values.dropna()
            places = [STAGES.index(stage) / 4 for stage in shown.index]
            ax.plot(places, shown, LINES["train"], color=PALETTE[str(method)], **style)
        ax.set(title=_title(dataset, labels), xlabel="part of training")
        ax.set_xticks(np.linspace(0, 1, 5), QUARTERS)
    axes[0, 0].set(ylabel=f"share {NEAR}", ylim=(-0.03, 1.03))
    _legend(fig, _methods(rows))
    return fig


def _width(datasets: Sequence[str]) -> float:
    return min(max(4.4, 0.6 + 2.9 * len(datasets)), 9.5)


def _title(dataset: str, labels: Mapping[str, str] | None) -> str:
    """Return a dataset's label, what it has less of in lines below its name."""
    return (labels or {}).get(dataset, dataset).replace(" (", "\n(").replace(", ", ",\n")


def _methods(rows: pd.DataFrame) -> list[str]:
    return [name for name in METHODS if (rows["method"] == name).any()]


def _legend(fig: Figure, methods: list[str]) -> None:
    handles = [
        Line2D([], [], color=PALETTE[m], marker=MARKS[m], markersize=4, label=METHODS[m].label)
        for m in methods
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize="small")
