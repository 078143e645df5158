"""Stored rows → tidy tables with typed columns, one renderer of their cells, and the paper's layout."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from softadlib.analysis import paper
from softadlib.analysis.statistics import Mean, mean_interval, paired
from softadlib.methods import METHODS
from softadlib.results.selection import SWEEP, TIES, select

LABELS = {name: method.label for name, method in METHODS.items()}
DASH = "–"
MEANS = ("loss_train", "loss_test", "acc_test", "model_norm")
SUMMARY = [*SWEEP, "gap", "gap_low", "gap_high", *MEANS, "knob", "knob_sd", "tied", "edge", "n"]


class Cell(NamedTuple):
    """The format of a column: heading, digits, a factor, and whether the sign is always shown."""

    heading: str
    digits: int = 3
    factor: float = 1
    signed: bool = False

    def text(self, value: float) -> str:
        """Return the cell of one value; a dash for NaN."""
        sign = "+" if self.signed else ""
        if pd.isna(value):
            return DASH
        rounded = round(self.factor * value, self.digits) + 0.0  # no negative zero
        return f"{rounded:{sign}.{self.digits}f}"


CELLS = {
    "paper_gap": Cell("paper's gap"),
    "paper_knob": Cell("paper", 2),
    "gap": Cell("gap"),
    "loss_train": Cell("train loss"),
    "loss_test": Cell("test loss"),
    "acc_test": Cell("test accuracy, %", 1, 100),
    "model_norm": Cell("norm", 1),
    "knob": Cell("knob", 2),
    "theta": Cell("θ", 2),
    "tied": Cell("tied", 1),
    "acc_change": Cell("its acc. − ERM's, points", 1, 100, signed=True),
    "loss_change": Cell("its test loss − ERM's", signed=True),
    "softad_mean": Cell("SoftAD's mean", 2),
    "flooding_mean": Cell("Flooding's mean", 2),
    "hours": Cell("hours", 2),
}
"""Numeric columns of our tables; all others are written as they are."""


def render(frame: pd.DataFrame, cells: Mapping[str, Cell] = CELLS) -> pd.DataFrame:
    """Return every cell as text: `x` with `x_low`, `x_high` is an interval, `x` with `x_sd` mean (sd)."""
    text = {}
    for name in frame:
        base, _, end = str(name).rpartition("_")
        if end in ("low", "high", "sd") and base in frame:
            continue
        cell = cells.get(name)
        if cell is None:
            text[str(name)] = frame[name].astype(str)
        elif f"{name}_low" in frame:
            columns = frame[[name, f"{name}_low", f"{name}_high", "n"]].to_numpy(dtype=float)
            text[f"{cell.heading} [95 %]"] = [interval(cell, *line) for line in columns]
        elif f"{name}_sd" in frame:
            pairs = zip(frame[name], frame[f"{name}_sd"])
            text[cell.heading] = [_mean_sd(cell, mean, sd) for mean, sd in pairs]
        else:
            text[cell.heading] = [cell.text(value) for value in frame[name]]
    return pd.DataFrame(text, index=frame.index)


def interval(cell: Cell, mean: float, low: float, high: float, n: float) -> str:
    """Return `mean [low, high]`, of one trial the mean alone."""
    return f"{cell.text(mean)} [{cell.text(low)}, {cell.text(high)}]" if n > 1 else cell.text(mean)


def _mean_sd(cell: Cell, mean: float, sd: float) -> str:
    return cell.text(mean) if pd.isna(sd) else f"{cell.text(mean)} ({cell.text(sd)})"


def differences(
    runs: pd.DataFrame,
    case: Sequence[str],
    measures: Sequence[str],
    name: str = "method",
    reference: str = "erm",
) -> pd.DataFrame:
    """Return every method minus `reference`, paired by trial: a line per case and method.

    Args:
        runs: a row per case, method and trial.
        case: columns within which methods are compared.
        measures: columns to subtract. Each becomes the mean difference, with `_low` and `_high` the ends
            of Student's 95 % interval, and ` is`: smaller, larger, or open where the interval holds 0.
        name: the column that tells methods apart; lines follow its first appearance.
        reference: one of its values; cases without it have no lines.
    """
    lines = []
    for key, part in runs.groupby(list(case), sort=False):
        facts = dict(zip(case, key))
        by_name = dict(iter(part.set_index("trial").groupby(name, sort=False)[list(measures)]))
        for label in [label for label in by_name if label != reference and reference in by_name]:
            both = by_name[label].merge(by_name[reference], on="trial", suffixes=("", "_reference"))
            line = {**facts, name: label}
            for measure in measures:
                mean = paired(both[measure], both[f"{measure}_reference"])
                line |= {measure: mean.mean, f"{measure}_low": mean.low}
                line |= {f"{measure}_high": mean.high, f"{measure} is": _side(mean)}
            lines.append(line | {"n": len(both)})
    columns = [f"{m}{end}" for m in measures for end in ("", "_low", "_high", " is")]
    return pd.DataFrame(lines, columns=[*case, name, *columns, "n"])


def _side(mean: Mean) -> str:
    return "smaller" if mean.high < 0 else "larger" if mean.low > 0 else "open"


def interval_ends(values: pd.Series) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a mean; infinite where a run diverged."""
    return mean_interval(values)[1:3] if np.isfinite(values).all() else (-np.inf, np.inf)


