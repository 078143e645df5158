"""Methods that the paper does not train, beside those that it does: selected runs, differences, a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from softadlib.analysis import coverage, paper
from softadlib.analysis.plotting.curves import PALETTE
from softadlib.analysis.readings import listed, trials_sentence
from softadlib.analysis.tables import LABELS, differences
from softadlib.methods import METHODS, PAPER
from softadlib.results import reader, selection

MEASURES = {
    "gap": "gap (nats)",
    "loss_test": "test loss (nats)",
    "acc_test": "test accuracy",
    "model_norm": "model norm",
}
"""What is compared, and the label of its axis."""


def selected(
    profile: str, paper_profile: str, label_noise: float = 0.0, ties: str = "largest"
) -> pd.DataFrame:
    """Select one run of every dataset, method and trial of two profiles.

    A method with a grid is read from `paper_profile` where that has it on the dataset. A θ in place
    of a grid is a method of its own, "SoftAD (θ: auto)". Trials that a method lacks are left out on
    that dataset, so that all means are over the same. Adds `name` and `gap`, test minus train
    cross-entropy in nats.
    """
    words = coverage.auto_words(reader.provenances(profile))
    frames, grids = [], set()
    for source in (paper_profile, profile):
        rows = reader.read(source, label_noise=label_noise, final=True)
        for case, part in rows.groupby(["dataset", "method"]):
            word = words.get(case, "") if source == profile else ""
            if word or case not in grids:
                name = LABELS[case[1]] + (f" (θ: {word})" if word else "")
                frames.append(selection.select(part, ties).assign(name=name))
            grids |= set() if word else {case}
    runs = pd.concat(frames)
    names = runs.groupby("dataset")["name"].transform("nunique")
    runs = runs[runs.groupby(["dataset", "trial"])["name"].transform("nunique") == names]
    runs = runs.reset_index(drop=True)
    return runs.assign(gap=runs["loss_test"] - runs["loss_train"])


def names_in(runs: pd.DataFrame) -> list[str]:
    """Return the names in the order of the registry, a method with a grid before one without."""
    rank = {method: i for i, method in enumerate(METHODS)}
    names = runs[["name", "method"]].drop_duplicates()
    names = names.assign(rank=names["method"].map(rank)).sort_values(["rank", "name"])
    return list(names["name"])


def means(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of every measure and the number of trials: a line per dataset and name."""
    groups = runs.groupby(["dataset", "name"])
    table = groups[["knob", *MEASURES]].mean().assign(n=groups.size())
    names = names_in(runs)
    lines = [
        (d, n) for d in paper.in_order(runs["dataset"]) for n in names if (d, n) in table.index
    ]
    return table.loc[lines]


