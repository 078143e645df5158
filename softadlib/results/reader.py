"""Finished results of `outputs/`, as tables."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from softadlib._workspace import home
from softadlib.methods import METHODS
from softadlib.results.fingerprint import current_fields
from softadlib.results.folder import ResultFolder
from softadlib.results.paths import profile_dir
from softadlib.results.provenance import Provenance
from softadlib.results.table import load


def finished(profile: str) -> list[ResultFolder]:
    """Return the folders of finished results, in dataset and registry order."""
    names = [path.parts[-3:-1] for path in profile_dir(profile).glob("*/*/provenance.json")]
    order = {method: i for i, method in enumerate(METHODS)}
    names = sorted((n for n in names if n[1] in order), key=lambda n: (n[0], order[n[1]]))
    return [ResultFolder(profile, dataset, method) for dataset, method in names]


def profiles() -> list[str]:
    """Return the names of the profiles that have a folder under `outputs/`."""
    folders = (home() / "outputs").glob("*/")
    return sorted(path.name for path in folders if path.name[0] != ".")


def read(
    profile: str,
    dataset: str | None = None,
    label_noise: float | None = None,
    *,
    final: bool = False,
) -> pd.DataFrame:
    """Return the rows of all finished results of a profile, `label_noise` among the columns.

    Args:
        profile: a folder under `outputs/`.
        dataset: its rows only.
        label_noise: its rows only.
        final: the last epoch of every run only, which is all that tables need.
    """
    folders = [f for f in finished(profile) if dataset in (None, f.dataset)]
    files = {f.metrics: f.read_provenance().protocol["label_noise"][0] for f in folders}
    return load(files, label_noise, final)


def suggestions(profile: str) -> pd.DataFrame:
    """Return one line per suggestion of θ: dataset, method, label noise, trial and its facts.

    Those of the protocols whose results are finished; a suggestion that cannot be read is left out.
    """
    lines = []
    for folder in finished(profile):
        made = folder.read_provenance()
        own = ResultFolder(profile, folder.dataset, folder.method, made.fingerprint)
        for q, trial in itertools.product(
            made.protocol["label_noise"], range(made.protocol["trials"])
        ):
            if facts := own.read_suggestion(float(q), trial):
                key = {"dataset": folder.dataset, "method": folder.method, "label_noise": float(q)}
                lines.append(key | {"trial": trial} | facts)
    return pd.DataFrame(lines)


def provenances(profile: str) -> pd.DataFrame:
    """Return one line a result: dataset, method, runs, trials, epochs, samples, device, time, date.

    `word` is what stands in the place of a grid, such as auto, or ""; `grid` counts its values, and
    `span` says from where to where they go.
    """
    lines = []
    for folder in finished(profile):
        try:
            lines.append(_line(folder.read_provenance()))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise folder.broken(error) from None
    return pd.DataFrame(lines)


def grid_words(grid: Sequence[float]) -> str:
    """Write from where to where a grid goes: "0.01 to 2"."""
    return " to ".join(f"{value:g}" for value in dict.fromkeys((min(grid), max(grid))))


def training_words(protocol: Mapping[str, Any], method: str) -> str:
    """Write network, optimizer and settings of one method's runs: "model mlp4x500, optimizer adam, …"."""
    names = ("model", "optimizer", "lr", "momentum", "weight_decay", "batch_size")
    given = current_fields(protocol)["settings"].get(method, {})
    facts = {name: protocol[name] for name in names}
    facts["precision"] = protocol.get("precision", "fp32")  # earlier versions had no other
    facts |= {name: given.get(name, s.default) for name, s in METHODS[method].settings.items()}
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in facts.items()
    )


def _line(facts: Provenance) -> dict[str, Any]:
    protocol, last = facts.protocol, facts.sessions[-1]
    grid = protocol["grids"].get(facts.method, [0])
    word = grid if isinstance(grid, str) else ""
    samples = (str(protocol[f"n_{part}"] or "all") for part in ("train", "val", "test"))
    return {
        "dataset": facts.dataset,
        "method": facts.method,
        "runs": facts.runs,
        "diverged": len(facts.diverged),
        "trials": protocol["trials"],
        "label_noise": ", ".join(f"{noise:g}" for noise in protocol["label_noise"]),
        "grid": 1 if word else len(grid),
        "word": word,
        "span": "" if word else grid_words(grid),
        "epochs": protocol["epochs"],
        "samples": " + ".join(samples),
        "training": training_words(protocol, facts.method),
        "dtype": protocol["dtype"],
        "device": ", ".join(dict.fromkeys(session.device for session in facts.sessions)),
        "torch": ", ".join(dict.fromkeys(session.torch for session in facts.sessions)),
        "seconds": facts.seconds,
        "runs_without_session": facts.runs_without_session,
        "finished": last.finished[:16],
    }