def summary(rows: pd.DataFrame, ties: str = "largest") -> pd.DataFrame:
    """Return means over the selected runs of all trials, per dataset, label noise and method.

    `gap` is test minus train cross-entropy (nats) at the final epoch, `gap_low`, `gap_high` its 95 %
    Student interval over trials; `knob`, `knob_sd` (ddof = 1) the selected values; `tied` the mean number
    of values of equal validation accuracy; `edge` the trials that chose an end of their grid; `n` the trials.
    """
    runs = select(rows, ties)
    runs = runs.assign(gap=runs["loss_test"] - runs["loss_train"])
    cases = runs.groupby(SWEEP)
    means = cases[["gap", *MEANS, "knob", "tied"]].mean()
    ends = [interval_ends(values) for _, values in cases["gap"]]
    means[["gap_low", "gap_high"]] = np.array(ends, dtype=float).reshape(-1, 2)
    means = means.assign(knob_sd=cases["knob"].std(ddof=1), edge=cases["at_edge"].sum())
    means = means.assign(n=cases.size()).reset_index()
    rank = {name: i for i, name in enumerate(METHODS)}
    return means[SUMMARY].sort_values(
        SWEEP,
        key=lambda column: column.map(rank) if column.name == "method" else column,
        ignore_index=True,
    )


def loss_gap(rows: pd.DataFrame, datasets: Sequence[str], methods: Sequence[str]) -> pd.DataFrame:
    """Return Tables 1 and 3 as text: the paper's gaps beside ours under both tie rules.

    Beside every gap of ours its 95 % Student interval, test loss, test accuracy and n. `rows` have one
    label noise; the paper flips no labels, so its columns are missing where `rows` do.
    """
    ours = ["gap", "gap_low", "gap_high", "loss_test", "acc_test", "n"]
    printed = {
        f"Table {table}": paper.printed(table)["mean"].map(CELLS["gap"].text) for table in (1, 3)
    }
    return _beside_the_paper(rows, datasets, methods, printed, ours)


def hyperparameters(
    rows: pd.DataFrame, datasets: Sequence[str], methods: Sequence[str]
) -> pd.DataFrame:
    """Return Tables 2 and 4 as text: mean (sd) of the selected knob, the paper's and ours.

    `edge`: trials that chose an end of the grid; `tied`: mean number of values that shared the best
    validation accuracy.
    """
    printed = {
        f"Table {table}": paper.printed(table).apply(
            lambda r: _mean_sd(CELLS["knob"], r["mean"], r["std"]), axis=1
        )
        for table in (2, 4)
    }
    return _beside_the_paper(
        rows, datasets, methods, printed, ["knob", "knob_sd", "edge", "tied", "n"]
    )


def _beside_the_paper(
    rows: pd.DataFrame,
    datasets: Sequence[str],
    methods: Sequence[str],
    printed: Mapping[str, pd.Series],
    columns: Sequence[str],
) -> pd.DataFrame:
    """Return the paper's cells by table, then `columns` of `summary` under both tie rules, as text."""
    keys = pd.MultiIndex.from_product([datasets, methods], names=["dataset", "method"])
    blocks = {}
    if not (rows["label_noise"] > 0).any():
        cells = {name: series.reindex(keys) for name, series in printed.items()}
        blocks["paper"] = pd.DataFrame(cells).dropna(axis="columns", how="all")
    for ties in TIES:
        ours = summary(rows, ties).set_index(["dataset", "method"])[list(columns)]
        blocks[f"ties to the {ties}"] = render(ours).reindex(keys)
    table = pd.concat(blocks, axis="columns").astype(object).fillna(DASH)
    return table.rename(index=LABELS, level="method")


