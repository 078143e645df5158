"""How much of the paper's protocol stands behind stored results: what a dataset has less of, in words.

Label noise is not part of it: every table is of one level and names it.
"""

import pandas as pd

from softadlib import _workspace
from softadlib.analysis import tables
from softadlib.data.splits import PARTS
from softadlib.results import reader
from softadlib.training import profiles
from softadlib.training.protocol import Protocol

NO_PAPER = "no profile paper to hold it against"


def auto_words(provenances: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return (dataset, method) → the word, such as "auto", that stands in place of a grid."""
    without_grid = provenances[provenances["word"] != ""]
    return {(r.dataset, r.method): r.word for r in without_grid.itertuples()}


def labels(provenances: pd.DataFrame) -> dict[str, str]:
    """Return dataset → its name, followed in brackets by what it has less of than the paper's protocol."""
    return {
        dataset: f"{dataset} ({words})" if words else dataset
        for dataset, words in shortfalls(provenances).items()
    }


def shortfalls(provenances: pd.DataFrame) -> dict[str, str]:
    """Return dataset → what it has less of than the paper's protocol; empty for nothing."""
    paper_profile = _workspace.params_dir() / "paper"
    if not paper_profile.is_dir():  # a workspace with profiles of its own alone
        return dict.fromkeys(provenances["dataset"].unique(), NO_PAPER)
    datasets, facts = profiles.datasets_of("paper"), tables.effort(provenances)
    words = {}
    for dataset in facts.index:
        if dataset not in datasets:
            words[dataset] = "not in the paper"
            continue
        stored = provenances[provenances["dataset"] == dataset]
        protocol = profiles.load("paper", dataset)
        words[dataset] = ", ".join(_cuts(stored, facts.loc[dataset], protocol))
    return words


def _cuts(stored: pd.DataFrame, facts: pd.Series, protocol: Protocol) -> list[str]:
    """Return what one dataset's results have less of than `protocol`, a phrase each."""
    cuts = [
        f"{facts[name]} of {whole} {name}"
        for name, whole in (("trials", protocol.trials), ("epochs", protocol.epochs))
        if stored[name].min() < whole
    ]
    cuts += _grid_cuts(stored, protocol) + _training_cuts(stored, protocol)
    samples = " + ".join(str(getattr(protocol, f"n_{part}") or "all") for part in PARTS)
    return cuts if facts["samples"] == samples else [*cuts, f"{facts['samples']} samples"]


def _training_cuts(stored: pd.DataFrame, protocol: Protocol) -> list[str]:
    """Return what was trained otherwise than in `protocol`: "lr 0.01", or "sigma 2 of SoftAD" of one alone."""
    paper, methods = protocol.model_dump(), stored["method"].tolist()
    other: dict[str, list[str]] = {}
    for r in stored.itertuples():
        of_paper = reader.training_words(paper, r.method).split(", ")
        for fact in r.training.split(", "):
            if fact not in of_paper:
                other.setdefault(fact, []).append(tables.LABELS[r.method])
    return [
        fact if len(labels) == len(methods) else f"{fact} of {', '.join(labels)}"
        for fact, labels in other.items()
    ]


def _grid_cuts(stored: pd.DataFrame, protocol: Protocol) -> list[str]:
    """Describe grids that are not the protocol's: one phrase where all are cut alike, else one each."""
    swept = [r for r in stored.itertuples() if r.method in protocol.grids and not r.word]
    differing = {}
    for r in swept:
        grid = protocol.grids[r.method]
        if isinstance(grid, str):
            continue
        if r.grid < len(grid):
            differing[r.method] = f"{r.grid} of {len(grid)} values"
        elif r.span != reader.grid_words(grid):
            differing[r.method] = f"values {r.span}"
    if len(differing) == len(swept) and len(set(differing.values())) == 1:
        return [f"{next(iter(differing.values()))} per method"]
    return [f"{words} of {tables.LABELS[method]}" for method, words in differing.items()]
