"""What the top of the page says, computed from the rows: three cards, a picture, one table."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from softadlib._validation import UserError
from softadlib.analysis import paper, tables
from softadlib.analysis.readings import DECIDABLE, percent, span
from softadlib.data.synthetic import SYNTHETIC
from softadlib.methods import METHODS
from softadlib.results import reader
from softadlib.results.selection import SWEEP, select

LABELS = tables.LABELS
WORDS = {
    "loss_train": "training loss",
    "loss_test": "test loss",
    "loss_val": "validation loss",
    "acc_train": "training accuracy",
    "acc_val": "validation accuracy",
    "acc_test": "test accuracy",
    "model_norm": "norm of the weights",
    "label_noise": "label noise",
    "knob": "value",
    "NaN": tables.DASH,
    "nan": tables.DASH,
}
"""Names of columns and values that a reader should not meet."""
CLAIMED = {"model_norm": "norm", "loss_test": "test loss"}
"""Measures of which the paper's text says that SoftAD's is the smallest: test loss on images alone."""
COMPARED = ("erm", "flooding", "sam", "softad")
"""The methods that the paper's main text compares."""


def readable(body: str) -> str:
    """Write the cells of HTML tables with labels in place of the names that programs use."""
    for name, word in (LABELS | WORDS).items():
        for tag in ("th", "td"):
            body = body.replace(f">{name}</{tag}>", f">{word}</{tag}>")
    return body


def summarise(profile: str, facts: pd.DataFrame) -> dict[str, Any]:
    """Return the template's values: cards, overview, gaps, notes."""
    from markupsafe import Markup

    rows = reader.read(profile, final=True) if len(facts) else pd.DataFrame()
    result: dict[str, Any] = {"overview": [], "gaps": "", "notes": []}
    agree: list[str] = []
    differ: list[str] = []
    if len(rows):
        means = tables.summary(rows)
        clean = means[means["label_noise"] == 0]
        agree, differ = compare(clean)
        result["gaps"] = Markup(gap_table(clean))
        chosen = select(rows, "largest").groupby(SWEEP)["loss_test"]
        ends = {case: tables.interval_ends(values) for case, values in chosen}
        cases = means[SWEEP].itertuples(index=False, name=None)
        means[["test_low", "test_high"]] = [ends[case] for case in cases]
        result["overview"] = pictures(means)
    result["notes"] = not_run(profile, facts)
    nothing = ["Nothing here can be compared with the paper."]
    result["cards"] = [
        {"title": "What was run", "lines": what_was_run(facts)},
        {"title": "What agrees with the paper", "lines": agree or nothing},
        {
            "title": "What does not",
            "lines": differ or (["Nothing that was compared."] if agree else nothing),
        },
    ]
    return result


def what_was_run(facts: pd.DataFrame) -> list[str]:
    """Return one line for all datasets that were trained alike."""
    if facts.empty:
        return ["No training results yet."]
    alike: dict[str, list[str]] = {}
    for dataset, part in facts.groupby("dataset", sort=False):
        trials, noise = sorted(part["trials"]), part["label_noise"].max()
        words = (
            f"{span(trials)} trial{'s' if trials[-1] > 1 else ''}, up to {part['grid'].max()} values per swept "
            f"method, {span(sorted(part['epochs']))} epochs, {part['runs'].sum()} runs"
        )
        words += f" (label noise {noise})" if noise != "0" else ""
        alike.setdefault(words, []).append(str(dataset))
    lines = [
        f"{', '.join(names)}: {'each ' if len(names) > 1 else ''}{words}"
        for words, names in alike.items()
    ]
    if facts["trials"].max() < DECIDABLE:
        lines.append(
            f"With fewer than {DECIDABLE} trials no exact permutation test can decide at the 5 % level."
        )
    return lines