def gap_verdicts(rows: pd.DataFrame, methods: Sequence[str] = paper.COMPARED) -> pd.DataFrame:
    """Return which of `methods` have the largest and smallest mean gap, per dataset and tie rule.

    `acc_change` is the test accuracy of the method with the smallest gap minus ERM's, `loss_change` its
    test cross-entropy minus ERM's, in nats; `n` the smaller number of trials of these two.
    """
    lines = []
    for ties in TIES:
        means = summary(rows[rows["method"].isin(methods)], ties)
        for dataset in paper.in_order(means["dataset"]):
            part = means[means["dataset"] == dataset].set_index("method")
            if "erm" not in part.index or len(part) < 2:
                continue
            largest, smallest = part["gap"].idxmax(), part["gap"].idxmin()
            tests = part[["acc_test", "loss_test"]]
            changes = tests.loc[smallest] - tests.loc["erm"]
            named = [LABELS[largest], LABELS[smallest]]
            n = int(part.loc[[smallest, "erm"], "n"].min())
            lines.append([ties, dataset, *named, *changes, n])
    columns = ["largest gap", "smallest gap", "acc_change", "loss_change", "n"]
    return pd.DataFrame(lines, columns=["ties", "dataset", *columns])


def theta_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Count the trials with SoftAD's selected θ above, equal to, below Flooding's; add both means."""
    lines = []
    for ties in TIES:
        knobs = select(rows, ties).pivot_table(
            index=["dataset", "trial"], columns="method", values="knob"
        )
        if not {"softad", "flooding"} <= set(knobs.columns):
            continue
        pairs = knobs[["softad", "flooding"]].dropna()
        for dataset in paper.in_order(pairs.index.get_level_values("dataset")):
            part = pairs.loc[dataset]
            above = (part["softad"] > part["flooding"]).sum()
            equal = (part["softad"] == part["flooding"]).sum()
            counts = [above, equal, len(part) - above - equal, len(part)]
            lines.append([ties, dataset, *counts, *part.mean()])
    columns = ["ties", "dataset", "above", "equal", "below", "n", "softad_mean", "flooding_mean"]
    return pd.DataFrame(lines, columns=columns)


def effort(provenances: pd.DataFrame) -> pd.DataFrame:
    """Return what a table rests on, per dataset: trials, values per method, epochs, samples.

    `provenances` as `results.reader.provenances` gives them; samples are train + val + test, "all" of a
    part that was not cut. Where methods differ, both ends are named: 3–15.
    """
    facts = ["trials", "grid", "epochs", "samples", "dtype"]
    if provenances.empty:
        return pd.DataFrame(columns=facts)
    groups = provenances.groupby("dataset", sort=False)
    swept = provenances[provenances["method"] != "erm"].groupby("dataset")["grid"].agg(_range_words)
    table = groups[facts].agg(_range_words)
    table["grid"] = swept.reindex(table.index).fillna(1)
    return table.loc[paper.in_order(table.index)].rename(columns={"grid": "values per method"})


def _range_words(values: pd.Series) -> Any:
    """Return the single value, or minimum–maximum."""
    ends = sorted(set(values))
    return ends[0] if len(ends) == 1 else f"{ends[0]}–{ends[-1]}"


def trajectory_points(curves: pd.DataFrame, count: int = 3) -> pd.DataFrame:
    """Return means over trials at the first epoch, the last, and some between."""
    epochs = sorted(curves["epoch"].unique())
    at = sorted({epochs[round(i * (len(epochs) - 1) / count)] for i in range(count + 1)})
    points = curves[curves["epoch"].isin(at)].groupby(["method", "epoch"])
    means = points[["loss_train", "loss_test", "acc_test", "model_norm"]].mean().round(3)
    methods = [name for name in METHODS if name in set(curves["method"])]
    return means.unstack("epoch").reindex(methods).rename(index=LABELS)
