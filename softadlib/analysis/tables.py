"""Selected rows → the paper's tables, theirs and ours side by side."""

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from softadlib.methods import METHODS, PAPER
from softadlib.results.selection import CASE, select

LABELS = {name: m.label for name, m in METHODS.items()}
DASH = "–"
COLUMNS = ("gaussian", "sinusoid", "spiral", "cifar10", "cifar100", "fashionmnist", "svhn")
"""The paper's datasets, in the order of its tables."""

MEANS = ("loss_train", "loss_test", "acc_test", "model_norm")
SUMMARY = [*CASE, "gap", "gap_low", "gap_high", *MEANS, "knob", "knob_sd", "tied", "edge", "n"]


def paper() -> pd.DataFrame:
    """The paper's four tables: table, quantity, dataset, method, mean, std (NaN where not printed)."""
    with files("softadlib.analysis").joinpath("paper_tables.csv").open() as file:
        return pd.read_csv(file)


def published(table: int) -> pd.DataFrame:
    """One of the paper's tables, indexed by (dataset, method): mean, std."""
    rows = paper()
    return rows[rows["table"] == table].set_index(["dataset", "method"])[["mean", "std"]]


def datasets_in(rows: pd.DataFrame, table: int) -> list[str]:
    """The datasets of a table of the paper, then those that only we have rows of."""
    theirs = {dataset for dataset, _ in published(table).index}
    extra = sorted(set(rows["dataset"].unique()) - set(COLUMNS))
    return [d for d in COLUMNS if d in theirs] + extra


def methods_in(rows: pd.DataFrame) -> list[str]:
    """The methods of the paper, then those that only we have rows of."""
    ours = set(rows["method"].unique())
    return [*PAPER, *(m for m in METHODS if m not in PAPER and m in ours)]


def interval(values: pd.Series, level: float = 0.95) -> tuple[float, float]:
    """Student's t interval of the mean over trials; infinite for fewer than two."""
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return (-np.inf, np.inf)
    half = (
        special.stdtrit(len(values) - 1, (1 + level) / 2)
        * values.std(ddof=1)
        / np.sqrt(len(values))
    )
    return (values.mean() - half, values.mean() + half)


def summary(rows: pd.DataFrame, ties: str = "largest") -> pd.DataFrame:
    """Per dataset, label noise and method: means over the selected runs of all trials.

    `gap` is test minus train cross-entropy (nats) at the final epoch, `gap_low`, `gap_high` its 95 %
    interval over trials; `knob`, `knob_sd` (ddof = 1) the selected values; `edge` how many trials
    chose an end of their grid; `n` the trials.
    """
    chosen = select(rows, ties)
    chosen = chosen.assign(gap=chosen["loss_test"] - chosen["loss_train"])
    cases = chosen.groupby(CASE)
    found = cases[["gap", *MEANS, "knob", "tied"]].mean()
    ends = [interval(values) for _, values in cases["gap"]]
    found[["gap_low", "gap_high"]] = np.array(ends, dtype=float).reshape(-1, 2)
    found = found.assign(knob_sd=cases["knob"].std(ddof=1), edge=cases["at_edge"].sum())
    found = found.assign(n=cases.size()).reset_index()
    order = {name: i for i, name in enumerate(METHODS)}
    return found[SUMMARY].sort_values(
        CASE, key=lambda s: s.map(order) if s.name == "method" else s, ignore_index=True
    )


def number(value: float, digits: int = 3) -> str:
    """A cell; a dash for NaN."""
    return DASH if pd.isna(value) else f"{value:.{digits}f}"


def span(low: float, high: float) -> str:
    """An interval as a cell."""
    return f"[{low:.3f}, {high:.3f}]" if np.isfinite(low) else "[one trial]"


