"""Finished results of `outputs/` as they are read; `place` has how they lie and who writes them."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from softadlib.methods import METHODS
from softadlib.results.folder import broken, profile_dir, read_provenance
from softadlib.results.table import load


def places(profile: str) -> list[Path]:
    """Folders of finished results, in dataset and registry order."""
    done = [p.parent for p in profile_dir(profile).glob("*/*/provenance.json")]
    order = {name: i for i, name in enumerate(METHODS)}
    return sorted(
        (p for p in done if p.name in order), key=lambda p: (p.parent.name, order[p.name])
    )


def read(
    profile: str,
    dataset: str | None = None,
    label_noise: float | None = None,
    *,
    final: bool = False,
) -> pd.DataFrame:
    """Rows of all finished results of a profile, `label_noise` always among the columns.

    `dataset` and `label_noise` keep those rows only, `final` the last epoch of every run, which is
    all that tables need. No results give an empty table.
    """
    files = {}
    for path in sorted(places(profile), key=lambda p: (p.parent.name, p.name)):
        if dataset in (None, path.parent.name):
            known = read_provenance(path / "provenance.json")["protocol"]["label_noise"]
            files[path / "metrics.parquet"] = known[0]
    return load(files, label_noise, final)


def suggestions(profile: str) -> pd.DataFrame:
    """What `suggest_theta` said: a line per dataset, method, label noise and trial, with its facts."""
    lines = []
    for path in sorted(profile_dir(profile).glob("*/*/suggested/*.json")):
        dataset, method = path.parts[-4:-2]
        _, label_noise, trial = path.stem.split("-")
        key = {"dataset": dataset, "method": method, "label_noise": float(label_noise)}
        facts = json.loads(path.read_text(encoding="utf-8"))
        lines.append(key | {"trial": int(trial)} | facts)
    return pd.DataFrame(lines)


def provenances(profile: str) -> pd.DataFrame:
    """One line a result: dataset, method, runs, trials, epochs, samples, device, torch, time, date.

    `word`: what stands in the place of a grid, "" where one does; `grid` is 1 there.
    """
    lines = []
    for path in places(profile):
        facts = read_provenance(path / "provenance.json")
        try:
            lines.append(_line(facts))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise broken(path / "provenance.json", error) from None
    return pd.DataFrame(lines)


def _line(facts: dict[str, Any]) -> dict[str, Any]:
    protocol, last = facts["protocol"], facts["sessions"][-1]
    grid = protocol["grids"].get(facts["method"], [0])
    word = grid if isinstance(grid, str) else ""
    samples = (str(protocol[f"n_{part}"] or "all") for part in ("train", "val", "test"))
    return {
        "dataset": facts["dataset"],
        "method": facts["method"],
        "runs": facts["runs"],
        "diverged": len(facts["diverged"]),
        "trials": protocol["trials"],
        "label_noise": ", ".join(f"{noise:g}" for noise in protocol["label_noise"]),
        "grid": 1 if word else len(grid),
        "word": word,
        "epochs": protocol["epochs"],
        "samples": " + ".join(samples),
        "dtype": protocol["dtype"],
        "device": last["device"],
        "torch": last["torch"],
        "seconds": round(sum(s["seconds"] for s in facts["sessions"]), 1),
        "finished": last["finished"][:16],
    }
