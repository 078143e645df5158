"""A profile's tables as Markdown, LaTeX and CSV, made of stored rows alone."""

import re
from pathlib import Path

import pandas as pd

from softadlib import _files
from softadlib._validation import MissingData, UserError, choose
from softadlib.methods import METHODS
from softadlib.workbook.analysis import tables
from softadlib.workbook.studies import results

BEGIN = "<!-- {what} of profile {profile}: softad report {profile} --format md --output {file} -->"
END = "<!-- end of {what} of profile {profile} -->"
TITLES = {
    "gap": "Loss gaps",
    "loss_test": "Test losses",
    "acc_test": "Test accuracies, %",
    "model_norm": "Norms",
    "knob": "Selected values",
}
PAPER_TITLES = {"gap": " (Tables 1 and 3)", "knob": " (Tables 2 and 4)"}
OVERVIEW = (
    ("erm", ""),
    ("softad", "smallest"),
    *((method, "selected") for method in ("softad", "iflood", "flooding", "sam")),
)
"""Methods of the overview, and which of their values it shows."""


LATEX = {"θ": r"$\theta$", "σ": r"$\sigma$", "χ²": r"$\chi^2$"}
"""What pdflatex needs in place of Greek letters."""


def frames(profile: str) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Return title → tidy table with typed columns, and the same as text, in reading order.

    Raises UserError where nothing is finished.
    """
    rows, provenances = tables.read(profile, final=True), results.provenances(profile)
    effort = tables.effort(provenances)
    found = {"What was run": (effort, tables.render(effort))}
    for noise, part in rows.groupby("label_noise"):
        level = f", {100 * noise:g} % of labels flipped" if noise else ""
        for measure, title in TITLES.items():
            table = tables.by_rule(part, measure)
            has_paper = any(c.startswith("paper") for c in table)
            title += PAPER_TITLES.get(measure, "") if has_paper else ""
            named = table.assign(method=table["method"].map(tables.LABELS))
            found[f"{title}{level}"] = (table, tables.render(named, tables.rule_cells(measure)))
        table = tables.along_theta(part)
        if len(table):
            found[f"SoftAD along θ, nothing selected{level}"] = (table, tables.render(table))
    return {title: pair for title, pair in found.items() if len(pair[0])}


def text(profile: str, form: str = "md") -> str:
    """Return all tables of a profile as Markdown ("md") or LaTeX ("latex")."""
    choose("format", form, ("md", "latex"))
    found = [(title, as_text) for title, (_, as_text) in frames(profile).items()]
    if form == "latex":
        parts = [f"% {t}\n{f.to_latex(index=False, escape=True)}" for t, f in found]
        for letter, command in LATEX.items():
            parts = [part.replace(letter, command) for part in parts]
    else:
        parts = [f"#### {t}\n\n{to_markdown(f)}" for t, f in found]
    return "\n\n".join(parts) + "\n"


def write_csv(profile: str, folder: Path) -> list[Path]:
    """Write the same tables, one CSV file each, numbers unrounded."""
    paths = []
    for title, (frame, _) in frames(profile).items():
        named = re.sub(r"(\d)\.(\d)", r"\1p\2", title.replace("θ", "theta"))
        words = re.sub(r"\(.*?\)|[^\w\s]", "", named).lower().split()
        paths.append(folder / f"{'_'.join(words)}.csv")
        _files.write(paths[-1], frame.to_csv(index=False, float_format="%.6g"))
    return paths


def is_marked(path: Path) -> bool:
    """Tell whether a file has marks of any profile's tables, so that it holds other text, too."""
    return ": softad report" in path.read_text(encoding="utf-8", errors="replace")


def write(profile: str, path: Path) -> bool:
    """Put the tables between their marks in a file; True where it changed.

    Marks ask for `results`, all tables, or for `overview`. Raises UserError where a file has neither.
    """
    try:
        filled = before = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    found = False
    for what, make in (("results", text), ("overview", overview)):
        begin = BEGIN.format(what=what, profile=profile, file=path.name)
        end = END.format(what=what, profile=profile)
        if filled.count(begin) == 1 == filled.count(end) and filled.index(begin) < filled.index(
            end
        ):
            head, tail = filled.split(begin)[0], filled.split(end)[1]
            filled, found = f"{head}{begin}\n\n{make(profile)}\n{end}{tail}", True
    if not found:
        begin = BEGIN.format(what="results", profile=profile, file=path.name)
        end = END.format(what="results", profile=profile)
        raise UserError(f"{path} must hold the lines {begin!r} and {end!r}, in this order")
    if filled != before:
        _files.write(path, filled)
    return filled != before


def overview(profile: str) -> str:
    """Return one table: ERM, SoftAD at its smallest and selected θ, and its rivals at their selected values.

    Values are selected by validation accuracy, ties to the largest. ECE is that of the runs whose
    losses are stored. The last columns are the same from the rows of profile `label-noise`, if there are
    any. Of each profile it is the lowest label noise.
    """
    rows = _lowest_noise(tables.read(profile, final=True))
    try:
        flipped = _lowest_noise(tables.read("label-noise", final=True))
    except MissingData:
        flipped = rows.head(0)
    lines = []
    for dataset in tables.in_order(rows["dataset"]):
        part, other = rows[rows["dataset"] == dataset], flipped[flipped["dataset"] == dataset]
        for method, which in OVERVIEW:
            runs = _side(part, method, which)
            if runs.empty:
                continue
            ece = runs["ece_test"].dropna() if "ece_test" in runs else runs[:0]
            has_theta = METHODS[method].hyperparameter == "theta"
            theta = runs["knob"].mean() if has_theta else float("nan")
            side = _side(other, method, which)
            label = f"{tables.LABELS[method]}, {which} {'θ' if has_theta else 'radius'}"
            means = runs[["gap", "loss_test", "acc_test"]].mean()
            about = {"dataset": f"{dataset}, n = {len(runs)}", "method": label if which else "ERM"}
            line = {"theta": theta, **means, "ece": ece.mean() if len(ece) == len(runs) else None}
            line |= {"noisy_loss": side["loss_test"].mean(), "noisy_acc": side["acc_test"].mean()}
            lines.append(about | line)
    table = pd.DataFrame(lines).dropna(axis="columns", how="all")
    table["dataset"] = table["dataset"].mask(table["dataset"].duplicated(), "")
    return to_markdown(tables.render(table)) + "\n"


def _lowest_noise(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["label_noise"] == rows.groupby("dataset")["label_noise"].transform("min")]


def _side(rows: pd.DataFrame, method: str, which: str) -> pd.DataFrame:
    """Return the runs of a method that one line of the overview shows."""
    runs = rows[rows["method"] == method]
    if which == "smallest":
        return runs[runs["knob"] == runs["knob"].min()]
    return results.select(runs, "largest") if len(runs) else runs


def to_markdown(frame: pd.DataFrame) -> str:
    """Return a Markdown table; columns of numbers are right-aligned."""
    words = [c for c in frame if frame[c].astype(str).str.contains("[A-Za-z]{3}").any()]
    rule = [":--" if c in words else "--:" for c in frame]
    lines = [list(frame), rule, *frame.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
