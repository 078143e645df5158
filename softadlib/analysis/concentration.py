"""How the losses of single samples lie around θ: numbers and sentences from `selected.parquet`.

θ of a run is its own knob; for a method without θ it is that of SoftAD's selected run in the same
trial. Shares come from 101 quantiles by linear interpolation, so they are right to one in a hundred.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from softadlib.analysis import paper
from softadlib.analysis.readings import listed, split_sentence, trials_sentence
from softadlib.analysis.statistics import mean_interval
from softadlib.analysis.tables import LABELS, Cell
from softadlib.methods import METHODS
from softadlib.results import sample_losses
from softadlib.results.schema import LEVELS

WIDTH = 0.1
"""Losses count as near θ where they lie no farther from it than this, in nats, and than θ/2."""
NEAR = f"within min({WIDTH}, θ/2) of θ"
STAGES = ("start", "quarter", "half", "three quarters", "end")
"""Parts of training after which losses are stored."""
MEASURES = ("near", "spread", "below")
CELLS = {
    "theta": Cell("θ", 2),
    "near": Cell(f"{NEAR}, %", 0, 100),
    "spread": Cell("interquartile range, nats"),
    "below": Cell("below θ/2, %", 0, 100),
    "start": Cell("the same before the first step, %", 0, 100),
}
"""How `tables.render` writes the columns."""


def share_below(quantiles: np.ndarray, values: ArrayLike) -> np.ndarray:
    """Share of samples with a loss of at most each of `values`: the inverse of their quantiles (101,)."""
    points = np.asarray(values, dtype=float)
    return np.asarray(np.interp(points, quantiles, LEVELS, left=0, right=1))


def with_theta(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `results.sample_losses` with a column `theta`; those without any θ are left out."""
    has_theta = rows["method"].map(
        {name: method.knob == "theta" for name, method in METHODS.items()}
    )
    case = ["dataset", "label_noise", "trial"]
    softad = rows[rows["method"] == "softad"].drop_duplicates(case).set_index(case)["knob"]
    other = rows[case].join(softad.rename("theta"), on=case)["theta"]
    return rows.assign(theta=rows["knob"].where(has_theta, other)).dropna(subset=["theta"])


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `with_theta` of the rows and MEASURES, a line per run, epoch and part."""
    rows = with_theta(rows)
    lines = []
    for quantiles, theta in zip(rows["quantiles"], rows["theta"]):
        width = min(WIDTH, theta / 2)
        near = share_below(quantiles, theta + width) - share_below(quantiles, theta - width)
        spread = float(quantiles[75]) - float(quantiles[25])
        lines.append((float(near), spread, float(share_below(quantiles, theta / 2))))
    return rows.assign(**dict(zip(MEASURES, np.array(lines).reshape(-1, 3).T)))


def last(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last epoch of every run."""
    runs = ["dataset", "method", "label_noise", "trial", "knob"]
    ends = rows.groupby(runs, dropna=False)["epoch"].transform("max")
    return rows[rows["epoch"] == ends]


def concentration(rows: pd.DataFrame, part: str = "train") -> pd.DataFrame:
    """Return per dataset and method at the last epoch: mean θ and MEASURES with Student's intervals, n.

    `start` is the share near θ before the first step.
    """
    rows = shares(rows[rows["part"] == part])
    lines = []
    for dataset in paper.in_order(rows["dataset"]):
        for method in METHODS:
            runs = rows[(rows["dataset"] == dataset) & (rows["method"] == method)]
            if runs.empty:
                continue
            ends = last(runs)
            line: dict[str, object] = {"dataset": dataset, "method": method}
            line["theta"] = ends["theta"].mean()
            for name in MEASURES:
                line[name], line[f"{name}_low"], line[f"{name}_high"], _ = mean_interval(ends[name])
            line["start"] = runs.loc[runs["epoch"] == 0, "near"].mean()
            lines.append(line | {"n": len(ends)})
    ends_of = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
    return pd.DataFrame(lines, columns=["dataset", "method", "theta", *ends_of, "start", "n"])


