"""Pictures of the θ study: what was suggested, what each arm costs, by how much arms differ."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from softadlib.analysis.statistics import mean_interval
from softadlib.experiments.choosing_theta.strategies import ARMS, CASE, RISK
from softadlib.functional import LN2

NOISE = {0.0: "xkcd:black", 0.05: "xkcd:bright blue", 0.1: "xkcd:pinkish red"}
"""Colour of each label noise."""


def suggested(lines: pd.DataFrame) -> Figure:
    """Suggested θ against R*, a dot a trial and a bar at the mean, a panel per synthetic set."""
    own = lines[lines["arm"] == "B"].set_index(CASE)
    names = list(dict.fromkeys(d for d, q in RISK if (d, q) in own.index))
    fig, axes = plt.subplots(1, len(names), figsize=(3.2 * len(names), 3.1), sharey=True)
    for ax, name in zip(np.atleast_1d(axes), names):
        ax.plot([0, 0.5], [0, 0.5], color="0.6", linestyle="--", linewidth=1.2)
        ax.axhline(LN2, color="0.25", linestyle=":", linewidth=1.4)
        for noise, colour in NOISE.items():
            if (name, noise) in own.index:
                theta, risk = own.loc[(name, noise), "theta"], RISK[name, noise]
                ax.plot(np.full(len(theta), risk), theta, "o", ms=4, alpha=0.5, color=colour)
                ax.hlines(theta.mean(), risk - 0.02, risk + 0.02, color=colour)
        ax.set(title=name, xlabel="R* (nats)", xlim=(-0.04, 0.5), ylim=(0, 0.72))
    np.atleast_1d(axes)[0].set_ylabel("suggested θ (nats)")
    return fig


def costs(lines: pd.DataFrame) -> Figure:
    """Regret in accuracy (points) and test loss of every arm: mean and its interval over trials."""
    lines = lines.assign(points=100 * lines["regret"])
    names = list(dict.fromkeys(lines["dataset"]))
    fig, axes = plt.subplots(
        2, len(names), figsize=(2.5 * len(names), 5), sharex=True, sharey="row"
    )
    style: dict[str, Any] = {
        "x": "arm",
        "order": list(ARMS),
        "hue": "label_noise",
        "palette": NOISE,
    }
    style |= {
        "errorbar": lambda values: mean_interval(values)[1:3],
        "linestyle": "none",
        "legend": False,
    }
    style |= {"markersize": 4, "err_kws": {"linewidth": 1.4}, "seed": 0}
    for column, name in zip(axes.reshape(2, -1).T, names):
        own = lines[lines["dataset"] == name]
        several = own["label_noise"].nunique() > 1
        style |= {
            "hue_order": list(NOISE) if several else [0.0],
            "dodge": 0.5 if several else False,
        }
        for ax, measure in zip(column, ("points", "loss_test")):
            sns.pointplot(own, y=measure, ax=ax, **style)
            ax.set(xlabel="", ylabel="")
        column[0].axhline(0, color="0.6", linewidth=1, zorder=0)
        column[0].set_title(name)
    first = axes.reshape(2, -1)[:, 0]
    first[0].set_ylabel("accuracy below the grid's\nbest on test (points)")
    first[1].set_ylabel("test cross-entropy (nats)")
    _legend(fig, [q for q in NOISE if (lines["label_noise"] == q).any()])
    return fig


def forest(tables: Mapping[str, pd.DataFrame], margin: float = 0.5) -> Figure:
    """Paired differences with their intervals, a row per case: accuracy (points) and loss (nats).

    `tables`: what `choosing.compared` gives, by title. A dotted line stands `margin` points below 0.
    """
    count = len(tables)
    height = 0.9 + 0.26 * max(map(len, tables.values()))
    fig, axes = plt.subplots(2, count, figsize=(3.2 * count, 2 * height), sharex="row", sharey=True)
    for column, (title, table) in zip(axes.reshape(2, -1).T, tables.items()):
        at = -np.arange(len(table))
        names = [f"{d}, {100 * q:g} %" if q > 0 else d for d, q in table.index]
        for ax, unit in zip(column, ("points", "nats")):
            ax.hlines(at, table[f"{unit} low"], table[f"{unit} high"], color="0.3", linewidth=1.6)
            ax.plot(table[unit], at, "o", ms=4, color="xkcd:pinkish red")
            ax.axvline(0, color="0.6", linewidth=1, zorder=0)
            ax.set_yticks(at, names)
            ax.grid(axis="y")
        column[0].axvline(-margin, color="0.25", linestyle=":", linewidth=1.4)
        column[0].set(title=title, xlabel="test accuracy (points)")
        column[1].set_xlabel("test loss (nats)")
    return fig


def _legend(fig: Figure, noises: list[float]) -> None:
    dots = [Line2D([], [], color=NOISE[q], marker="o", linestyle="") for q in noises]
    words = [f"{100 * q:g} % of labels flipped" if q else "no labels flipped" for q in noises]
    fig.legend(dots, words, loc="outside upper center", ncols=len(dots), fontsize="small")
