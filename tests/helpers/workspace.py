"""A small workbook for tests: params, notebooks, outputs in a temporary folder."""

import json
import shutil
import signal
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = {
    "model": "linear",
    "optimizer": "sgd",
    "lr": 0.1,
    "batch_size": 10,
    "epochs": 4,
    "trials": 2,
    "n_train": 20,
    "n_val": 20,
    "n_test": 40,
    "grids": {"softad": [0.05, 0.3], "sam": [0.1]},
    "curve_every": 2,
    "dtype": "float64",
}
"""A protocol of a fraction of a second."""
SECONDS = {
    "epochs": 100,
    "curve_every": 50,
    "trials": 3,
    "grids": {"softad": [0.05, 0.1, 0.3, 0.6]},
}
"""Changes by which it takes seconds, so that it can be disturbed."""


def make_home(folder: Path, notebooks: tuple[str, ...] = (), **datasets: dict) -> Path:
    """params/tiny/<dataset>.yaml for each dataset, `TINY` with its changes; copies of notebooks."""
    (folder / "params" / "tiny").mkdir(parents=True)
    (folder / "notebooks").mkdir()
    for name, changes in (datasets or {"gaussian": {}}).items():
        values = {"profile": "tiny", "dataset": name, **TINY, **changes}
        (folder / "params" / "tiny" / f"{name}.yaml").write_text(json.dumps(values))  # also YAML
    for name in notebooks:
        shutil.copy(REPOSITORY / "notebooks" / f"{name}.ipynb", folder / "notebooks")
    return folder


def heed_ctrl_c() -> None:
    """Let this process end on SIGINT, also where the tests run in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def await_part(store, command) -> None:
    """Wait until a chunk of runs of a study is stored by a command."""
    while not list(store.chunks_folder.glob("*.parquet")):
        assert command.poll() is None, command.communicate()
        time.sleep(0.005)


def tree(folder: Path) -> dict[str, int]:
    """Every file below a folder with its time of change, to tell whether anything was written."""
    return {
        str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()
    }


def write_notebook(
    path: Path,
    *cells: str,
    parameters: str = "profile = 'tiny'",
    profiles: str | list[str] | None = None,
) -> None:
    """A notebook of code cells, the first tagged `parameters`; one with a `profile` draws all of them."""
    if profiles is None and "profile" in parameters:
        profiles = "all"
    document = {
        "cells": [
            {"cell_type": "code", "id": f"c{i}", "execution_count": None, "outputs": [], "source": text,
             "metadata": {"tags": ["parameters"]} if i == 0 else {}}
            for i, text in enumerate([parameters, *cells])
        ],
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"},
            **({"softad": {"profiles": profiles}} if profiles else {}),
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }  # fmt: skip
    path.write_text(json.dumps(document))
