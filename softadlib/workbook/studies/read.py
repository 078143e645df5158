"""Finished results of `outputs/` as tables."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from softadlib._validation import MissingData
from softadlib.methods import METHODS
from softadlib.trainer.splits import PARTS
from softadlib.workbook.studies import selection
from softadlib.workbook.studies.parquet import (
    Provenance,
    broken,
    merge,
    merge_losses,
    outputs,
    read_losses_of,
    read_provenance,
    read_rows,
)
from softadlib.workbook.studies.schema import LOSSES, run_keys
from softadlib.workbook.studies.store import StudyStore


def stored_studies(
    profile: str, dataset: str = "*", without: Collection[str] = ()
) -> dict[StudyStore, Provenance]:
    """Return every finished dataset × method with its provenance; none where there is no folder.

    Files of the methods `without` are not read.
    """
    found = {}
    for path in outputs(profile).glob(f"{dataset}/*.parquet"):
        if path.stem in METHODS and path.stem not in without:
            provenance = read_provenance(path)
            named = provenance.dataset, provenance.method
            if named != (path.parent.name, path.stem):
                raise broken(path, f"it has rows of {' × '.join(named)}")
            found[StudyStore(profile, *named)] = provenance
    order = {method: i for i, method in enumerate(METHODS)}
    return dict(sorted(found.items(), key=lambda pair: (pair[0].dataset, order[pair[0].method])))


def finished(profile: str, dataset: str | None = None) -> dict[StudyStore, Provenance]:
    """Return every finished dataset × method with its provenance, in the registry's order.

    Raises MissingData where the profile, or the dataset, has no results.
    """
    folder = outputs(profile)
    if not folder.is_dir():
        known = ", ".join(sorted(p.name for p in outputs().glob("*/") if p.name[0] != "."))
        raise MissingData(
            f"profile {profile!r} has no results in {folder.parent}; softad run {profile} makes them; "
            f"there are: {known or 'none'}"
        )
    studies = stored_studies(profile, dataset or "*")
    if dataset is not None and not studies:
        there = ", ".join(sorted({study.dataset for study in stored_studies(profile)}))
        raise MissingData(
            f"profile {profile!r} has no results of {dataset!r}; there are those of: {there or 'none'}"
        )
    return studies


def asked_for(rows: pd.DataFrame, provenance: Provenance) -> pd.DataFrame:
    """Return the rows of the runs that a study's protocol asks for; a file may hold others."""
    protocol = provenance.protocol
    keep = rows["trial"].lt(protocol["trials"]) & rows["label_noise"].isin(protocol["label_noise"])
    if provenance.grid:
        keep &= rows["knob"].isin(provenance.grid)
    return rows if keep.all() else rows[keep]


def read(
    profile: str,
    dataset: str | None = None,
    label_noise: float | None = None,
    *,
    final: bool = False,
) -> pd.DataFrame:
    """Return the rows of all finished results of a profile, one for each run and measured epoch.

    Args:
        profile: a folder under `outputs/`.
        dataset: its rows only.
        label_noise: its rows only.
        final: the last epoch of every run only, which is all that tables need.

    Raises UserError for an unknown profile, and naming a broken file.

    >>> rows = read("smoke", "gaussian", final=True)
    >>> sorted(rows["method"].unique())
    ['erm', 'flooding', 'iflood', 'sam', 'softad']
    """
    frames = []
    for study, provenance in finished(profile, dataset).items():
        rows = asked_for(read_rows(study.file), provenance)
        if label_noise is not None:
            rows = rows[rows["label_noise"] == label_noise]
        frames.append(selection.final(rows) if final and len(rows) else rows)
    return merge(frames)


def read_losses(
    profile: str, dataset: str | None = None, label_noise: float | None = None
) -> pd.DataFrame:
    """Return losses of single samples and calibration: a row for each run, epoch and part of the data.

    Of the selected runs, or of all runs where the protocol has `best_epoch`. Arguments and errors are
    those of `read`. `quantiles` are at the levels `schema.LEVELS`; columns of calibration hold numbers
    at the last epoch alone, and with `best_epoch` at the best.
    """
    frames = []
    for study, provenance in finished(profile, dataset).items():
        losses = asked_for(read_losses_of(study.file), provenance)
        protocol = provenance.protocol
        if protocol["curves"] == "selected" and not protocol["best_epoch"]:
            # A file may also hold runs that were selected among other values, or by other ties.
            rows = asked_for(read_rows(study.file), provenance)
            chosen = set(run_keys(selection.select(rows, protocol["ties"])))
            losses = losses[[key in chosen for key in run_keys(losses)]]
        frames.append(losses)
    rows = merge_losses(frames)
    if label_noise is not None:
        rows = rows[rows["label_noise"] == label_noise].reset_index(drop=True)
    return rows


def provenances(profile: str) -> pd.DataFrame:
    """Return one line per study: what was trained, how much of it, on what, when and how long."""
    lines = []
    for study, provenance in finished(profile).items():
        protocol = provenance.protocol
        sessions = provenance.sessions
        grid = provenance.grid
        ends = selection.final(asked_for(read_rows(study.file), provenance))
        converged = np.isfinite(ends[list(LOSSES)]).all(axis=1)
        span = dict.fromkeys((min(grid), max(grid)) if grid else ())
        lines.append(
            {
                "dataset": study.dataset,
                "method": study.method,
                "runs": len(ends),
                "diverged": int((~converged).sum()),
                "trials": protocol["trials"],
                "label_noise": ", ".join(f"{noise:g}" for noise in protocol["label_noise"]),
                "grid": len(grid) or 1,
                "span": " to ".join(f"{value:g}" for value in span),
                "epochs": protocol["epochs"],
                "samples": " + ".join(str(protocol[f"n_{p}"] or "all") for p in PARTS),
                "training": training_words(protocol, study.method),
                "dtype": protocol["dtype"],
                "device": ", ".join(dict.fromkeys(s.device for s in sessions)),
                "torch": ", ".join(dict.fromkeys(s.torch for s in sessions)),
                "seconds": provenance.seconds,
                "finished": max((s.finished for s in sessions), default="")[:16],
            }
        )
    return pd.DataFrame(lines)


def training_words(protocol: Mapping[str, Any], method: str) -> str:
    """Write network, optimizer and settings of a method: "model mlp4x500, optimizer adam, …"."""
    of_recipe = ("optimizer", "lr", "lr_schedule", "momentum", "weight_decay", "batch_size")
    words = {name: protocol[name] for name in ("model", *of_recipe, "precision")}
    words |= protocol["settings"].get(method, {})
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in words.items())
