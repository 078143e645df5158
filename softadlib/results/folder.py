"""The folder of one dataset × method under `outputs/`: every file that is written there, and read.

outputs/<profile>/<dataset>/<method>/metrics.parquet    rows, `schema.COLUMNS`
                                     provenance.json    written last: its presence means done
                                     selected.parquet   losses and calibration of the selected runs
                                     train.ipynb        the executed notebook
                                     parts/*.parquet    rows of a study under way
                                     parts/*.json       sessions of calls that left it unfinished
                                     losses/*.parquet   parts of selected.parquet
                                     checkpoints/*.pt   trainings under way
                                     held-out/*.npz     losses under models not trained on the sample
                                     suggested/*.json   θ of an ordinary run, for grids that say auto
                                     progress.json      how far a study under way is

Files appear whole or not at all. Those of a study under way begin with the protocol's fingerprint.
"""

import contextlib
import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from softadlib._validation import UserError
from softadlib._workspace import os_error_as_user_error, write
from softadlib.results import locks
from softadlib.results.paths import inside, profile_dir
from softadlib.results.provenance import Provenance, Session
from softadlib.results.schema import ALL_COLUMNS, COLUMNS
from softadlib.results.set_aside import finish_move, is_whole, move_away, move_back, under_way
from softadlib.results.table import merge, pack, train_again, unpack

STUDY_FOLDERS = ("parts", "losses", "checkpoints")
"""Folders whose files serve a study until its table is finished."""


