"""Tables with typed columns from stored rows, beside the numbers that paper and authors print."""

from collections.abc import Iterable, Mapping, Sized
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from softadlib._validation import MissingData, UserError, choose
from softadlib.functional import LN2
from softadlib.methods import METHODS
from softadlib.trainer.splits import PARTS
from softadlib.workbook.analysis import published
from softadlib.workbook.analysis.statistics import mean_interval
from softadlib.workbook.studies import params, results
from softadlib.workbook.studies.read import training_words

DATASETS = ("gaussian", "sinusoid", "spiral", "cifar10", "cifar100", "fashionmnist", "svhn")
"""The paper's datasets, in the order of its tables."""
COMPARED = ("erm", "flooding", "sam", "softad")
"""The methods of the paper's Table 1."""


class _Labels(dict[str, str]):
    """Labels of methods; a method that is not registered goes by its name in the files."""

    def __missing__(self, name: str) -> str:
        return METHODS[name].label if name in METHODS else name


LABELS = _Labels({name: method.label for name, method in METHODS.items()})


class _Titles(dict[str, str]):
    """Names of datasets, as the paper writes them; a dataset without one goes by its name in the files."""

    def __missing__(self, name: str) -> str:
        return name


TITLES = _Titles(
    fashionmnist="FashionMNIST",
    cifar10="CIFAR-10",
    cifar100="CIFAR-100",
    svhn="SVHN",
    letters="Letters",
)
RULES = {
    "largest": "ties to the largest",
    "smallest": "ties to the smallest",
    "loss": "by validation loss",
}
"""Rules of `results.select` and their headings."""
PRINTED = {"gap": (1, 3), "knob": (2, 4)}
"""Measure → the paper's tables that print it."""
DASH = "–"


class Cell(NamedTuple):
    """The format of a column: heading, digits, a factor, whether the sign is always shown.

    `is_value` marks values of a hyperparameter. 0.012 and 0.01 are two of them, so they have three
    significant digits, and at least `digits` decimals.
    """

    heading: str
    digits: int = 3
    factor: float = 1
    signed: bool = False
    is_value: bool = False

    def text(self, value: float) -> str:
        """Return the cell of one value; a dash for NaN."""
        sign = "+" if self.signed else ""
        if pd.isna(value):
            return DASH
        if self.is_value:
            return self.value_text(value)
        rounded = round(self.factor * value, self.digits) + 0.0  # no negative zero
        return f"{rounded:{sign}.{self.digits}f}"

    def value_text(self, value: float, significant: int = 3) -> str:
        """Return a value of a hyperparameter: 0.10, 0.012, 0.00001."""
        short = np.format_float_positional(value, significant, fractional=False, trim="-")
        _, _, decimals = short.partition(".")
        return f"{value:.{max(self.digits, len(decimals))}f}"

    def texts(self, values: Iterable[float]) -> list[str]:
        """Return the cells of a column; values that differ have texts that differ."""
        values = list(values)
        if not self.is_value:
            return [self.text(value) for value in values]
        different = {value for value in values if not pd.isna(value)}
        for significant in (*range(3, 8), 3):  # in the eighth digit they differ by rounding
            if len({self.value_text(value, significant) for value in different}) == len(different):
                break
        return [DASH if pd.isna(value) else self.value_text(value, significant) for value in values]


CELLS = {
    "gap": Cell("gap"),
    "loss_train": Cell("train loss"),
    "loss_test": Cell("test loss"),
    "acc_test": Cell("accuracy, %", 1, 100),
    "model_norm": Cell("norm", 1),
    "knob": Cell("value", 2, is_value=True),
    "theta": Cell("θ", 2, is_value=True),
    "value_last": Cell("value", 2, is_value=True),
    "value_early": Cell("value, early", 2, is_value=True),
    "loss_last": Cell("test loss, last"),
    "loss_early": Cell("early"),
    "temperature": Cell("T", 2),
    "loss_after_t": Cell("after T"),
    "acc_last": Cell("accuracy, %, last", 1, 100),
    "acc_early": Cell("accuracy, %, early", 1, 100),
    "ece": Cell("ECE, %", 1, 100),
    "tied": Cell("tied", 1),
    "hours": Cell("hours", 2),
    "noisy_loss": Cell("test loss, 5 % flipped"),
    "noisy_acc": Cell("accuracy, 5 % flipped, %", 1, 100),
}
"""Numeric columns of our tables; all others are written as they are."""
MATCHED = ["dataset", "label_noise", "method", "epochs"]
"""What both sides must share to stand on one line."""


class Shown:
    """A table as a page shows it, in plain text and in HTML: see `shown`."""

    def __init__(self, text: pd.DataFrame, bold: pd.DataFrame) -> None:
        self._text = text
        self._html = text.where(~bold, "<b>" + text.astype(str) + "</b>")

    def __repr__(self) -> str:
        return str(self._text.to_string())

    def _repr_html_(self) -> str:
        return str(self._html.to_html(escape=False))