def compare(means: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Compare with the paper which method has the smallest and the largest gap, the smallest `CLAIMED`.

    A gap counts only where the paper prints one for dataset and method. Returns what agrees and what
    does not, one line per statement.
    """
    agree: dict[str, list[str]] = {}
    differ: dict[str, list[str]] = {}
    published = paper.printed(1, 3)["mean"].rename("published").dropna()
    both = means.join(published, on=["dataset", "method"]).set_index("method")
    for dataset, part in both.groupby("dataset", sort=False):
        pairs = part.dropna(subset="published")
        if len(pairs) < 2:
            continue
        who = f"{dataset} (n = {part['n'].min()})"
        for word, end in (("smallest", pd.Series.idxmin), ("largest", pd.Series.idxmax)):
            our_label, their_label = LABELS[end(pairs["gap"])], LABELS[end(pairs["published"])]
            if their_label == our_label:
                agree.setdefault(f"{our_label} has the {word} gap", []).append(who)
            else:
                words = f"{our_label} has the {word} gap, in the paper {their_label}"
                differ.setdefault(words, []).append(who)
        smallest = part["gap"].idxmin()
        if smallest not in pairs.index:
            words = f"{LABELS[smallest]}, not in the paper's table, has a smaller gap still"
            differ.setdefault(words, []).append(who)
    for measure, words in CLAIMED.items():
        of_images = means[~means["dataset"].isin(list(SYNTHETIC))]
        claimed = of_images if measure == "loss_test" else means
        for dataset, part in claimed.groupby("dataset", sort=False):
            values = part.set_index("method")[measure].reindex(COMPARED).dropna()
            if "softad" in values and len(values) > 1:
                who = f"{dataset} (n = {int(part['n'].min())})"
                first = str(values.idxmin())
                if first == "softad":
                    agree.setdefault(f"SoftAD has the smallest {words}", []).append(who)
                else:
                    line = f"The smallest {words} (the paper: SoftAD's) is another's"
                    differ.setdefault(line, []).append(f"{LABELS[first]} on {who}")
    return _lines(agree), _lines(differ)


def _lines(datasets: dict[str, list[str]]) -> list[str]:
    return [f"{words}: {', '.join(names)}" for words, names in datasets.items()]


def gap_table(means: pd.DataFrame) -> str:
    """Render the paper's gap beside ours by method and dataset; the minimum of each is marked."""
    if means.empty:
        return ""
    ours = means.set_index(["dataset", "method"])["gap"]
    gaps = pd.DataFrame({"paper": paper.printed(1, 3)["mean"], "ours": ours})
    methods = [name for name in METHODS if name in set(means["method"])]
    columns = [(d, source) for d in paper.in_order(means["dataset"]) for source in gaps]
    frame = gaps.unstack("dataset").swaplevel(axis="columns").loc[methods, columns]
    frame = frame.dropna(axis="columns", how="all").rename(index=LABELS)
    frame = frame.rename_axis(index=None, columns=[None, None])
    minimum = frame.eq(frame.min()).replace({True: "minimum", False: ""})
    styler = frame.style.format("{:.3f}", na_rep=tables.DASH).set_uuid("gaps")
    return str(styler.set_td_classes(minimum).to_html())


def pictures(means: pd.DataFrame) -> list[dict[str, str]]:
    """Draw gap and test loss of every method with their intervals, one picture per dataset."""
    shown = []
    for (dataset, noise), part in means.groupby(["dataset", "label_noise"], sort=False):
        title = f"{dataset}, {percent(noise)} of labels flipped" if noise else str(dataset)
        words = [
            f"{LABELS[row['method']]} gap {row['gap']:.3f}, test loss {row['loss_test']:.3f}"
            for row in part.to_dict("records")
        ]
        alt = f"{title}: {'; '.join(words)}"
        shown.append({"source": _draw(part.set_index("method"), title), "alt": alt})
    return shown


def _draw(part: pd.DataFrame, title: str) -> str:
    """Draw one dataset as SVG and return it as a data URI."""
    from matplotlib.figure import Figure

    methods = [name for name in reversed(METHODS) if name in part.index]
    figure = Figure(figsize=(3.2, 1.4 + 0.36 * len(methods)), layout="constrained")
    axes = figure.subplots(2, 1)
    for axis, label, columns in (
        (axes[0], "loss gap (nats)", ["gap", "gap_low", "gap_high"]),
        (axes[1], "test loss (nats)", ["loss_test", "test_low", "test_high"]),
    ):
        for level, method in enumerate(methods):
            value, low, high = part.loc[method, columns]
            colour = METHODS[method].colour
            if np.isfinite(low) and np.isfinite(high):
                axis.plot([low, high], [level, level], color=colour, linewidth=2)
            axis.plot([value], [level], "o", color=colour, markersize=5)
        axis.set_yticks(range(len(methods)), [LABELS[method] for method in methods])
        axis.set_ylim(-0.6, len(methods) - 0.4)
        axis.set_xlabel(label)
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_title(title, fontsize="medium")
    content = io.BytesIO()
    figure.savefig(content, format="svg")
    return f"data:image/svg+xml;base64,{base64.b64encode(content.getvalue()).decode()}"


def not_run(profile: str, facts: pd.DataFrame) -> Sequence[str]:
    """Say in one line which datasets of the profile have no results, and what they would cost."""
    from softadlib.workbook import show
    from softadlib.workbook.notebooks.progress_bar import duration

    try:
        costs = show.whole_costs(profile)
    except UserError:
        return []
    trained = set(facts["dataset"]) if len(facts) else set()
    words = [
        f"{dataset} (about {duration(seconds)} with one process)"
        for dataset, seconds in costs.items()
        if dataset not in trained
    ]
    return [f"Not run: {', '.join(words)}."] if words else []