@contextlib.contextmanager
def lock_results(
    profile: str, pairs: Iterable[tuple[str, str]], shared: bool = False
) -> Iterator[None]:
    """Hold the results of these (dataset, method) pairs for writing, until the block ends.

    Processes started inside hold them too. `shared` is for shards, which only add parts: several
    may hold a pair, but none alone meanwhile. Raises UserError, naming the holder.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(locks.lock_profile(profile_dir(profile)))
        for dataset, method in pairs:
            path = inside(profile, dataset, method)
            lock, what = path.with_name(f".{method}.lock"), f"{profile}: {dataset} × {method}"
            stack.enter_context(locks.file_lock(lock, what, shared))
            if not shared:
                finish_move(path)
        yield


@dataclass(frozen=True)
class ResultFolder:
    """The folder of one dataset × method of a profile, for one fingerprint of its protocol."""

    profile: str
    dataset: str
    method: str
    fingerprint: str = ""
    """Empty where finished results are read, whatever their protocol."""

    @property
    def path(self) -> Path:
        return inside(self.profile, self.dataset, self.method)

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.parquet"

    @property
    def provenance(self) -> Path:
        return self.path / "provenance.json"

    @property
    def selected(self) -> Path:
        return self.path / "selected.parquet"

    @property
    def notebook(self) -> Path:
        return self.path / "train.ipynb"

    @property
    def progress(self) -> Path:
        return self.path / "progress.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _of_study(self, pattern: str) -> list[Path]:
        """Return this protocol's files in the folders of a study under way."""
        folder, name = pattern.split("/")
        return sorted(self.path.glob(f"{folder}/{self.fingerprint}-{name}"))

    # Finished results

    def read_provenance(self) -> Provenance:
        """Read the facts beside the table. Raises UserError for a broken file."""
        try:
            return Provenance.from_json(self.provenance.read_text(encoding="utf-8"))
        except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
            raise self.broken(error) from None

    def broken(self, error: Exception) -> UserError:
        """Return the error to raise for a provenance that says too little."""
        what = f"{error} missing" if isinstance(error, KeyError) else error
        return UserError(f"{self.provenance} is broken ({what}); {train_again(self.path)}")

    def stored_fingerprint(self) -> str | None:
        """Return the fingerprint of the stored table; None where there is no table."""
        return unpack(self.metrics)[1] or "unknown" if self.metrics.exists() else None

    def files(self) -> list[Path]:
        """Return the files of a finished result that are there."""
        files = (self.provenance, self.metrics, self.selected, self.notebook)
        return [path for path in files if path.exists()]

    def finish(self, rows: pd.DataFrame, provenance: Provenance) -> None:
        """Write the table, then its provenance, then remove the files that they replace."""
        replaced = self._replaced()
        columns = ALL_COLUMNS if rows["label_noise"].nunique() > 1 else list(COLUMNS)
        write(self.metrics, pack(rows[columns], self.fingerprint))
        write(self.provenance, provenance.to_json())
        self._remove(replaced)

    def tidy(self) -> None:
        """Remove what a finished table has replaced, where `finish` was killed over it."""
        self._remove(self._replaced())

    def _replaced(self) -> list[Path]:
        """Return the files that serve a study until its table is finished."""
        under_way = [path for kind in STUDY_FOLDERS for path in self._of_study(f"{kind}/*")]
        return [*under_way, self.progress]

    def _remove(self, files: Iterable[Path]) -> None:
        with os_error_as_user_error(self.path):
            for path in files:
                path.unlink(missing_ok=True)
        for folder in STUDY_FOLDERS:
            with contextlib.suppress(OSError):  # it stays where another protocol's files lie
                (self.path / folder).rmdir()

    def save_selected(self, rows: pd.DataFrame) -> None:
        """Write `selected.parquet`."""
        write(self.selected, pack(rows, self.fingerprint))

    # Results of a study under way

    def aside(self) -> list["ResultFolder"]:
        """Return the folders of results of this protocol that were set aside.

        They hold runs that a later call did not ask for: further trials, or values of a grid.
        """
        paths = sorted(self.path.parent.glob(f"{self.method}.{self.fingerprint}*"))
        return [replace(self, method=path.name) for path in paths if self.fingerprint]

    def stored_rows(self) -> pd.DataFrame:
        """Return every row of this protocol: finished ones and those of an interrupted study.

        A table that only its provenance could give a label noise counts as none without it.
        """
        frames = []
        for part in self._of_study("parts/*.parquet"):
            with contextlib.suppress(UserError):  # the runs of a broken file are trained again
                rows, fingerprint = unpack(part)
                frames += [rows] if fingerprint == self.fingerprint else []
        if self.metrics.exists():
            rows, fingerprint = unpack(self.metrics)
            if fingerprint == self.fingerprint:
                if "label_noise" not in rows and self.provenance.exists():
                    rows["label_noise"] = self.read_provenance().protocol["label_noise"][0]
                frames += [rows] if "label_noise" in rows else []
        return merge(frames)

    def save_part(self, rows: pd.DataFrame) -> None:
        """Store rows of finished runs; the same rows always go to the same file."""
        content = pd.util.hash_pandas_object(rows).to_numpy().tobytes()
        name = hashlib.sha256(content).hexdigest()[:16]
        write(self._part(f"{name}.parquet"), pack(rows, self.fingerprint))

    def save_session(self, session: Session, call_id: str) -> None:
        """Store the session of a call, in place of an earlier state of it."""
        write(self._part(f"{call_id}.json"), json.dumps(session.to_json()) + "\n")

    def _part(self, name: str) -> Path:
        return self.path / "parts" / f"{self.fingerprint}-{name}"

    def sessions(self) -> list[Session]:
        """Return the sessions of earlier calls under this protocol, shards included."""
        sessions: list[Session] = []
        if self.provenance.exists():
            finished = self.read_provenance()
            sessions += finished.sessions if finished.fingerprint == self.fingerprint else []
        unfinished = []
        for path in self._of_study("parts/*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # cut in copying
                session = Session.from_json(json.loads(path.read_text(encoding="utf-8")))
                unfinished += [session] if session not in sessions else []
        return [*sessions, *sorted(unfinished, key=lambda session: session.finished)]

    def set_aside(self, unfinished: bool = False) -> Path | None:
        """Move the stored results, with `unfinished` also rows without a table; return where to.

        Other files of studies under way stay, but for those of another protocol that is moved.
        """
        stored = self.stored_fingerprint() or (self.fingerprint if unfinished else None)
        if not stored:
            return None
        target, n = self.path.with_name(f"{self.method}.{stored}"), 1
        while target.exists():
            n += 1
            target = self.path.with_name(f"{self.method}.{stored}-{n}")
        staying = set(under_way(self.path, but="none" if stored == self.fingerprint else stored))
        if unfinished:  # rows that stay would be found and moved again by the next call
            staying -= set(self._of_study("parts/*.parquet"))
        move_away(self.path, target, staying)
        return target

    @property
    def earlier(self) -> Path:
        """The folder to which finished results of this protocol were moved by `set_aside`."""
        return self.path.with_name(f"{self.method}.{self.fingerprint}")

    def can_take_back(self) -> bool:
        """Tell whether `take_back` finds results of this protocol that another's have replaced."""
        return is_whole(self.earlier) and self.stored_fingerprint() != self.fingerprint

    def take_back(self) -> bool:
        """Move results of this protocol, once set aside, to where they were; return whether."""
        if taken := self.can_take_back():
            self.set_aside()
            move_back(self.path, self.earlier, under_way(self.path))
        return taken

    def clear(self, *models: str) -> None:
        """Delete all of this protocol, also aside, checkpoints of `models`, and a broken table."""
        finished = self.files()
        with contextlib.suppress(UserError):
            finished = finished if self.stored_fingerprint() in (None, self.fingerprint) else []
        with os_error_as_user_error(self.path):
            for folder in self.aside():
                shutil.rmtree(folder.path)
            of_models = (path for name in models for path in self.checkpoints.glob(f"{name}-*"))
            for path in (*finished, self.progress, *self._of_study("*/*"), *of_models):
                path.unlink(missing_ok=True)

    # What a method needs to know before it is trained. A broken file counts as none: what it held
    # can be computed again, to the same bits.

    def _held_out(self, label_noise: float, trial: int, part: str = "") -> Path:
        return self.path / "held-out" / f"{self.fingerprint}-{label_noise!r}-{trial}{part}.npz"

    def read_held_out(self, label_noise: float, trial: int, part: str = "") -> np.ndarray | None:
        """Read the held-out losses of one trial, or of a `part` of its samples; None without."""
        try:
            with np.load(io.BytesIO(self._held_out(label_noise, trial, part).read_bytes())) as file:
                losses: np.ndarray = file["losses"]
                return losses
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def save_held_out(
        self, label_noise: float, trial: int, losses: np.ndarray, part: str = ""
    ) -> None:
        """Store the held-out losses of one trial; those of the whole replace those of its parts."""
        content = io.BytesIO()
        np.savez(content, losses=losses)
        write(self._held_out(label_noise, trial, part), content.getvalue())
        if not part:
            for path in self._of_study(f"held-out/{label_noise!r}-{trial}-*.npz"):
                path.unlink(missing_ok=True)

    def _suggested(self, label_noise: float, trial: int) -> Path:
        return self.path / "suggested" / f"{self.fingerprint}-{label_noise!r}-{trial}.json"

    def read_suggestion(self, label_noise: float, trial: int) -> dict[str, Any] | None:
        """Read the suggested θ of one trial; None without."""
        try:
            return dict(json.loads(self._suggested(label_noise, trial).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def save_suggestion(self, label_noise: float, trial: int, facts: dict[str, Any]) -> None:
        """Store the suggested θ of one trial."""
        content = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write(self._suggested(label_noise, trial), content)