def against_erm(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `tables.differences` from ERM: test loss ("loss") and gap per dataset and name."""
    names = [*paper.in_order(runs["dataset"]), *names_in(runs)]
    rank = {name: i for i, name in enumerate(names)}
    runs = runs.sort_values(["dataset", "name"], key=lambda c: c.map(rank))
    runs = runs.rename(columns={"loss_test": "loss"})
    return differences(runs, ["dataset"], ("loss", "gap"), name="name", reference=LABELS["erm"])


def readings(runs: pd.DataFrame) -> list[str]:
    """Say in words who has the smallest gap and test loss, and what methods beyond the paper's change."""
    sentences = []
    for dataset, part in means(runs).groupby(level="dataset", sort=False):
        best = part.droplevel("dataset")
        gap, loss, accuracy = (best[name] for name in ("gap", "loss_test", "acc_test"))
        sentences.append(
            f"{dataset}: the smallest gap is {gap.idxmin()}'s {gap.min():.3f}, the smallest test loss "
            f"{loss.idxmin()}'s {loss.min():.3f}, the highest accuracy {accuracy.idxmax()}'s "
            f"{accuracy.max():.1%}."
        )
    table = against_erm(runs)
    others = table[~table["name"].isin([LABELS[m] for m in PAPER])]
    for measure, word in {"gap": "gap", "loss": "test loss"}.items():
        sentences += _against_erm_lines(others, measure, word)
    if len(table):
        sentences.append(trials_sentence(table["n"]))
    return sentences


def suggestion_readings(advice: pd.DataFrame) -> list[str]:
    """Say by which rule θ was suggested, and where none was; `advice` as `reader.suggestions` gives it."""
    if advice.empty:
        return []
    sentences = [
        f"θ: auto comes from rule {rule} of `suggest_theta` on {listed(paper.in_order(part['dataset']))}."
        for rule, part in advice.groupby("rule")
    ]
    none = advice[advice["theta"].isna()]
    if len(none):
        trials = advice.groupby("dataset").size()
        without = none.groupby("dataset").size()
        parts = [
            f"{without[d]} of {trials[d]} trials of {d}" for d in paper.in_order(none["dataset"])
        ]
        values = listed(f"{theta:g}" for theta in sorted(none["theta_low"].unique()))
        sentences.append(
            f"It suggests none in {listed(parts)}. There SoftAD was trained at θ = {values}, the "
            "smallest value that it can suggest."
        )
    return sentences


def _against_erm_lines(table: pd.DataFrame, measure: str, word: str) -> list[str]:
    """Say which methods have a smaller mean than ERM, and for which an interval shows a difference."""
    unadjusted = f"by the 95 % interval, not adjusted for {len(table)} comparisons"
    heads = {
        "every": f"Mean {word} below ERM's on each of its sets:",
        "some": f"Mean {word} below ERM's on some of its sets only:",
        "none": f"Mean {word} below ERM's on none of its sets:",
        "smaller": f"Smaller {word} than ERM's {unadjusted}:",
        "larger": f"Larger {word} than ERM's {unadjusted}:",
    }
    names: dict[str, list[str]] = {head: [] for head in heads}
    table = table.assign(**{measure: table[measure].round(3)})  # as the table above prints it
    for name, part in table.groupby("name", sort=False):
        below = part["dataset"][part[measure] < 0]
        if below.empty or len(below) == len(part):
            names["every" if len(below) else "none"].append(str(name))
        else:
            names["some"].append(f"{name} on {listed(below)}")
        for side in ("smaller", "larger"):
            if len(sets := part["dataset"][part[f"{measure} is"] == side]):
                names[side].append(f"{name} on {listed(sets)}")
    return [f"{head} {'; '.join(names[key])}." for key, head in heads.items() if names[key]]


def untrained(runs: pd.DataFrame) -> list[str]:
    """Return the labels of the registry's methods that `runs` lacks."""
    return [LABELS[name] for name in METHODS if name not in set(runs["method"])]


def method_panels(
    runs: pd.DataFrame, datasets: Sequence[str], measures: Mapping[str, str]
) -> Figure:
    """Draw a row a dataset, a column a measure (name → axis label), a line a method; ERM's mean dashed.

    `runs`: one run per dataset, name and trial, with a column for every measure.
    """
    names = names_in(runs)
    size = (9.5, (0.22 * len(names) + 0.7) * len(datasets))
    grid: dict[str, Any] = {"squeeze": False, "sharey": True, "figsize": size}
    fig: Figure
    fig, axes = plt.subplots(len(datasets), len(measures), **grid)
    for row, dataset in zip(axes, datasets):
        for ax, (measure, label) in zip(row, measures.items()):
            part = runs[runs["dataset"] == dataset]
            values = part.groupby("name")[measure]
            for line, name in enumerate(names):
                if name not in values.groups:
                    continue
                trials = values.get_group(name)
                colour = PALETTE[part.loc[part["name"] == name, "method"].iloc[0]]
                ax.scatter(
                    trials, [line] * len(trials), s=16, color=colour, alpha=0.55, linewidths=0
                )
                ax.vlines(trials.mean(), line - 0.36, line + 0.36, color=colour, linewidth=2.4)
            if LABELS["erm"] in values.groups:
                level = values.get_group(LABELS["erm"]).mean()
                ax.axvline(level, color=PALETTE["erm"], linestyle="--", linewidth=0.9, zorder=0)
            ax.set_xlabel(label)
            ax.locator_params(axis="x", nbins=4)
        row[0].set_ylabel(dataset)
        row[0].set_yticks(range(len(names)), names)
        row[0].set_ylim(len(names) - 0.4, -0.6)
    return fig