def shown(
    table: pd.DataFrame,
    digits: int | Mapping[Any, int] = 3,
    best: str = "",
    along: str = "columns",
) -> Shown:
    """Show each number with a fixed count of decimals, and the best numbers in bold.

    Args:
        table: any frame; whole numbers and text stay as they are, what is missing becomes a dash.
        digits: decimals of all columns, or of each column that is named; the others have 3.
        best: "min" or "max"; "" marks nothing.
        along: the best of each row ("columns") or of each column ("rows").
    """
    places = {name: digits if isinstance(digits, int) else digits.get(name, 3) for name in table}
    text = table.astype(object).copy()
    for name in table:
        whole = not pd.api.types.is_float_dtype(table[name])
        cell = Cell(str(name), places[name])
        text[name] = [
            DASH if pd.isna(value) else str(value) if whole else cell.text(value)
            for value in table[name]
        ]
    bold = pd.DataFrame(False, index=table.index, columns=table.columns)
    if best:
        axis = 1 if along == "columns" else 0
        rounded = table.select_dtypes("number").round(places)
        bold[rounded.columns] = rounded.eq(rounded.agg(best, axis=axis), axis=1 - axis)
    return Shown(text, bold)


def in_order(datasets: Iterable[str]) -> list[str]:
    """Return datasets without repeats: the paper's in its order, then all others by name."""
    names = set(datasets)
    return [d for d in DATASETS if d in names] + sorted(names - set(DATASETS))


def by_registry(methods: Iterable[str]) -> list[str]:
    """Return methods without repeats in the registry's order; those it does not have come last, by name."""
    names = set(methods)
    return [name for name in METHODS if name in names] + sorted(names - METHODS.keys())


def ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Sort lines by the paper's order of datasets, then by the registry's of methods."""
    methods = by_registry(table["method"]) if "method" in table else []
    rank = {name: i for i, name in enumerate([*in_order(table["dataset"]), *methods])}
    by = [c for c in ("dataset", "method") if c in table]
    return table.sort_values(by, key=lambda c: c.map(rank), kind="stable", ignore_index=True)


def read(profile: str, label_noise: float | None = None, **options: Any) -> pd.DataFrame:
    """Return `results.read` with a column `gap`, test minus training cross-entropy.

    Raises MissingData, in one line, where a profile has no rows of this label noise.
    """
    rows = results.read(profile, label_noise=label_noise, **options)
    if rows.empty:
        every = results.provenances(profile)
        stored = "nothing" if every.empty else ", ".join(in_order(every["dataset"]))
        raise MissingData(
            f"profile {profile!r} has no rows of {options.get('dataset') or 'any dataset'}"
            f" at label noise {label_noise or 0:g}; stored: {stored}; softad train {profile} trains them"
        )
    return rows.assign(gap=rows["loss_test"] - rows["loss_train"])


def require_some(found: Sized, missing: str) -> None:
    """Raise MissingData, which leaves the page out, where there is nothing to show.

    Args:
        found: rows, sets or lines that the page shows.
        missing: what is not there, for the message.
    """
    if not len(found):
        raise MissingData(missing)


def require(
    rows: pd.DataFrame, *methods: str, sets: int = 1, what: str = "results"
) -> pd.DataFrame:
    """Return the rows of the datasets that have all methods which a page compares, else raise MissingData.

    Args:
        rows: of a profile.
        methods: each must have rows.
        sets: the fewest datasets.
        what: the rows, as the message names them.
    """
    found = rows.groupby("dataset")["method"].agg(set)
    rows = rows[rows["dataset"].isin([name for name, has in found.items() if has >= {*methods}])]
    if rows.empty:
        names = " and ".join(LABELS[method] for method in methods)
        raise MissingData(f"this page compares {names}; no data set has {what} of both")
    if rows["dataset"].nunique() < sets:
        raise MissingData(f"this page compares at least {sets} data sets")
    return rows


def by_rule(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return means of a measure over the runs that each rule selects: a line per dataset and method.

    Args:
        rows: final rows of one label noise, as `read` gives them.
        measure: gap (with Student's 95 % interval), knob (with its standard deviation), or a column.

    Columns: `n`, the number of trials; `paper_1` to `paper_4`, the paper's cells, where the rows have no
    flipped labels and the paper has the dataset; a column for each rule of `results.select`. Methods
    without a hyperparameter have no line in the table of its values.
    """
    key = ["dataset", "method"]
    rows = rows[rows["knob"].notna()] if measure == "knob" else rows
    selected = {rule: results.select(rows, rule).groupby(key)[measure] for rule in RULES}
    means = pd.DataFrame({rule: groups.mean() for rule, groups in selected.items()})
    table = pd.DataFrame({"n": selected["loss"].size()}, index=means.index)
    if not (rows["label_noise"] > 0).any():
        for number in PRINTED.get(measure, ()):
            paper = published.printed(number).reindex(table.index)
            if paper["mean"].notna().any():
                table[f"paper_{number}"] = paper["mean"]
                if measure == "knob":
                    table[f"paper_{number}_sd"] = paper["std"]
    for rule, groups in selected.items():
        table[rule] = means[rule]
        if measure == "gap":
            table[f"{rule}_low"] = groups.agg(lambda values: _ends(values)[0])
            table[f"{rule}_high"] = groups.agg(lambda values: _ends(values)[1])
        elif measure == "knob":
            table[f"{rule}_sd"] = groups.std(ddof=1)
    return ordered(table.rename_axis(key).reset_index())


