"""The README's results: the paper's tables beside ours, as Markdown made of stored rows alone."""

import itertools
import math
import re
from pathlib import Path

import pandas as pd

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.analysis import coverage, tables
from softadlib.methods import METHODS
from softadlib.results import reader as store
from softadlib.results.selection import TIES

BEGIN = "<!-- results of profile {profile}: softad results {profile} --write {file} -->"
END = "<!-- end of results of profile {profile} -->"
FLIPPED = re.compile(r", (\S+) of labels flipped")
FOUR = ["erm", "flooding", "sam", "softad"]
"""The methods of Table 1."""


def markdown(profile: str) -> str:
    """All of it for one profile, flipped labels folded away. Raises UserError where nothing is finished."""

    def level(item: tuple[str, pd.DataFrame]) -> str:
        found = FLIPPED.search(item[0])
        return found[1] if found else ""

    out = []
    for flipped, some in itertools.groupby(frames(profile).items(), level):
        text = "\n\n".join(f"#### {title}\n\n{_table(frame)}" for title, frame in some)
        if flipped:
            head = f"<summary>The same tables with {flipped} of labels flipped</summary>"
            text = f"<details>\n{head}\n\n{text}\n\n</details>"
        out.append(text)
    return "\n\n".join(out) + "\n"


def frames(profile: str) -> dict[str, pd.DataFrame]:
    """Title → table, in the order of reading. Raises UserError where nothing is finished."""
    rows, made = store.read(profile, final=True), store.provenances(profile)
    if rows.empty:
        raise UserError(
            f"nothing is finished in profile {profile!r}; softad run {profile} comes first"
        )
    named, words = coverage.names(made), coverage.words(made)
    out = {"What was run": effort(made)}
    for noise in sorted(rows["label_noise"].unique()):
        some = rows[rows["label_noise"] == noise]
        flipped = f", {noise:.0%} of labels flipped" if noise else ""
        parts = {
            f"Loss gaps (Tables 1 and 3){flipped}, ties to the {ties}": gaps(some, ties)
            for ties in TIES
        }
        parts[f"Selected values (Tables 2 and 4){flipped}"] = knobs(some)
        if set(some["method"]) >= set(FOUR):
            parts[f"Who has the smallest gap{flipped}"] = verdicts(some)
            parts[f"SoftAD's θ against Flooding's{flipped}"] = tables.theta_order(some)
            parts[f"SoftAD along θ, nothing selected{flipped}"] = along(some)
        for title, frame in parts.items():
            if len(frame):
                out[title] = _named(frame if not noise else _ours(frame), named, words)
    return out


def write_csv(profile: str, folder: Path) -> list[Path]:
    """The same tables, one CSV file each. Raises UserError as `frames` does."""
    made = []
    for title, frame in frames(profile).items():
        words = re.sub(r"\(.*?\)|[^\w\s]", "", title.replace("θ", "theta")).lower().split()
        made.append(folder / f"{'_'.join(words)}.csv")
        _workspace.write(made[-1], frame.to_csv(index=False))
    return made


def effort(made: pd.DataFrame) -> pd.DataFrame:
    """What stands behind every dataset, and how long it took where."""
    facts = tables.effort(made).reset_index()
    by = made.groupby("dataset", sort=False)
    facts["runs"] = facts["dataset"].map(by["runs"].sum())
    facts.insert(2, "label noise", facts["dataset"].map(by["label_noise"].first()))
    facts["hours"] = facts["dataset"].map(by["seconds"].sum() / 3600).map("{:.2f}".format)
    for name in ("device", "torch"):
        facts[name] = facts["dataset"].map(by[name].agg(lambda v: ", ".join(sorted(set(v)))))
    facts["finished"] = facts["dataset"].map(by["finished"].max()).str[:10]
    return facts