def loss_gap(
    rows: pd.DataFrame,
    datasets: list[str],
    methods: list[str],
    label_noise: float = 0.0,
    table: int = 1,
) -> pd.DataFrame:
    """Table 1 (or 3) for reading: the paper's gap beside ours under both tie rules.

    Beside every gap its 95 % interval over trials, test loss, test accuracy and n.
    """
    cells = {
        "gap": lambda r: number(r["gap"]),
        "95 %": lambda r: span(r["gap_low"], r["gap_high"]),
        "test loss": lambda r: number(r["loss_test"]),
        "test acc": lambda r: number(r["acc_test"]),
        "n": lambda r: f"{r['n']:.0f}",
    }
    theirs = published(table)["mean"].map(number)
    return _side_by_side(_at(rows, label_noise), datasets, methods, theirs, cells)


def hyperparameters(
    rows: pd.DataFrame,
    datasets: list[str],
    methods: list[str],
    label_noise: float = 0.0,
    table: int = 2,
) -> pd.DataFrame:
    """Table 2 (or 4) for reading: mean (sd) of the selected knob, the paper's and ours.

    `edge`: trials that chose an end of the grid; `tied`: mean number of values that shared the best
    validation accuracy.
    """
    cells = {
        "mean (sd)": lambda r: mean_sd(r["knob"], r["knob_sd"]),
        "edge": lambda r: f"{r['edge']:.0f}/{r['n']:.0f}",
        "tied": lambda r: number(r["tied"], 1),
        "n": lambda r: f"{r['n']:.0f}",
    }
    theirs = published(table).apply(lambda r: mean_sd(r["mean"], r["std"]), axis=1)
    return _side_by_side(_at(rows, label_noise), datasets, methods, theirs, cells)


def _at(rows: pd.DataFrame, label_noise: float) -> pd.DataFrame:
    same = rows["label_noise"] == label_noise
    return rows if same.all() else rows[same]


def _side_by_side(
    rows: pd.DataFrame,
    datasets: list[str],
    methods: list[str],
    theirs: pd.Series,
    cells: dict[str, Callable[[pd.Series], str]],
) -> pd.DataFrame:
    """The paper's cell, then ours under both tie rules; a dash where there is no number.

    `theirs` by (dataset, method); `cells` make each of our columns from a line of `summary`, and
    the first of them is what the paper's column holds.
    """
    ours = {
        ties: summary(rows, ties).set_index(["dataset", "method"]).to_dict("index")
        for ties in ("largest", "smallest")
    }
    keys = [(dataset, method) for dataset in datasets for method in methods]
    columns = {("paper", next(iter(cells))): [theirs.get(key, DASH) for key in keys]}
    for ties, means in ours.items():
        for name, cell in cells.items():
            columns[f"ours, ties to the {ties} value", name] = [
                cell(means[key]) if key in means else DASH for key in keys
            ]
    index = pd.MultiIndex.from_tuples(
        [(dataset, LABELS[method]) for dataset, method in keys], names=["dataset", "method"]
    )
    return pd.DataFrame(columns, index=index)


def mean_sd(mean: float, sd: float) -> str:
    """A cell; the mean alone where there is one value."""
    return f"{mean:.2f} ({sd:.2f})" if np.isfinite(sd) else f"{mean:.2f}"


def missing_commands(
    rows: pd.DataFrame,
    profile: str,
    datasets: list[str],
    methods: list[str],
    offered: list[str] | None = None,
    missing: list[str] | None = None,
) -> list[str]:
    """The commands that would fill the table's dashes, one a dataset.

    `offered`: the datasets of the profile; others are trained by profile `paper`. `missing`: those
    that must be fetched first.
    """
    have = set(rows[["dataset", "method"]].drop_duplicates().itertuples(index=False, name=None))
    out = []
    for dataset in datasets:
        lacking = [m for m in methods if (dataset, m) not in have]
        if lacking:
            fetch = f"softad data prepare {dataset} && " if dataset in (missing or ()) else ""
            by = profile if offered is None or dataset in offered else "paper"
            some = (
                "" if len(lacking) == len(methods) else "".join(f" --method {m}" for m in lacking)
            )
            out.append(f"{fetch}softad run {by} --dataset {dataset}{some}")
    return out


