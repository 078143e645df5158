"""One table and a few sentences on a profile: what SoftAD does beside plain training and its rivals."""

import math

import pandas as pd

from softadlib._validation import UserError
from softadlib.analysis import coverage, markdown, paper, readings, tables
from softadlib.results import reader
from softadlib.results.selection import of_every_trial, select

OVERVIEW = ("gap", "loss_test", "acc_test", "model_norm")
"""Measures of the table."""
RIVALS = ("flooding", "sam")
SIDES = (
    "ERM",
    "SoftAD, smallest θ",
    "SoftAD, selected θ",
    "Flooding, selected θ",
    "SAM, selected radius",
)
BEST = {"loss_test": ("Lowest mean test loss", True), "acc_test": ("Highest mean accuracy", False)}
"""What to name the best of: measure → words, and whether the lowest is best."""


def overview(profile: str) -> str:
    """Write one table and its sentences: ERM, SoftAD at its smallest and selected θ, and its rivals.

    Values are selected by validation accuracy, ties to the largest. Raises UserError where no dataset
    has finished runs of ERM and SoftAD.
    """
    rows, provenances = reader.read(profile, final=True), reader.provenances(profile)
    if rows.empty:
        raise UserError(f"profile {profile!r} has no finished runs of ERM and SoftAD")
    labels = coverage.labels(provenances[provenances["method"].isin(["erm", "softad", *RIVALS])])
    lines, best_thetas, words = [], [], coverage.auto_words(provenances)
    for dataset in paper.in_order(rows["dataset"].unique()):
        part = rows[rows["dataset"] == dataset]
        erm, softad = (part[part["method"] == name] for name in ("erm", "softad"))
        if len(erm) and len(softad):
            grid = softad[:0] if (dataset, "softad") in words else of_every_trial(softad)
            smallest = grid[grid["knob"] == grid["knob"].min()]
            rivals = (select(part[part["method"] == name], "largest") for name in RIVALS)
            for side, runs in zip(SIDES, (erm, smallest, select(softad, "largest"), *rivals)):
                if len(runs):
                    lines.append({"dataset": labels[dataset], "method": side, **_means(runs)})
            if len(grid):
                theta = grid.groupby("knob")["loss_test"].mean().idxmin()
                best_thetas.append(f"{theta:.2f} on {dataset}")
    if not lines:
        raise UserError(f"profile {profile!r} has no finished runs of ERM and SoftAD")
    table = pd.DataFrame(lines)
    by_side = table.set_index(["dataset", "method"])[list(OVERVIEW)].unstack("method")
    sentences = [_against_erm(by_side, side) for side in SIDES[1:3] if side in set(table["method"])]
    sentences += [readings.best_sentence(by_side[name], *words) for name, words in BEST.items()]
    if best_thetas:
        sentences.append(f"SoftAD's test loss is lowest at θ = {readings.listed(best_thetas)}.")
    sentences.append(readings.trials_sentence(table["n"]))
    table["dataset"] = table["dataset"].mask(table["dataset"].duplicated(), "")
    return f"{markdown.to_markdown(tables.render(table))}\n\n{readings.bullets(sentences)}\n"


def _means(runs: pd.DataFrame) -> dict[str, float]:
    """Return θ, the number of trials, and means over the runs; SAM's radius is no θ."""
    runs = runs.assign(gap=runs["loss_test"] - runs["loss_train"])
    means = runs[list(OVERVIEW)].mean().to_dict()
    theta = math.nan if (runs["method"] == "sam").all() else runs["knob"].mean()
    return {"theta": theta, "n": runs["trial"].nunique(), **means}


def _against_erm(means: pd.DataFrame, side: str) -> str:
    """Say on how many sets a SoftAD has a smaller gap, norm and test loss than ERM, and its accuracy."""
    softad = means.xs(side, axis=1, level="method").dropna()
    erm = means.xs(SIDES[0], axis=1, level="method").loc[softad.index]
    smaller, change = (softad < erm).sum(), 100 * (softad["acc_test"] - erm["acc_test"])
    return (
        f"{side}: a smaller gap than ERM's on {smaller['gap']} of {len(softad)} sets, a smaller norm on "
        f"{smaller['model_norm']}, a smaller test loss on {smaller['loss_test']}; accuracy "
        f"{change.min():+.1f} to {change.max():+.1f} points from ERM's."
    )