def _ours(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the paper's columns: it flips no labels in the tables that it prints."""
    return frame[[c for c in frame if not c.startswith("paper")]]


def _named(frame: pd.DataFrame, named: dict[str, str], words: coverage.Words) -> pd.DataFrame:
    """In every line the dataset by its name of `coverage.names`, and how a value without a grid came."""
    if "method" in frame:
        labels = {
            (dataset, tables.LABELS[m]): f"{tables.LABELS[m]}, {METHODS[m].knob}: {word}"
            for (dataset, m), word in words.items()
        }
        keys = list(zip(frame["dataset"], frame["method"]))
        frame = frame.assign(method=[labels.get(key, key[1]) for key in keys])
        for column in (c for c in frame if c.startswith("paper")):  # it had a grid
            frame[column] = frame[column].mask([key in labels for key in keys], tables.DASH)
    return frame.assign(dataset=frame["dataset"].map(named))


def gaps(rows: pd.DataFrame, ties: str) -> pd.DataFrame:
    """The paper's gaps, then ours under one tie rule with interval, test loss, accuracy and norm.

    A method without a value to choose stands under the first rule alone.
    """
    theirs = [tables.published(table)["mean"] for table in (1, 3)]
    theirs = theirs[0].combine_first(theirs[1])  # Table 3 has what Table 1 leaves out
    lines = []
    for _, r in tables.summary(rows, ties).iterrows():
        if ties != TIES[0] and pd.isna(r["knob"]):
            continue
        lines.append(
            {
                "dataset": r["dataset"],
                "method": tables.LABELS[r["method"]],
                "n": int(r["n"]),
                "paper's gap": tables.number(theirs.get((r["dataset"], r["method"]), math.nan)),
                "gap [95 %]": f"{tables.number(r['gap'])} {_interval(r)}".strip(),
                **_beside(r),
            }
        )
    return _in_order(pd.DataFrame(lines))


def knobs(rows: pd.DataFrame) -> pd.DataFrame:
    """The selected values, mean (sd), how often at an end of the grid, how many tied.

    Beside them those of least validation cross-entropy, by which the paper does not select.
    """
    theirs = [tables.published(table) for table in (2, 4)]
    theirs = theirs[0].combine_first(theirs[1])
    ours = {ties: tables.summary(rows, ties).set_index(["dataset", "method"]) for ties in TIES}
    least = (
        rows.dropna(subset="loss_val").groupby(["dataset", "method", "trial"])["loss_val"].idxmin()
    )
    by_loss = rows.loc[least].groupby(["dataset", "method"])["knob"].agg(["mean", "std"])
    lines = []
    for key, first in ours["largest"].iterrows():
        if pd.isna(first["knob"]):
            continue
        paper = theirs.loc[key] if key in theirs.index else None
        line = {
            "dataset": key[0],
            "method": tables.LABELS[key[1]],
            "n": int(first["n"]),
            "paper": tables.DASH if paper is None else tables.mean_sd(paper["mean"], paper["std"]),
        }
        for ties in TIES:
            r = ours[ties].loc[key]
            line[f"ties to the {ties}"] = tables.mean_sd(r["knob"], r["knob_sd"])
            line[f"at an end ({ties})"] = f"{r['edge']:.0f}/{r['n']:.0f}"
        line["tied"] = tables.number(first["tied"], 1)
        lines.append(line | {"by validation loss": tables.mean_sd(*by_loss.loc[key])})
    return _in_order(pd.DataFrame(lines))


def verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """The claim of the smallest gap, among the four methods of Table 1."""
    found = tables.gap_verdicts(rows, FOUR)
    return found.rename(
        columns={"accuracy": "its acc. − ERM's, points", "test loss": "its test loss − ERM's"}
    )


def along(rows: pd.DataFrame, method: str = "softad") -> pd.DataFrame:
    """One method at some of its grid: the ends, those nearest 0.1 and 0.3, and both sides of ln 2."""
    lines = []
    for dataset, part in rows[rows["method"] == method].groupby("dataset"):
        grid = pd.Series(sorted(part["knob"].unique()))
        near = [grid.iloc[(grid - at).abs().argmin()] for at in (0.1, 0.3)]
        above = grid >= math.log(2)
        sides = [grid[~above].max(), grid[above].min()]
        shown = pd.Series([grid.min(), *near, *sides, grid.max()]).dropna()
        for theta in sorted(shown.unique()):
            r = part[part["knob"] == theta]
            means = r[["loss_train", "loss_test", "acc_test", "model_norm"]].mean()
            lines.append(
                {
                    "dataset": dataset,
                    "θ": tables.number(theta, 2),
                    "n": r["trial"].nunique(),
                    "gap": tables.number(means["loss_test"] - means["loss_train"]),
                    **_beside(means),
                }
            )
    return _in_order(pd.DataFrame(lines))


def write(profile: str, path: Path) -> bool:
    """Put the results between their marks in a file; whether it changed. Raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    begin, end = BEGIN.format(profile=profile, file=path.name), END.format(profile=profile)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise UserError(f"{path} must hold the lines {begin!r} and {end!r}, in this order")
    head, tail = text.split(begin)[0], text.split(end)[1]
    made = f"{head}{begin}\n\n{markdown(profile)}\n{end}{tail}"
    if made != text:
        _workspace.write(path, made)
    return made != text


def _beside(means: pd.Series) -> dict[str, str]:
    """What stands beside a gap."""
    return {
        "test loss": tables.number(means["loss_test"]),
        "test accuracy, %": tables.number(100 * means["acc_test"], 1),
        "norm": tables.number(means["model_norm"], 1),
    }


def _in_order(lines: pd.DataFrame) -> pd.DataFrame:
    """The paper's datasets in the paper's order, then others; methods as they come."""
    if lines.empty:
        return lines
    place = {name: i for i, name in enumerate(tables.COLUMNS)}
    key = lines["dataset"].map(lambda d: (place.get(d, len(place)), d))
    return lines.loc[key.sort_values(kind="stable").index].reset_index(drop=True)


def _interval(r: pd.Series) -> str:
    return "" if r["n"] < 2 else tables.span(r["gap_low"], r["gap_high"])


def _table(frame: pd.DataFrame) -> str:
    """A Markdown table; columns of numbers to the right."""
    cells = frame.astype(str).to_numpy().tolist()
    text = [c for c in frame.columns if frame[c].astype(str).str.contains("[A-Za-z]{3}").any()]
    rule = [":--" if c in text else "--:" for c in frame.columns]
    return "\n".join(
        "| " + " | ".join(map(str, line)) + " |" for line in [frame.columns, rule, *cells]
    )
