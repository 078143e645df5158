"""Pictures of the θ study: the levels suggested, what each strategy costs, where two differ."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from softadlib.analysis.statistics import Mean, paired
from softadlib.experiments.choosing_theta.strategies import BAYES_RISK, STRATEGIES, differences
from softadlib.functional import LN2

NOISE = {0.0: ("0.1", "o"), 0.05: ("0.45", "s"), 0.1: ("0.7", "^")}
"""Colour and marker of each label noise."""
COMPARED_WITH_ERM = [name for name in STRATEGIES if name != "erm"]


def levels(lines: pd.DataFrame) -> Figure:
    """Draw θ of every trial by both rules, a row per case; how many trials got none; R*; ln 2."""
    rules = {"former rule": ("0.5", "none", -0.15), "suggested": ("0.1", "0.1", 0.15)}
    cases = list(lines.groupby(["dataset", "label_noise"], sort=True).groups)
    fig, ax = plt.subplots(figsize=(7.5, 0.6 + 0.34 * len(cases)))
    for name, (edge, face, shift) in rules.items():
        part = lines[lines["strategy"] == name].set_index(["dataset", "label_noise"])["theta"]
        for row, case in enumerate(cases):
            thetas = part.loc[[case]] if case in part.index else part[:0]
            ax.plot(
                thetas,
                np.full(len(thetas), row + shift),
                "o",
                color=edge,
                markerfacecolor=face,
                label=name if row == 0 else None,
            )
            if name == "suggested" and thetas.isna().any():
                words = f"no θ in {thetas.isna().sum()} of {len(thetas)}"
                ax.text(0.7, row, words, ha="left", va="center", fontsize="small")
    risks = [(BAYES_RISK[case], row) for row, case in enumerate(cases) if case in BAYES_RISK]
    ax.plot(*zip(*risks), "|", color="0.1", markersize=14, label="R*")
    ax.axvline(LN2, color="0.25", linestyle=":", label="ln 2")
    ax.set_yticks(range(len(cases)), [_case_name(*case) for case in cases])
    ax.invert_yaxis()
    ax.set(xlabel="θ (nats)", xlim=(-0.02, 0.85))
    fig.legend(loc="outside upper center", ncols=4, fontsize="small")
    return fig


def costs(lines: pd.DataFrame) -> Figure:
    """Draw every strategy less the ordinary run, means over the synthetic sets by label noise.

    Test accuracy (points) and test loss (nats) with Student's 95 % intervals over trials.
    """
    lines = lines[lines["dataset"].isin({dataset for dataset, _ in BAYES_RISK})]
    names = [name for name in COMPARED_WITH_ERM if (lines["strategy"] == name).any()]
    fig, axes = plt.subplots(1, 2, figsize=(8.5, 4.2), sharey=True)
    for ax, (measure, scale) in zip(axes, {"acc_test": 100, "loss_test": 1}.items()):
        for shift, (noise, (colour, marker)) in zip((-0.22, 0, 0.22), NOISE.items()):
            rows = []
            for name in names:
                wide = scale * differences(lines, name, "erm", measure)
                wide = wide.loc[:, wide.columns.get_level_values("label_noise") == noise]
                trials = wide.mean(axis=1, skipna=False).dropna()
                complete = wide.shape[1] == lines["dataset"].nunique()
                rows.append(
                    paired(trials, 0 * trials) if complete else Mean(np.nan, np.nan, np.nan, 0)
                )
            at = np.arange(len(rows)) + shift
            low, high = ([row[i] for row in rows] for i in (1, 2))
            ax.hlines(at, low, high, color=colour, linewidth=1.4)
            label = f"{100 * noise:g} % of labels flipped, n = {rows[-1].n}"
            ax.plot([row.mean for row in rows], at, marker, color=colour, ms=5, label=label)
        ax.axvline(0, color="0.6", linewidth=1, zorder=0)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("test accuracy minus ERM's (points)")
    axes[1].set_xlabel("test loss minus ERM's (nats)")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig


def forest(tables: Mapping[str, pd.DataFrame], margin: float = 0.5) -> Figure:
    """Draw paired differences with their intervals, a row per case: accuracy above, loss below.

    `tables`: what `strategies.compared` gives, by title. The dotted line is `margin` points below 0.
    """
    height = 0.9 + 0.26 * max(map(len, tables.values()))
    fig, axes = plt.subplots(
        2, len(tables), figsize=(3 * len(tables), 2 * height), sharex="row", sharey=True
    )
    for column, (title, table) in zip(axes.reshape(2, -1).T, tables.items()):
        at = -np.arange(len(table))
        names = [_case_name(*case) for case in table.index]
        for ax, unit in zip(column, ("points", "nats")):
            ax.hlines(at, table[f"{unit} low"], table[f"{unit} high"], color="0.3", linewidth=1.6)
            ax.plot(table[unit], at, "o", ms=4, color="0.1")
            ax.axvline(0, color="0.6", linewidth=1, zorder=0)
            ax.set_yticks(at, names)
            ax.grid(axis="y")
        column[0].axvline(-margin, color="0.25", linestyle=":", linewidth=1.4)
        column[0].set(title=title, xlabel="test accuracy (points)")
        column[1].set_xlabel("test loss (nats)")
    return fig


def _case_name(dataset: str, label_noise: float) -> str:
    """Write a case as a label."""
    return f"{dataset}, {100 * label_noise:g} %" if label_noise > 0 else dataset
