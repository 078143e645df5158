"""How much of the paper's protocol stands behind results: what a dataset has less of, in words.

Label noise is not among it: every table is of one level, and says which.
"""

import pandas as pd

from softadlib import _workspace
from softadlib.analysis import tables
from softadlib.data.splits import PARTS
from softadlib.training import profiles
from softadlib.training.protocol import Protocol

Words = dict[tuple[str, str], str]
"""(dataset, method) → the word that stands in the place of a grid."""


def words(made: pd.DataFrame) -> Words:
    """Of `store.provenances`."""
    found = made[made["word"] != ""]
    return {(r.dataset, r.method): r.word for r in found.itertuples()}


def names(made: pd.DataFrame) -> dict[str, str]:
    """dataset → its name with what it has less of than the paper's protocol beside it."""
    cut = reductions(made)
    return {dataset: f"{dataset} ({less})" if less else dataset for dataset, less in cut.items()}


def reductions(made: pd.DataFrame) -> dict[str, str]:
    """What each dataset of `store.provenances` has less of than the paper's protocol; empty for nothing."""
    if not (_workspace.params_dir() / "paper").is_dir():  # profiles of one's own alone
        return dict.fromkeys(made["dataset"].unique(), "no profile paper to hold it against")
    known, facts = profiles.datasets_of("paper", _workspace.params_dir()), tables.effort(made)
    out = {}
    for dataset in facts.index:
        if dataset not in known:
            out[dataset] = "not in the paper"
            continue
        mine, ours = made[made["dataset"] == dataset], facts.loc[dataset]
        whole = profiles.load("paper", dataset, _workspace.params_dir())
        cuts = [
            f"{ours[name]} of {n} {name}"
            for name, n in {"trials": whole.trials, "epochs": whole.epochs}.items()
            if mine[name].min() < n
        ]
        cuts += _of_grids(mine, whole)
        samples = " + ".join(str(getattr(whole, f"n_{p}") or "all") for p in PARTS)
        cuts += [f"{ours['samples']} samples"] if ours["samples"] != samples else []
        out[dataset] = ", ".join(cuts)
    return out


def _of_grids(mine: pd.DataFrame, whole: Protocol) -> list[str]:
    grids = {
        tables.LABELS[r.method]: (r.grid, len(whole.grids[r.method]))
        for r in mine.itertuples()
        if r.method in whole.grids and not r.word
    }
    short = {label: f"{a} of {b} values" for label, (a, b) in grids.items() if a < b}
    if len(short) == len(grids) and len(set(short.values())) == 1:
        return [f"{next(iter(short.values()))} per method"]
    return [f"{values} of {label}" for label, values in short.items()]