def development(rows: pd.DataFrame, part: str = "train") -> pd.DataFrame:
    """Return mean share of losses near θ per dataset and method (rows) at each stored epoch (columns)."""
    rows = shares(rows[rows["part"] == part])
    means = rows.groupby(["dataset", "method", "epoch"])["near"].mean().reset_index()
    last_epoch = means.groupby(["dataset", "method"])["epoch"].transform("max").clip(lower=1)
    means["stage"] = (4 * means["epoch"] / last_epoch).round().astype(int)
    names = dict(enumerate(STAGES))
    table = means.pivot(index=["dataset", "method"], columns="stage", values="near")
    keys = [
        (d, m) for d in paper.in_order(rows["dataset"]) for m in METHODS if (d, m) in table.index
    ]
    return table.loc[keys].rename(columns=names)


def readings(rows: pd.DataFrame) -> list[str]:
    """Say what the rows of one label noise show of the claim that losses concentrate around θ."""
    sentences = []
    for part, word in (("train", "training"), ("test", "test")):
        table = concentration(rows, part)
        by_set = {
            dataset: lines.set_index("method")
            for dataset, lines in table.groupby("dataset", sort=False)
            if "softad" in set(lines["method"]) and len(lines) > 1
        }
        if by_set:
            sentences += _of_part(by_set, word)
    if sentences:
        sentences.append(trials_sentence(rows.groupby("dataset")["trial"].nunique()))
    return sentences


def _of_part(by_set: dict[str, pd.DataFrame], word: str) -> list[str]:
    """Write the sentences on one part, from each dataset's `concentration` by method."""
    near = {dataset: lines["near"] for dataset, lines in by_set.items()}
    sentences = [
        _where(
            f"SoftAD has the largest share of {word} losses {NEAR}, or one within a point of it,",
            {d: bool(values["softad"] >= values.max() - 0.01) for d, values in near.items()},
        ),
        _where(
            f"More than half of SoftAD's {word} losses lie there",
            {dataset: bool(values["softad"] > 0.5) for dataset, values in near.items()},
        ),
    ]
    for dataset, lines in by_set.items():
        each = ", ".join(f"{LABELS[m]} {value:.0%}" for m, value in lines["near"].items())
        sentences.append(f"{dataset}, {word}, {NEAR}: {each}.")
    if word == "training":
        near_ln2 = {d: bool(lines.loc["softad", "start"] > 0.5) for d, lines in by_set.items()}
        sentences.append(
            _where(
                "Before the first step most training losses are near SoftAD's θ already, since all "
                "begin near ln K and that θ is close to it,",
                near_ln2,
            )
        )
    flooding = {d: lines for d, lines in by_set.items() if "flooding" in lines.index}
    if flooding:
        wider = {
            d: bool(t["spread"]["flooding"] > t["spread"]["softad"]) for d, t in flooding.items()
        }
        sentences.append(
            _where(
                f"Flooding's {word} losses have a wider interquartile range than SoftAD's", wider
            )
        )
    return sentences


def _where(subject: str, holds: Mapping[str, bool]) -> str:
    """Say on which datasets a statement holds."""
    return split_sentence(subject, pd.Series(holds, dtype=bool))


def origin(losses: pd.DataFrame, rows: pd.DataFrame, profile: str) -> list[str]:
    """Say which datasets of metrics `rows` have no losses stored, and how far the runs of others end away."""
    sentences = []
    without = [d for d in paper.in_order(rows["dataset"]) if d not in set(losses["dataset"])]
    if without:
        command = f"softad train {profile} --dataset {','.join(without)} --losses"
        sentences.append(
            f"No losses of single samples are stored of {listed(without)}: `{command}` stores them."
        )
    apart = sample_losses.end_differences(losses, rows)
    if apart.any():
        sentences.append(
            f"{(apart > 0).sum()} of the {len(apart)} runs below were trained again on another kind of "
            f"machine than the rows of the tables: their test losses end up to {apart.max():.2g} nats from those."
        )
    return sentences