def _ends(values: pd.Series) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a mean; infinite where a run diverged."""
    return mean_interval(values)[1:3] if np.isfinite(values).all() else (-np.inf, np.inf)


def rule_cells(measure: str) -> dict[str, Cell]:
    """Return the cells of `by_rule`: rules and printed tables as headings, digits of the measure."""
    choose("measure", measure, CELLS)
    names = RULES | {f"paper_{i}": f"paper, Table {i}" for i in range(1, 5)}
    return {name: CELLS[measure]._replace(heading=heading) for name, heading in names.items()}


def render(frame: pd.DataFrame, cells: Mapping[str, Cell] = CELLS) -> pd.DataFrame:
    """Return every cell as text: `x` with `x_low`, `x_high` is an interval, `x` with `x_sd` mean (sd)."""
    text = {}
    for name in frame:
        base, _, end = str(name).rpartition("_")
        if end in ("low", "high", "sd") and base in frame:
            continue
        cell = cells.get(str(name))
        if cell is None:
            text[str(name)] = frame[name].astype(str).replace({"nan": DASH, "None": DASH})
        elif f"{name}_low" in frame:
            columns = frame[[name, f"{name}_low", f"{name}_high", "n"]].to_numpy(dtype=float)
            text[f"{cell.heading} [95 %]"] = [interval(cell, *line) for line in columns]
        elif f"{name}_sd" in frame:
            pairs = zip(frame[name], frame[f"{name}_sd"])
            text[cell.heading] = [_mean_and_sd(cell, mean, sd) for mean, sd in pairs]
        else:
            text[cell.heading] = cell.texts(frame[name])
    return pd.DataFrame(text, index=frame.index)


def _mean_and_sd(cell: Cell, mean: float, sd: float) -> str:
    """Return `mean (sd)`. A mean of different values is no value of the grid: two digits are enough."""
    if pd.isna(sd):
        return cell.text(mean)
    if not cell.is_value or np.isclose(sd, 0):
        return f"{cell.text(mean)} ({cell._replace(is_value=False).text(sd)})"
    decimals = len(cell.value_text(mean, 2).partition(".")[2])
    return f"{mean:.{decimals}f} ({sd:.{decimals}f})"


def interval(cell: Cell, mean: float, low: float, high: float, n: float) -> str:
    """Return `mean [low, high]`, of one trial the mean alone."""
    return f"{cell.text(mean)} [{cell.text(low)}, {cell.text(high)}]" if n > 1 else cell.text(mean)


def beside_authors(
    rows: pd.DataFrame, quantities: Iterable[str] = ("knob", "loss_test", "acc_test", "model_norm")
) -> pd.DataFrame:
    """Return the authors' means beside ours, a line per dataset, label noise, method and quantity.

    Our runs are selected as theirs: the highest validation accuracy, ties to the largest value. Only
    runs of as many epochs as theirs are shown, clean labels first.

    Args:
        rows: of one or more profiles, as `results.read` gives them.
        quantities: columns of `rows`, in the order of the lines.

    Columns: `authors`, `authors_sd`, `authors_n`, `ours`, `ours_sd`, `ours_n`; a standard deviation
    (ddof = 1) is NaN where it is not printed, and of a single trial.

    Example:
        >>> from softadlib.workbook.studies import results
        >>> beside_authors(results.read("paper", "gaussian"))  # doctest: +SKIP
    """
    quantities = list(quantities)
    selected = results.select(rows, "largest").rename(columns={"epoch": "epochs"})
    ours = selected.melt([*MATCHED, "trial"], quantities, "quantity")
    ours = ours.groupby([*MATCHED, "quantity"])["value"].agg(
        ours="mean", ours_sd="std", ours_n="count"
    )

    theirs = published.printed_by_authors().rename(
        columns={"mean": "authors", "sd": "authors_sd", "n": "authors_n"}
    )
    theirs = theirs[theirs["quantity"].isin(quantities)]
    both = theirs.merge(ours.reset_index(), on=[*MATCHED, "quantity"])
    numbers = ["authors", "authors_sd", "authors_n", "ours", "ours_sd", "ours_n"]
    both = both[["dataset", "label_noise", "method", "quantity", *numbers]]
    both["quantity"] = pd.Categorical(both["quantity"], quantities)
    both = ordered(both.sort_values("quantity", kind="stable"))
    both["quantity"] = both["quantity"].astype(str)
    return both.sort_values("label_noise", kind="stable", ignore_index=True)


def along_theta(rows: pd.DataFrame) -> pd.DataFrame:
    """Return SoftAD's means at some of its grid: the ends, those nearest 0.1 and 0.3, both sides of ln 2."""
    lines = []
    softad = rows[rows["method"] == "softad"]
    for dataset, part in softad.groupby("dataset"):
        grid = pd.Series(sorted(part["knob"].unique()))
        near = [grid.iloc[(grid - at).abs().argmin()] for at in (0.1, 0.3)]
        above = grid >= LN2
        at = pd.Series([grid.min(), *near, grid[~above].max(), grid[above].min(), grid.max()])
        for theta in sorted(at.dropna().unique()):
            runs = part[part["knob"] == theta]
            means = runs[["gap", "loss_test", "acc_test", "model_norm"]].mean()
            lines.append({"dataset": dataset, "theta": theta, "n": len(runs), **means})
    return ordered(pd.DataFrame(lines)) if lines else pd.DataFrame()


