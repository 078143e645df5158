"""The README's results: the paper's tables beside ours, as Markdown made of stored rows alone."""

import math
from pathlib import Path

import pandas as pd

from . import files, profiles, store, tables
from .errors import UserError
from .splits import PARTS

BEGIN = "<!-- results of profile {profile}: softad results {profile} --write {file} -->"
END = "<!-- end of results -->"
RULES = ("largest", "smallest")


def markdown(profile: str) -> str:
    """All of it for one profile. Raises UserError where nothing is finished."""
    rows, made = store.read(profile, final=True), store.provenances(profile)
    if rows.empty:
        raise UserError(
            f"nothing is finished in profile {profile!r}; softad run {profile} comes first"
        )
    cut = reductions(made)
    parts = ["### What was run", _table(effort(made))]
    for noise in sorted(rows["label_noise"].unique()):
        some = rows[rows["label_noise"] == noise]
        flipped = f", {noise:.0%} of labels flipped" if noise else ""
        parts += [f"### Loss gaps (Tables 1 and 3){flipped}", _table(_named(gaps(some), cut))]
        parts += [
            f"### Selected values (Tables 2 and 4){flipped}",
            _table(_named(knobs(some), cut)),
        ]
        parts += [f"### Who has the smallest gap{flipped}", _table(_named(verdicts(some), cut))]
        order = _named(tables.theta_order(some), cut)
        parts += [f"### SoftAD's θ against Flooding's{flipped}", _table(order)]
    return "\n\n".join(parts) + "\n"


def effort(made: pd.DataFrame) -> pd.DataFrame:
    """What stands behind every dataset, and how long it took where."""
    facts = tables.effort(made).reset_index()
    by = made.groupby("dataset", sort=False)
    facts["runs"] = facts["dataset"].map(by["runs"].sum())
    facts["hours"] = facts["dataset"].map(by["seconds"].sum() / 3600).map("{:.2f}".format)
    for name in ("device", "torch"):
        facts[name] = facts["dataset"].map(by[name].agg(lambda v: ", ".join(sorted(set(v)))))
    facts["finished"] = facts["dataset"].map(by["finished"].max()).str[:10]
    return facts


def reductions(made: pd.DataFrame) -> dict[str, str]:
    """What each dataset has less of than the paper's protocol, in words; empty where nothing."""
    out, facts = {}, tables.effort(made)
    known = profiles.datasets_of("paper", store.params_dir())
    for dataset in facts.index:
        if dataset not in known:
            out[dataset] = "not in the paper"
            continue
        whole, ours = profiles.load("paper", dataset, store.params_dir()), facts.loc[dataset]
        theirs = {
            "trials": whole.trials,
            "values per method": max(map(len, whole.grids.values())),
            "epochs": whole.epochs,
        }
        cuts = [f"{ours[k]} of {n} {k}" for k, n in theirs.items() if ours[k] < n]
        samples = " + ".join(str(getattr(whole, f"n_{p}") or "all") for p in PARTS)
        cuts += [f"{ours['samples']} samples"] if ours["samples"] != samples else []
        out[dataset] = ", ".join(cuts)
    return out


def _named(frame: pd.DataFrame, cut: dict[str, str]) -> pd.DataFrame:
    """The reduction beside the dataset's name, in every line."""
    name = frame["dataset"].map(lambda d: f"{d} ({cut[d]})" if cut[d] else d)
    return frame.assign(dataset=name)


def gaps(rows: pd.DataFrame) -> pd.DataFrame:
    """The paper's gaps, then ours under both tie rules with interval, test loss, accuracy and norm."""
    theirs = [tables.published(table)["mean"] for table in (1, 3)]
    theirs = theirs[0].combine_first(theirs[1])  # Table 3 has what Table 1 leaves out
    ours = {ties: tables.summary(rows, ties).set_index(["dataset", "method"]) for ties in RULES}
    lines = []
    for key in ours["largest"].index:
        first = ours["largest"].loc[key]
        line = {
            "dataset": key[0],
            "method": tables.LABELS[key[1]],
            "n": int(first["n"]),
            "paper": tables.number(theirs.get(key, math.nan)),
        }
        for ties in RULES:
            r = ours[ties].loc[key]
            line |= {
                f"gap ({ties})": f"{tables.number(r['gap'])} {_interval(r)}".strip(),
                f"test loss ({ties})": tables.number(r["loss_test"]),
                f"acc. % ({ties})": tables.number(100 * r["acc_test"], 1),
                f"norm ({ties})": tables.number(r["model_norm"], 1),
            }
            if line["method"] == tables.LABELS["erm"]:  # nothing to choose, nothing to tie
                line |= dict.fromkeys([k for k in line if k.endswith("(smallest)")], "〃")
        lines.append(line)
    return _in_order(pd.DataFrame(lines))


def knobs(rows: pd.DataFrame) -> pd.DataFrame:
    """The selected values, mean (sd), how often at an end of the grid, how many tied."""
    theirs = [tables.published(table) for table in (2, 4)]
    theirs = theirs[0].combine_first(theirs[1])
    ours = {ties: tables.summary(rows, ties).set_index(["dataset", "method"]) for ties in RULES}
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
        for ties in RULES:
            r = ours[ties].loc[key]
            line[ties] = tables.mean_sd(r["knob"], r["knob_sd"])
            line[f"at an end ({ties})"] = f"{r['edge']:.0f}/{r['n']:.0f}"
        lines.append(line | {"tied": tables.number(first["tied"], 1)})
    return _in_order(pd.DataFrame(lines))


def verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """The claim of the smallest gap, among the four methods of Table 1."""
    found = tables.gap_verdicts(rows, ["erm", "flooding", "sam", "softad"])
    return found.rename(
        columns={"accuracy": "its acc. − ERM's, points", "test loss": "its test loss − ERM's"}
    )


def write(profile: str, path: Path) -> bool:
    """Put the results between their marks in a file; whether it changed. Raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    begin = BEGIN.format(profile=profile, file=path.name)
    if text.count(begin) != 1 or text.count(END) != 1 or text.index(END) < text.index(begin):
        raise UserError(f"{path} must hold the lines {begin!r} and {END!r}, in this order")
    head, tail = text.split(begin)[0], text.split(END)[1]
    made = f"{head}{begin}\n\n{markdown(profile)}\n{END}{tail}"
    if made != text:
        files.write(path, made)
    return made != text


def _in_order(lines: pd.DataFrame) -> pd.DataFrame:
    """The paper's datasets in the paper's order, then others; methods as they come."""
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
