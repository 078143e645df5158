"""Test loss, gap and calibration error after temperature scaling: numbers, verdicts, sentences.

Every method is treated alike: one temperature a run, fitted on its validation part. Differences from
ERM are paired by trial, with Student's intervals.
"""

import pandas as pd

from softadlib.analysis import paper
from softadlib.analysis.concentration import last
from softadlib.analysis.readings import listed, trials_sentence
from softadlib.analysis.tables import LABELS, Cell, differences
from softadlib.methods import METHODS

SCALINGS = {"": "as trained", "plain_": "plain fit", "prior_": "fit with prior"}
"""Prefix of the columns of `results.sample_losses` → its name."""
CELLS = {
    "theta": Cell("knob", 2),
    "temperature": Cell("T", 2),
    "loss": Cell("test loss"),
    "gap": Cell("gap"),
    "ece": Cell("ECE, %", 1, 100),
}
LOWEST = 1.001e-3
"""A fitted temperature of at most this ran to its bound, 0.001."""
DIFFERENCES = {
    "loss": Cell("its test loss − ERM's", signed=True),
    "gap": Cell("its gap − ERM's", signed=True),
}
"""How `tables.render` writes the columns of `scaled` and of `against_erm`."""


def runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line per run and scaling: knob, temperature, test loss, gap, ECE on the test part."""
    key = ["dataset", "method", "label_noise", "trial", "knob"]
    ends = last(rows)
    parts = {part: ends[ends["part"] == part].set_index(key) for part in ("train", "test")}
    frames = []
    for prefix, name in SCALINGS.items():
        test, train = (parts[part][f"{prefix}loss"] for part in ("test", "train"))
        lines = pd.DataFrame({"loss": test, "gap": test - train})
        lines["ece"] = parts["test"][f"{prefix}ece"]
        lines["temperature"] = parts["test"][f"{prefix}temperature"] if prefix else 1.0
        frames.append(lines.reset_index().assign(scaling=name))
    return pd.concat(frames, ignore_index=True).dropna(subset=["loss"])


def scaled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over trials per dataset, method (rows) and scaling: knob, T, test loss, gap, ECE, n."""
    lines = runs(rows).rename(columns={"knob": "theta"})
    groups = lines.groupby(["dataset", "method", "scaling"])
    table = groups[["theta", "temperature", "loss", "gap", "ece"]].mean()
    table["n"] = groups.size()
    keys = [
        (d, m, s)
        for d in paper.in_order(lines["dataset"])
        for m in METHODS
        for s in SCALINGS.values()
        if (d, m, s) in table.index
    ]
    return table.loc[keys]


def against_erm(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `tables.differences` from ERM: test loss and gap per dataset, scaling and method."""
    lines = runs(rows)
    names = [*paper.in_order(lines["dataset"]), *SCALINGS.values(), *METHODS]
    rank = {name: i for i, name in enumerate(names)}
    lines = lines.sort_values(["dataset", "scaling", "method"], key=lambda c: c.map(rank))
    return differences(lines, ["dataset", "scaling"], ("loss", "gap"))


def readings(rows: pd.DataFrame, method: str = "softad") -> list[str]:
    """Say whether a smaller gap and a lower test loss are left once every method is calibrated alike."""
    table = against_erm(rows)
    table = table[table["method"] == method].set_index(["dataset", "scaling"])
    sentences = []
    for measure, word in (("gap", "gap"), ("loss", "test loss")):
        by_outcome: dict[str, list[str]] = {}
        for dataset in table.index.unique("dataset"):
            part = table.loc[dataset].loc[list(SCALINGS.values())]
            means = listed(f"{mean:+.3f}" for mean in part[measure])
            outcome = _outcome(part[f"{measure} is"].replace("open", "undecided"))
            by_outcome.setdefault(outcome, []).append(
                f"{dataset} ({means}, n = {part['n'].iloc[0]})"
            )
        head = f"{LABELS[method]}'s {word} against ERM's"
        sentences += [f"{head}: {word} on {listed(sets)}." for word, sets in by_outcome.items()]
    if sentences:
        sentences.append(trials_sentence(table["n"]))
    return sentences


def _outcome(verdicts: pd.Series) -> str:
    """Say what temperature scaling leaves of a difference, from its verdict under every scaling."""
    trained, plain, prior = verdicts
    if trained == plain == prior:
        return f"{trained} as trained and after either fit"
    if plain == prior:
        return f"{trained} as trained, {plain} after either fit"
    return f"{trained} as trained, {plain} after the plain fit, {prior} after the fit with prior"


def best_readings(rows: pd.DataFrame) -> list[str]:
    """Name the method with the lowest mean test loss and smallest gap, as trained and scaled.

    Of methods with unequal numbers of trials those with the most are compared. A scaling under which
    any of their runs fell to `LOWEST` is not ranked: a few such runs make the mean.
    """
    table, sentences = scaled(rows).reset_index(), []
    fell = (
        runs(rows)
        .groupby(["dataset", "method", "scaling"])["temperature"]
        .agg(lambda fitted: (fitted <= LOWEST).sum())
    )
    table = table.join(fell.rename("fell"), on=fell.index.names)
    for dataset, methods in table.groupby("dataset", sort=False):
        most = methods["n"].max()
        lines = methods[methods["n"] == most]
        compared = (
            "all methods" if len(lines) == len(methods) else f"the methods with {most} trials"
        )
        fell_by_scaling = lines.groupby("scaling", sort=False)["fell"].sum()
        for measure, word in (("loss", "lowest test loss"), ("gap", "smallest gap")):
            best = [
                f"{name} {LABELS[str(part.loc[part[measure].idxmin(), 'method'])]} {part[measure].min():.3f}"
                for name, part in lines.groupby("scaling", sort=False)
                if not fell_by_scaling[name]
            ]
            sentences.append(f"{dataset}, {word} of {compared}: {', '.join(best)}.")
        for name, count in fell_by_scaling[fell_by_scaling > 0].items():
            runs_of = "1 run" if count == 1 else f"{count} runs"
            sentences.append(
                f"{dataset}, {name}: not ranked, since T falls to its bound in {runs_of} of these methods."
            )
    return sentences
