"""A profile's results as Markdown and CSV: the paper's tables beside ours, made of stored rows alone."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.analysis import coverage, paper, readings, tables
from softadlib.methods import METHODS
from softadlib.results import reader
from softadlib.results.selection import TIES, of_every_trial
from softadlib.training.profiles import datasets_of

BEGIN = "<!-- {what} of profile {profile}: softad report {profile} --format md --output {file} -->"
END = "<!-- end of {what} of profile {profile} -->"


def frames(profile: str) -> dict[str, pd.DataFrame]:
    """Return title → tidy table with typed columns, in reading order.

    Raises UserError where nothing is finished, and for an unknown profile.
    """
    rows, provenances = reader.read(profile, final=True), reader.provenances(profile)
    if rows.empty:
        datasets_of(profile)  # raises for a name that no profile has
        raise UserError(
            f"nothing is finished in profile {profile!r}; softad run {profile} comes first"
        )
    labels, words = coverage.labels(provenances), coverage.auto_words(provenances)
    titled = {"What was run": effort(provenances)}
    noises = sorted(rows["label_noise"].unique())
    for noise in noises:
        level = f", {readings.percent(noise)} of labels flipped" if noise else ""
        for title, frame in _of_one_level(rows[rows["label_noise"] == noise]).items():
            titled[title.format(level=level)] = _named(frame, labels, words)
    return titled


def _of_one_level(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return title → table for the rows of one label noise; the title has a field for that noise."""
    parts = {
        f"Loss gaps (Tables 1 and 3){{level}}, ties to the {ties}": gaps(rows, ties)
        for ties in TIES
    }
    parts["Selected values (Tables 2 and 4){level}"] = knobs(rows)
    if set(rows["method"]) >= set(paper.COMPARED):
        parts["Who has the smallest gap{level}"] = tables.gap_verdicts(rows)
        parts["SoftAD's θ against Flooding's{level}"] = tables.theta_order(rows)
        parts["SoftAD along θ, nothing selected{level}"] = grid_profile(rows)
    if (rows["label_noise"] > 0).any():  # the paper flips no labels in the tables that it prints
        parts = {
            title: frame[[c for c in frame if not c.startswith("paper")]]
            for title, frame in parts.items()
        }
    return {title: frame for title, frame in parts.items() if len(frame)}


def markdown(profile: str) -> str:
    """Return computed sentences on the rows, then all of `frames`. Raises UserError as it does."""
    titled = frames(profile)
    parts = _readings(reader.read(profile, final=True))
    parts += [
        f"#### {title}\n\n{to_markdown(tables.render(t, CELLS))}" for title, t in titled.items()
    ]
    return "\n\n".join(parts) + "\n"


def _readings(rows: pd.DataFrame) -> list[str]:
    """Return a list of computed sentences per label noise, under a heading."""
    parts = []
    for noise, part in rows.groupby("label_noise"):
        gaps, thetas = readings.gap_readings(part), readings.theta_readings(part)
        sentences = [*gaps, *thetas, *readings.grid_readings(part)]
        level = f", {readings.percent(noise)} of labels flipped" if noise else ""
        parts += [f"#### What the rows say{level}\n\n{readings.bullets(sentences)}"] if gaps else []
    return parts


def write_csv(profile: str, folder: Path) -> list[Path]:
    """Write the same tables, one CSV file each, numbers unrounded. Raises UserError as `frames` does."""
    paths = []
    for title, frame in frames(profile).items():
        words = re.sub(r"\(.*?\)|[^\w\s]", "", title.replace("θ", "theta")).lower().split()
        paths.append(folder / f"{'_'.join(words)}.csv")
        _workspace.write(paths[-1], frame.to_csv(index=False, float_format="%.6g"))
    return paths