def gap_verdicts(rows: pd.DataFrame, methods: list[str]) -> pd.DataFrame:
    """Who has the largest and the smallest gap among `methods`, per dataset and tie rule, with n.

    `accuracy` is the test accuracy of the method with the smallest gap minus ERM's, in points, and
    `test loss` its test cross-entropy minus ERM's, in nats.
    """
    lines = []
    for ties in ("largest", "smallest"):
        means = summary(rows[rows["method"].isin(methods)], ties)
        for dataset, part in means.groupby("dataset", sort=False):
            part = part.set_index("method")
            if "erm" not in part.index or len(part) < 2:
                continue
            least = part["gap"].idxmin()
            difference = (
                part.loc[least, ["acc_test", "loss_test"]]
                - part.loc["erm", ["acc_test", "loss_test"]]
            )
            lines.append(
                {
                    "ties": ties,
                    "dataset": dataset,
                    "largest gap": LABELS[part["gap"].idxmax()],
                    "smallest gap": LABELS[least],
                    "accuracy": f"{100 * difference['acc_test']:+.1f}",
                    "test loss": f"{difference['loss_test']:+.3f}",
                    "n": int(part["n"].min()),
                }
            )
    columns = ["ties", "dataset", "largest gap", "smallest gap", "accuracy", "test loss", "n"]
    return pd.DataFrame(lines, columns=columns)


def theta_order(rows: pd.DataFrame, one: str = "softad", other: str = "flooding") -> pd.DataFrame:
    """In how many trials one method's selected θ is above, equal to, below the other's."""
    lines = []
    for ties in ("largest", "smallest"):
        chosen = select(rows, ties).pivot_table(
            index=["dataset", "trial"], columns="method", values="knob"
        )
        if not {one, other} <= set(chosen.columns):
            continue
        sign = np.sign(chosen[one] - chosen[other])
        for dataset, part in sign.dropna().groupby("dataset"):
            counts = {
                "above": (part > 0).sum(),
                "equal": (part == 0).sum(),
                "below": (part < 0).sum(),
            }
            lines.append({"ties": ties, "dataset": dataset, **counts, "n": len(part)})
    return pd.DataFrame(lines, columns=["ties", "dataset", "above", "equal", "below", "n"])


def effort(provenances: pd.DataFrame) -> pd.DataFrame:
    """How much stands behind a table, per dataset: trials, values per method, epochs, samples.

    `provenances` as `store.provenances` gives them; samples are train + val + test, "all" of a part
    that was not cut. Where methods differ, both ends are named: 3–15.
    """
    facts = ("trials", "grid", "epochs", "samples", "dtype")
    if provenances.empty:
        return pd.DataFrame(columns=list(facts))
    found = provenances.groupby("dataset", sort=False)[list(facts)].agg(_alike)
    found["grid"] = provenances.groupby("dataset", sort=False)["grid"].max()
    order = [d for d in COLUMNS if d in found.index] + sorted(set(found.index) - set(COLUMNS))
    return found.loc[order].rename(columns={"grid": "values per method"})


def _alike(values: pd.Series) -> Any:
    """The one value, or the least and the greatest."""
    ends = sorted(set(values))
    return ends[0] if len(ends) == 1 else f"{ends[0]}–{ends[-1]}"


def marks(curves: pd.DataFrame, count: int = 3) -> pd.DataFrame:
    """The numbers of a trajectory: means over trials at the first epoch, the last, and between."""
    epochs = sorted(curves["epoch"].unique())
    at = sorted({epochs[round(i * (len(epochs) - 1) / count)] for i in range(count + 1)})
    shown = curves[curves["epoch"].isin(at)].groupby(["method", "epoch"])
    means = shown[["loss_train", "loss_test", "acc_test", "model_norm"]].mean().round(3)
    return means.unstack("epoch").reindex([m for m in METHODS if m in set(curves["method"])])