def effort(provenances: pd.DataFrame) -> pd.DataFrame:
    """Return what a profile's results rest on, a line per dataset.

    Where methods differ, numbers have both ends, 3–15, and texts stand side by side.
    """
    facts = ["trials", "grid", "epochs", "samples", "label_noise", "dtype", "device", "torch"]
    groups = provenances.groupby("dataset", sort=False)
    table = groups[facts].agg(_both_ends)
    swept = provenances[provenances["method"] != "erm"].groupby("dataset")["grid"].agg(_both_ends)
    table["grid"] = swept.reindex(table.index).fillna(1)
    table["runs"] = groups["runs"].sum()
    table["hours"] = groups["seconds"].sum() / 3600
    if provenances["dataset"].isin(DATASETS).any():
        table["less than the paper"] = pd.Series(shortfalls(provenances))
    names = {"grid": "values per method", "label_noise": "label noise"}
    return table.loc[in_order(table.index)].rename(columns=names).reset_index()


def _both_ends(values: pd.Series) -> Any:
    """Return the single value, minimum–maximum of numbers, or all texts."""
    ends = sorted(set(values))
    several = ", ".join(ends) if isinstance(ends[0], str) else f"{ends[0]}–{ends[-1]}"
    return ends[0] if len(ends) == 1 else several


def shortfalls(provenances: pd.DataFrame) -> dict[str, str]:
    """Return dataset → where its results fall short of the paper's protocol or differ, "" for nowhere."""
    words = dict.fromkeys(provenances["dataset"], "")
    for dataset, part in provenances[provenances["dataset"].isin(DATASETS)].groupby("dataset"):
        try:
            paper = params.load("paper", str(dataset))
        except UserError:  # a workspace with profiles of its own alone
            continue
        sizes = " + ".join(str(getattr(paper, f"n_{p}") or "all") for p in PARTS)
        cuts = [
            f"{part[name].min()} of {whole} {name}"
            for name, whole in (("trials", paper.trials), ("epochs", paper.epochs))
            if part[name].min() < whole
        ]
        cuts += _fewer_values(part, {m: len(grid) for m, grid in paper.grids.items()})
        cuts += [f"samples {s}" for s in sorted(set(part["samples"])) if s != sizes]
        papers = {m: training_words(paper.to_dict(), m).split(", ") for m in set(part["method"])}
        trained = zip(part["method"], part["training"].str.split(", "))
        cuts += dict.fromkeys(word for m, has in trained for word in has if word not in papers[m])
        words[str(dataset)] = ", ".join(cuts)
    return words


def _fewer_values(provenances: pd.DataFrame, whole: Mapping[str, int]) -> list[str]:
    """Return "3 of 10 values of Flooding, iFlood" for every shortened grid; all methods go unnamed.

    Args:
        provenances: of one dataset, a row per method.
        whole: method → number of values in its whole grid.
    """
    swept = provenances[provenances["method"].isin(whole)]
    shortened: dict[str, list[str]] = {}
    for method, few in zip(swept["method"], swept["grid"]):
        if few < whole[method]:
            shortened.setdefault(f"{few} of {whole[method]} values", []).append(LABELS[method])
    return [
        cut if len(labels) == len(swept) else f"{cut} of {', '.join(labels)}"
        for cut, labels in shortened.items()
    ]