def write(profile: str, path: Path, blocks: Mapping[str, Callable[[str], str]]) -> bool:
    """Put what the marks in a file ask for between them; True where it changed. Raises UserError.

    Args:
        profile: the profile that the marks name.
        path: a page with the marks of at least one block.
        blocks: what marks may ask for, and what then stands between them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    marks = {}
    for what in blocks:
        begin = BEGIN.format(what=what, profile=profile, file=path.name)
        end = END.format(what=what, profile=profile)
        if text.count(begin) == 1 == text.count(end) and text.index(begin) < text.index(end):
            marks[what] = (begin, end)
    if not marks:
        begin = BEGIN.format(what="results", profile=profile, file=path.name)
        end = END.format(what="results", profile=profile)
        raise UserError(f"{path} must hold the lines {begin!r} and {end!r}, in this order")
    filled = text
    for what, (begin, end) in marks.items():
        head, tail = filled.split(begin)[0], filled.split(end)[1]
        filled = f"{head}{begin}\n\n{blocks[what](profile)}\n{end}{tail}"
    if filled != text:
        _workspace.write(path, filled)
    return filled != text


def effort(provenances: pd.DataFrame) -> pd.DataFrame:
    """Return what was trained for every dataset, how long it took, and on what device.

    The hours are those of the sessions; runs that no session names are counted beside them.
    """
    facts = tables.effort(provenances).reset_index()
    groups = provenances.groupby("dataset", sort=False)
    facts["runs"] = facts["dataset"].map(groups["runs"].sum())
    facts.insert(2, "label noise", facts["dataset"].map(groups["label_noise"].first()))
    facts["without a session"] = facts["dataset"].map(groups["runs_without_session"].sum())
    facts["hours"] = facts["dataset"].map(groups["seconds"].sum() / 3600)
    for name in ("device", "torch"):
        facts[name] = facts["dataset"].map(groups[name].agg(lambda v: ", ".join(sorted(set(v)))))
    facts["finished"] = facts["dataset"].map(groups["finished"].max()).str[:10]
    return facts


def gaps(rows: pd.DataFrame, ties: str) -> pd.DataFrame:
    """Return the paper's gaps, then ours under one tie rule with interval, test loss, accuracy and norm.

    A method without a value to choose stands under the first rule alone. Where Table 1 leaves out a
    method, the paper's gap is Table 3's.
    """
    means = tables.summary(rows, ties)
    if ties != TIES[0]:
        means = means[means["knob"].notna()]
    columns = ["n", "paper_gap", "gap", "gap_low", "gap_high", "loss_test", "acc_test"]
    columns.append("model_norm")
    return _beside_printed(means, paper.printed(1, 3)["mean"].rename("paper_gap"), columns)


def knobs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the selected values under both tie rules, how often at an end of the grid, how many tied.

    Beside them the value of minimum validation cross-entropy, by which the paper does not select.
    """
    rows = rows[rows["knob"].notna()]
    key = ["dataset", "method"]
    table = tables.summary(rows, TIES[0])[[*key, "n", "tied"]]
    for ties in TIES:
        ours = tables.summary(rows, ties)[[*key, "knob", "knob_sd", "edge"]]
        ours.columns = pd.Index([_of_rule(name, ties) for name in ours])
        table = table.merge(ours, on=key)
    best = rows.dropna(subset="loss_val").groupby([*key, "trial"])["loss_val"].idxmin()
    by_loss = rows.loc[best].groupby(key)["knob"].agg(by_loss="mean", by_loss_sd="std")
    table = table.merge(by_loss.reset_index(), on=key)
    printed = paper.printed(2, 4).rename(columns={"mean": "paper_knob", "std": "paper_knob_sd"})
    chosen = [_of_rule(c, ties) for ties in TIES for c in ("knob", "knob_sd", "edge")]
    columns = ["n", *printed.columns, *chosen, "tied", "by_loss", "by_loss_sd"]
    return _beside_printed(table, printed, columns)


def _of_rule(name: str, ties: str) -> str:
    """Return the name of a column of `tables.summary` under one tie rule: knob_sd → largest_sd."""
    return {"knob": ties, "knob_sd": f"{ties}_sd", "edge": f"edge_{ties}"}.get(name, name)


CELLS = tables.CELLS | {
    **{ties: tables.Cell(f"ties to the {ties}", 2) for ties in TIES},
    **{f"edge_{ties}": tables.Cell(f"at an end ({ties})", 0) for ties in TIES},
    "by_loss": tables.Cell("by validation loss", 2),
}
"""Columns of `knobs` beside those of `tables`."""


def grid_profile(rows: pd.DataFrame) -> pd.DataFrame:
    """Return SoftAD at some of its grid: the ends, those nearest 0.1 and 0.3, and both sides of ln 2."""
    lines = []
    softad = of_every_trial(rows[rows["method"] == "softad"])
    for dataset, part in softad.groupby("dataset"):
        grid = pd.Series(sorted(part["knob"].unique()))
        near = [grid.iloc[(grid - at).abs().argmin()] for at in (0.1, 0.3)]
        above = grid >= math.log(2)
        at = pd.Series([grid.min(), *near, grid[~above].max(), grid[above].min(), grid.max()])
        for theta in sorted(at.dropna().unique()):
            runs = part[part["knob"] == theta]
            means = runs[["loss_train", "loss_test", "acc_test", "model_norm"]].mean()
            facts = {"dataset": dataset, "theta": theta, "n": runs["trial"].nunique()}
            facts["gap"] = means["loss_test"] - means.pop("loss_train")
            lines.append(facts | means.to_dict())
    return _in_paper_order(pd.DataFrame(lines))


def _beside_printed(
    ours: pd.DataFrame, printed: pd.DataFrame | pd.Series, columns: list[str]
) -> pd.DataFrame:
    """Return dataset, method and `columns`, the paper's among them, in the paper's order of datasets."""
    joined = ours.join(printed, on=["dataset", "method"])
    return _in_paper_order(joined[["dataset", "method", *columns]])


def _in_paper_order(table: pd.DataFrame) -> pd.DataFrame:
    """Sort lines by the paper's order of datasets; methods stay in order."""
    if table.empty:
        return table
    rank = {name: i for i, name in enumerate(paper.in_order(table["dataset"]))}
    order = table["dataset"].map(rank).sort_values(kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _named(
    table: pd.DataFrame, labels: dict[str, str], words: dict[tuple[str, str], str]
) -> pd.DataFrame:
    """Write the labels of datasets (`coverage.labels`) and methods, with the word that replaces a grid."""
    if "method" in table:
        keys = list(zip(table["dataset"], table["method"]))
        without_grid = [key in words for key in keys]
        notes = [f", {METHODS[k[1]].knob}: {words[k]}" if k in words else "" for k in keys]
        table = table.assign(method=[tables.LABELS[m] + note for (_, m), note in zip(keys, notes)])
        for column in (c for c in table if c.startswith("paper")):  # the paper has a grid there
            table[column] = table[column].mask(without_grid)
    return table.assign(dataset=table["dataset"].map(labels))


def to_markdown(frame: pd.DataFrame) -> str:
    """Return a Markdown table; columns of numbers are right-aligned."""
    text = [c for c in frame if frame[c].str.contains("[A-Za-z]{3}").any()]
    rule = [":--" if c in text else "--:" for c in frame]
    lines = [list(frame), rule, *frame.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
