"""Move a result folder out of the way and back, so that a kill at any moment loses nothing.

Copies are prepared first; a rename is the last step. `finish_move` ends what a killed call began.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from softadlib._workspace import os_error_as_user_error
from softadlib.results.provenance import Provenance
from softadlib.results.table import unpack


def is_whole(folder: Path) -> bool:
    """Tell whether a folder holds a finished result that can be read; a broken one counts as none."""
    try:
        unpack(folder / "metrics.parquet")
        Provenance.from_json((folder / "provenance.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError):
        return False
    return True


def under_way(path: Path, but: str = "none") -> list[Path]:
    """Return the files of studies under way in `path`, but those of the protocol with fingerprint `but`."""
    files = (file for file in path.glob("*/*") if file.is_file())
    return [file for file in files if not file.name.startswith(f"{but}-")]


def _replacement(path: Path) -> Path:
    """Return where `move_away` prepares the folder that takes the place of `path`."""
    return path.with_name(f".{path.name}.next")


def finish_move(path: Path) -> None:
    """Do the last rename of a killed `move_away`, or drop its copies where it had not moved `path`."""
    replacement = _replacement(path)
    if replacement.exists():
        with os_error_as_user_error(path):
            if path.exists():
                shutil.rmtree(replacement)
            else:
                os.replace(replacement, path)


def move_away(path: Path, target: Path, staying: Iterable[Path]) -> None:
    """Rename `path` to `target`; a new folder at `path` holds copies of the files `staying`."""
    replacement = _replacement(path)
    with os_error_as_user_error(target):
        shutil.rmtree(replacement, ignore_errors=True)
        replacement.mkdir()
        _copy(staying, path, replacement)
        os.replace(path, target)
        os.replace(replacement, path)


def move_back(path: Path, earlier: Path, newer: Iterable[Path]) -> None:
    """Rename `earlier` to `path`, with copies of the files `newer` from there.

    A kill before the rename leaves `earlier` where it is, for the next call.
    """
    with os_error_as_user_error(path):
        _copy(newer, path, earlier)
        shutil.rmtree(path, ignore_errors=True)
        os.replace(earlier, path)


def _copy(files: Iterable[Path], source: Path, target: Path) -> None:
    """Copy files from below one folder to the same paths below another."""
    for path in files:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy2(path, copy)
