"""All methods side by side: a dot a trial, a bar at their mean."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from softadlib.analysis.plotting.curves import PALETTE
from softadlib.methods import METHODS


def method_panels(
    runs: pd.DataFrame, datasets: Sequence[str], measures: Mapping[str, str]
) -> Figure:
    """A row a dataset, a column a measure (name → axis label), a line a method; ERM's mean dashed.

    `runs`: one run per dataset, method and trial, with a column for every measure.
    """
    methods = [name for name in METHODS if (runs["method"] == name).any()]
    size = (2.7 * len(measures) + 0.8, (0.24 * len(methods) + 0.7) * len(datasets))
    grid: dict[str, Any] = {"squeeze": False, "sharey": True, "figsize": size}
    fig, axes = plt.subplots(len(datasets), len(measures), **grid)
    for row, dataset in zip(axes, datasets):
        for ax, (measure, label) in zip(row, measures.items()):
            values = runs[runs["dataset"] == dataset].groupby("method")[measure]
            for place, name in enumerate(methods):
                if name not in values.groups:
                    continue
                own, colour = values.get_group(name), PALETTE[name]
                ax.scatter(own, [place] * len(own), s=16, color=colour, alpha=0.55, linewidths=0)
                ax.plot([own.mean()] * 2, [place - 0.36, place + 0.36], color=colour, linewidth=2.4)
            if "erm" in values.groups:
                level = values.get_group("erm").mean()
                ax.axvline(level, color=PALETTE["erm"], linestyle="--", linewidth=0.9, zorder=0)
            ax.set_xlabel(label)
            ax.locator_params(axis="x", nbins=4)
        row[0].set_ylabel(dataset)
        row[0].set_yticks(range(len(methods)), [METHODS[name].label for name in methods])
        row[0].set_ylim(len(methods) - 0.4, -0.6)
    return fig
