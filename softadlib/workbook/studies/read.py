"""Finished results of `outputs/` as tables."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from softadlib._validation import MissingData
from softadlib.methods import METHODS
from softadlib.trainer.splits import PARTS
from softadlib.workbook.studies import selection
from softadlib.workbook.studies.parquet import (
    NOT_MEASURED,
    broken,
    by_split,
    is_measured,
    merge,
    outputs,
    read_provenance,
    read_rows,
)
from softadlib.workbook.studies.provenance import Provenance
from softadlib.workbook.studies.schema import LOSS_COLUMNS, run_keys
from softadlib.workbook.studies.store import StudyStore


def stored_studies(
    profile: str, dataset: str = "*", without: Collection[str] = ()
) -> dict[StudyStore, Provenance]:
    """Return every finished dataset × method with its provenance; none where there is no folder.

    They are in the registry's order; methods that are not registered come last. Files of the methods
    `without` are not read.
    """
    found = {}
    for path in outputs(profile).glob(f"{dataset}/*.parquet"):
        if path.stem not in without:
            provenance = read_provenance(path)
            named = provenance.dataset, provenance.method
            if named != (path.parent.name, path.stem):
                raise broken(path, f"it has rows of {' × '.join(named)}")
            found[StudyStore(profile, *named)] = provenance
    rank = {method: i for i, method in enumerate(METHODS)}

    def place(study: StudyStore) -> tuple[str, int, str]:
        return study.dataset, rank.get(study.method, len(rank)), study.method

    return {study: found[study] for study in sorted(found, key=place)}


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


def measured_rows(rows: pd.DataFrame, protocol: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows with a network's measures, and what the protocol alone knows of them.

    That is `has_best_epoch`: whether the best epoch of every run is stored.
    """
    rows = rows[is_measured(rows)].drop(columns=NOT_MEASURED, errors="ignore")
    return rows.assign(has_best_epoch=bool(protocol["best_epoch"])).reset_index(drop=True)


def _asked_for(
    study: StudyStore, provenance: Provenance, columns: Sequence[str] = LOSS_COLUMNS
) -> pd.DataFrame:
    """Return the stored rows of the runs that a study's protocol asks for; a file may hold others."""
    rows = read_rows(study.file, columns)
    protocol = provenance.protocol
    keep = rows["trial"].lt(protocol["trials"]) & rows["label_noise"].isin(protocol["label_noise"])
    if provenance.grid:
        keep &= rows["knob"].isin(provenance.grid)
    return rows[keep]


def _rows_of(
    study: StudyStore, provenance: Provenance, columns: Sequence[str] = LOSS_COLUMNS
) -> pd.DataFrame:
    return measured_rows(_asked_for(study, provenance, columns), provenance.protocol)


def read(
    profile: str,
    dataset: str | None = None,
    label_noise: float | None = None,
    *,
    final: bool = False,
) -> pd.DataFrame:
    """Return the rows of all finished results of a profile, one for each run and measured epoch.

    The columns are those that `pandas.read_parquet` shows of the files, and `has_best_epoch`: whether the
    best epoch of every run was looked for.

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
        rows = _rows_of(study, provenance)
        if label_noise is not None:
            rows = rows[rows["label_noise"] == label_noise]
        frames.append(selection.final(rows) if final and len(rows) else rows)
    return merge(frames)


def read_losses(
    profile: str, dataset: str | None = None, label_noise: float | None = None
) -> pd.DataFrame:
    """Return losses of single samples and calibration: a row for each run, epoch and split of the data.

    Of the selected runs, or of all runs where the protocol has `best_epoch`. Arguments and errors are
    those of `read`. `quantiles` are at the levels `schema.LEVELS`; columns of calibration hold numbers
    at the last epoch alone, and with `best_epoch` at the best.
    """
    frames = []
    for study, provenance in finished(profile, dataset).items():
        rows = _asked_for(study, provenance)
        protocol = provenance.protocol
        if protocol["curves"] == "selected" and not protocol["best_epoch"]:
            # A file may also hold runs that were selected among other values, or by other ties.
            selected = selection.select(measured_rows(rows, protocol), protocol["ties"])
            chosen = set(run_keys(selected))
            rows = rows[[key in chosen for key in run_keys(rows)]]
        if label_noise is not None:
            rows = rows[rows["label_noise"] == label_noise]
        frames.append(rows)
    return by_split(merge(frames))


def provenances(profile: str) -> pd.DataFrame:
    """Return one line per study: what was trained, how much of it, on what, when and how long."""
    lines = []
    for study, provenance in finished(profile).items():
        protocol = provenance.protocol
        sessions = provenance.sessions
        grid = provenance.grid
        ends = selection.final(_rows_of(study, provenance, columns=()))
        span = dict.fromkeys((min(grid), max(grid)) if grid else ())
        lines.append(
            {
                "dataset": study.dataset,
                "method": study.method,
                "runs": len(ends),
                "diverged": int(selection.diverged(ends).sum()),
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
