"""Sentences computed from rows: what a table or a picture shows, in words that cannot outlive their numbers."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from softadlib.analysis import paper, tables
from softadlib.analysis.statistics import paired
from softadlib.functional import LN2
from softadlib.results.selection import TIES, final, of_every_trial, select

DECIDABLE = 6
"""Trials from which an exact two-sided test of signs can reach 5 %: 2/2⁶ = 3 %."""
RULES = {"largest": "With ties to the largest value", "smallest": "With ties to the smallest value"}


def listed(names: Iterable[str]) -> str:
    """Write a, b and c; "no set" for none."""
    *most, last = list(names) or ["no set"]
    return f"{', '.join(most)} and {last}" if most else last


def bullets(sentences: Iterable[str]) -> str:
    """Return a Markdown list; neighbours about the same tie rule stand in a list below its name."""
    lines: list[str] = []
    before = None
    for sentence in sentences:
        rule = next((r for r in RULES.values() if sentence.startswith(f"{r}: ")), None)
        if rule and rule != before:
            lines.append(f"- {rule}:")
        lines.append(f"  - {sentence.removeprefix(f'{rule}: ')}" if rule else f"- {sentence}")
        before = rule
    return "\n".join(lines)


def percent(share: float) -> str:
    """Write a share in per cent with all its digits: 0.025 is "2.5%"."""
    return f"{100 * share:g}%"


def split_sentence(subject: str, holds: pd.Series) -> str:
    """Say where a statement holds and where not: "… on a and b; not on c."."""
    yes, no = holds.index[holds], holds.index[~holds]
    if no.empty:
        return f"{subject} on every set here: {listed(yes)}."
    if yes.empty:
        return f"{subject} on no set here: not on {listed(no)}."
    return f"{subject} on {listed(yes)}; not on {listed(no)}."


def span(ordered: Iterable[object]) -> str:
    """Write the first and the last of ordered values, or one where they are alike."""
    values = [str(value) for value in ordered]
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def best_sentence(means: pd.DataFrame, what: str, lowest: bool) -> str:
    """Say which of the compared has the best mean on which set: a row per set, a column per method."""
    best = means.idxmin(axis=1) if lowest else means.idxmax(axis=1)
    order = [name for name in means if (best == name).any()]
    parts = [f"{name}, on {listed(paper.in_order(best[best == name].index))}" for name in order]
    return f"{what}: {'; '.join(parts)}."


def trials_sentence(counts: Iterable[int]) -> str:
    """Say what so many trials of each set can decide."""
    n = f"n = {span(sorted(counts := list(counts)))}"
    if max(counts) < DECIDABLE:
        return (
            f"At {n} no exact permutation test of paired trials can find a difference at 5 %: "
            "these sentences describe the runs and prove nothing."
        )
    if min(counts) < DECIDABLE:
        n += f"; sets with fewer than {DECIDABLE} trials cannot show a difference at 5 % by an exact permutation test"
    return f"{n}."


def gap_readings(rows: pd.DataFrame) -> list[str]:
    """Say in words what Tables 1 and 3 hold, for one label noise: gap, test loss, iFlood, what n allows."""
    sentences = []
    for ties in TIES:
        means = tables.summary(rows, ties).set_index(["dataset", "method"]).unstack("method")
        complete = means["n"].reindex(columns=list(paper.COMPARED)).dropna()
        if len(complete):
            lines = _gap_lines(means.loc[paper.in_order(complete.index)])
            lines += _close_line(rows, ties, paper.in_order(complete.index))
            sentences += [f"{RULES[ties]}: {line}" for line in lines]
    if sentences:
        sentences += _unequal_lines(rows)
        sentences.append(trials_sentence(rows.groupby("dataset")["trial"].nunique()))
    return sentences


def _unequal_lines(rows: pd.DataFrame) -> list[str]:
    """Name the datasets on which methods have different trials, whose means therefore differ in data too."""
    trials = rows.groupby(["dataset", "method"])["trial"].nunique().groupby("dataset")
    ends = trials.agg(["min", "max"])
    ends = ends[ends["min"] < ends["max"]]
    return [
        f"On {d} methods have {ends['min'][d]} to {ends['max'][d]} trials: means of two methods may be "
        "over different data."
        for d in paper.in_order(ends.index)
    ]


def _gap_lines(means: pd.DataFrame) -> list[str]:
    """Return the sentences of one tie rule, from a row per dataset and columns (measure, method)."""
    gap, loss = means["gap"], means["loss_test"]
    four = gap[list(paper.COMPARED)]
    lines = [
        split_sentence(
            "SoftAD has the smallest mean gap of the four methods of Table 1",
            four.idxmin(axis=1) == "softad",
        ),
        split_sentence("ERM has the largest mean gap", four.idxmax(axis=1) == "erm"),
    ]
    if "iflood" in gap:
        pairs = gap[["iflood", "softad"]].dropna()
        smaller = pairs["iflood"].round(3) < pairs["softad"].round(3)  # as the tables print them
        if len(pairs):
            lines.append(split_sentence("iFlood's gap is smaller than SoftAD's", smaller))
    price = split_sentence("SoftAD's test loss is above ERM's", loss["softad"] > loss["erm"])
    losses = [
        f"{d} {soft:.3f} against {erm:.3f}" for d, soft, erm in loss[["softad", "erm"]].itertuples()
    ]
    lines.append(f"{price} SoftAD against ERM: {'; '.join(losses)}.")
    points = 100 * (means["acc_test"]["softad"] - means["acc_test"]["erm"])
    changes = listed(f"{change:+.1f} on {d}" for d, change in points.round(1).add(0.0).items())
    lines.append(f"SoftAD's mean test accuracy minus ERM's, in points: {changes}.")
    return lines


def _close_line(rows: pd.DataFrame, ties: str, datasets: Iterable[str]) -> list[str]:
    """Name the sets where the paired difference of the two smallest gaps has an interval around 0."""
    runs = select(rows, ties)
    runs = runs.assign(gap=runs["loss_test"] - runs["loss_train"])
    close = []
    for dataset in datasets:
        gaps = runs[runs["dataset"] == dataset].pivot(index="trial", columns="method", values="gap")
        gaps = gaps[list(paper.COMPARED)].dropna()
        if len(gaps) < 2 or not np.isfinite(gaps).all(axis=None):
            continue
        first, second = gaps.mean().nsmallest(2).index
        difference = paired(gaps[second], gaps[first])
        if difference.low <= 0 <= difference.high:
            labels = f"{tables.LABELS[second]} minus {tables.LABELS[first]}"
            cell = tables.interval(tables.CELLS["gap"], *difference)
            close.append(f"{dataset} ({labels}: {cell})")
    if not close:
        return []
    return [
        f"The 95 % interval of paired trials does not tell the two smallest gaps apart on {listed(close)}."
    ]


def theta_readings(rows: pd.DataFrame) -> list[str]:
    """Say in words what Tables 2 and 4 hold: SoftAD's θ against Flooding's, by means and by trials."""
    order, sentences = tables.theta_order(rows), []
    for ties, part in order.groupby("ties", sort=False):
        part = part.set_index("dataset")
        above = part["softad_mean"] > part["flooding_mean"]
        means = [
            f"{d} {r['softad_mean']:.2f} against {r['flooding_mean']:.2f}"
            for d, r in part.iterrows()
        ]
        counts = [f"{r['above']} of {r['n']} on {d}" for d, r in part.iterrows()]
        sentence = split_sentence("SoftAD's mean θ is above Flooding's", above)
        sentences.append(f"{RULES[str(ties)]}: {sentence} Means: {'; '.join(means)}.")
        sentences.append(f"{RULES[str(ties)]}: Trial by trial it is above in {listed(counts)}.")
    largest = tables.summary(rows, "largest")
    soft = largest[largest["method"] == "softad"].set_index("dataset")
    if len(soft):
        tied = [f"{soft.loc[d, 'tied']:.1f} on {d}" for d in paper.in_order(soft.index)]
        sentences.append(
            f"Values of θ that share the best validation accuracy, on average: {listed(tied)}."
        )
    return sentences


def trajectory_readings(curves: pd.DataFrame) -> list[str]:
    """Describe the last epoch of the selected runs of one dataset: norm, order of losses, accuracy."""
    ends = (
        final(curves)
        .groupby("method")[["loss_train", "loss_test", "acc_test", "model_norm"]]
        .mean()
    )
    if len(ends) < 2:
        return []
    labels = tables.LABELS
    norm, train = ends["model_norm"].idxmin(), ends["loss_train"].idxmax()
    alike = "the same method" if norm == train else "another method"
    orders = {
        part: [labels[m] for m in ends[f"loss_{part}"].sort_values().index]
        for part in ("train", "test")
    }
    same = "the same order" if orders["train"] == orders["test"] else "not the same order"
    sentences = [
        f"Norm: {labels[norm]}'s is the smallest at the end, {ends.loc[norm, 'model_norm']:.1f}; the highest "
        f"training loss is that of {alike}, {labels[train]}'s {ends.loc[train, 'loss_train']:.3f}.",
        f"Training losses from the lowest: {', '.join(orders['train'])}; "
        f"test losses: {', '.join(orders['test'])} ({same}).",
    ]
    if {"softad", "erm"} <= set(ends.index):
        loss = ends["loss_test"]
        side = "above" if loss["softad"] > loss["erm"] else "below"
        change = 100 * (ends.loc["softad", "acc_test"] - ends.loc["erm", "acc_test"])
        sentences.append(
            f"SoftAD ends with a test loss of {loss['softad']:.3f}, {side} ERM's {loss['erm']:.3f}, "
            f"at an accuracy {change:+.1f} points from ERM's."
        )
    return sentences


def grid_readings(rows: pd.DataFrame) -> list[str]:
    """Describe SoftAD along its grid: across ln 2, and at its smallest θ against ERM, nothing selected."""
    ends, sentences = final(rows), []
    for dataset in paper.in_order(ends["dataset"]):
        part = ends[ends["dataset"] == dataset]
        softad = of_every_trial(part[part["method"] == "softad"])
        means = softad.groupby("knob")[["acc_test", "loss_test"]].mean()
        if means.empty:
            continue
        below, above = means[means.index < LN2], means[means.index >= LN2]
        if len(below) and len(above):
            sentences.append(
                f"{dataset}: from θ = {below.index[-1]:.2f} to {above.index[0]:.2f}, across ln 2, "
                f"SoftAD's accuracy goes from {below['acc_test'].iloc[-1]:.1%} to {above['acc_test'].iloc[0]:.1%}."
            )
        erm = part.loc[part["method"] == "erm", ["acc_test", "loss_test"]].mean()
        if erm.isna().any():
            continue
        values = part.loc[part["method"] == "softad", "knob"].nunique()
        smallest = ", the smallest of the grid," if values > 1 else ","
        first = means.iloc[0]
        side = "below" if first["loss_test"] < erm["loss_test"] else "not below"
        sentences.append(
            f"{dataset}: at θ = {means.index[0]:.2f}{smallest} SoftAD's test loss "
            f"{first['loss_test']:.3f} is {side} ERM's {erm['loss_test']:.3f}, "
            f"at accuracies of {first['acc_test']:.1%} and {erm['acc_test']:.1%}."
        )
    return sentences
