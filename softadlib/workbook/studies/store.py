"""What is stored of one study: a dataset × method of a profile.

outputs/<profile>/<dataset>/<method>.parquet       its rows and losses, with their provenance
                            <method>-held-out.npz  what AdaFlood needs of training samples
                            <method>.ipynb         the notebook that trained it
                            parts/<method>/        finished runs of a study under way

The table is written last, then the parts that it replaces are deleted, so a kill at any moment loses
nothing.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout

from softadlib._files import os_error_as_user_error
from softadlib._validation import UserError
from softadlib.workbook.studies.parquet import (
    Provenance,
    Session,
    merge,
    merge_losses,
    outputs,
    read_arrays,
    read_keys_of_losses,
    read_losses_of,
    read_provenance,
    read_rows,
    write_arrays,
    write_study,
)
from softadlib.workbook.studies.schema import RUN_KEY

ABANDONED = 3600.0
"""Temporary files older than this many seconds were left by a killed process."""


@dataclass(frozen=True)
class StudyStore:
    """The files of one study."""

    profile: str
    dataset: str
    method: str

    @property
    def folder(self) -> Path:
        """The folder of the dataset, which other methods share."""
        return outputs(self.profile, self.dataset)

    @property
    def file(self) -> Path:
        """The table of a finished study."""
        return self.folder / f"{self.method}.parquet"

    @property
    def notebook(self) -> Path:
        """The executed notebook."""
        return self.folder / f"{self.method}.ipynb"

    @property
    def parts(self) -> Path:
        """The folder of what a study under way has finished."""
        return outputs(self.profile, self.dataset, "parts", self.method)

    def finished_parts(self) -> list[Path]:
        """Return the parts with finished runs, without saved states of trainings (.pt)."""
        return [path for path in sorted(self.parts.glob("*")) if path.suffix != ".pt"]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the study for writing. Raises UserError where another process does."""
        with os_error_as_user_error(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / f".{self.method}.lock")
            try:
                lock.acquire(blocking=False)
            except Timeout:
                raise UserError(
                    f"{self.profile}: {self.dataset} × {self.method} is under way in another process; "
                    "wait for it or stop it, then run the same command again"
                ) from None
        try:
            yield
        finally:
            lock.release()

    # What is stored

    def provenance(self) -> Provenance | None:
        """Return where the rows of the finished study come from; None where it is not finished."""
        return read_provenance(self.file) if self.file.exists() else None

    def _tables(self, read: Callable[[Path], pd.DataFrame]) -> list[pd.DataFrame]:
        """Read all parts and the file of the finished study, which comes last.

        Parts of replays come first: the last epoch of a run stays as its first training had it. A
        damaged part is ignored: its runs are trained again.
        """
        tables = []
        for path in reversed(sorted(self.parts.glob("*.parquet"))):
            with contextlib.suppress(UserError):
                tables.append(read(path))
        if self.file.exists():
            tables.append(read(self.file))
        return tables

    def rows(self) -> pd.DataFrame:
        """Return every row that is stored: of the finished study, and of one under way."""
        return merge(self._tables(read_rows))

    def losses(self) -> pd.DataFrame:
        """Return the losses of single samples that are stored."""
        return merge_losses(self._tables(read_losses_of))

    def keys_of_losses(self) -> pd.DataFrame:
        """Return the runs and epochs of which losses of single samples are stored."""
        tables = self._tables(read_keys_of_losses)
        empty = pd.DataFrame(columns=[*RUN_KEY, "epoch"])
        return pd.concat(tables, ignore_index=True) if tables else empty

    def provenances_of_parts(self) -> list[Provenance]:
        """Return where the rows of each part of a study under way come from."""
        found = []
        for path in sorted(self.parts.glob("*.parquet")):
            with contextlib.suppress(UserError):  # a damaged part
                found.append(read_provenance(path))
        return found

    def sessions(self) -> list[Session]:
        """Return the sessions so far in order; of one that was killed, its last part's state."""
        finished = self.provenance()
        sessions = finished.sessions if finished else []
        known = {session.id for session in sessions}
        under_way: dict[str, Session] = {}
        for provenance in self.provenances_of_parts():
            for session in provenance.sessions:
                last = under_way.setdefault(session.id, session)
                if last.runs < session.runs:
                    under_way[session.id] = session
        more = [session for session in under_way.values() if session.id not in known]
        return sorted([*sessions, *more], key=lambda session: session.finished)

    # Writing

    def save_part(
        self,
        rows: pd.DataFrame,
        losses: pd.DataFrame,
        provenance: Provenance,
        *,
        replay: bool = False,
    ) -> None:
        """Store finished runs. The same runs and epochs always go to the same file."""
        keys = rows[[*RUN_KEY, "epoch"]].to_numpy(dtype=float)
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:16]
        kind = "replay" if replay else "first"
        write_study(self.parts / f"{kind}-{name}.parquet", rows, losses, provenance)

    def finish(
        self,
        rows: pd.DataFrame,
        losses: pd.DataFrame,
        provenance: Provenance,
        parts: Sequence[Path] | None = None,
    ) -> None:
        """Write the study's files, then delete the parts that they replace.

        `parts`: as `finished_parts` gave them before rows and losses were read; all of now by default.
        """
        replaced = self.finished_parts() if parts is None else parts
        if any(self.parts.glob("held-out-*")):
            write_arrays(self.held_out_file, self.held_out())
        write_study(self.file, rows, losses, provenance)
        self._delete(replaced)

    def clear(self) -> None:
        """Delete everything that is stored of this study."""
        self._delete([self.file, self.held_out_file, self.notebook, *self.parts.glob("*")])

    def _delete(self, paths: Iterable[Path]) -> None:
        with os_error_as_user_error(self.folder):
            for path in paths:
                path.unlink(missing_ok=True)
        for folder in (self.parts, self.parts.parent):
            with contextlib.suppress(OSError):  # one that is not empty stays
                folder.rmdir()

    def delete_temporary_files(self) -> None:
        """Delete files, `.NAME.PID`, that killed processes left half-written an hour ago or earlier."""
        left = [*self.folder.glob(f".{self.method}*"), *self.parts.glob(".*")]
        for path in left:
            with contextlib.suppress(OSError):
                if path.suffix[1:].isdigit() and time.time() - path.stat().st_mtime > ABANDONED:
                    path.unlink()

    # Losses of training samples under models that were not trained on them, for AdaFlood. They stay
    # beside the finished study: more trials or values of the grid need them again.

    @property
    def held_out_file(self) -> Path:
        """Held-out losses of all trials of the finished study."""
        return self.folder / f"{self.method}-held-out.npz"

    def held_out(self) -> dict[str, np.ndarray]:
        """Return the held-out losses (n,) that are stored, by `held_out_name`."""
        files = [self.held_out_file, *sorted(self.parts.glob("held-out-*.npz"))]
        return {name: losses for file in files for name, losses in read_arrays(file).items()}

    def save_held_out(self, label_noise: float, trial: int, losses: np.ndarray) -> None:
        """Store the held-out losses of a trial; they replace those of its folds."""
        path = self.parts / f"held-out-{label_noise!r}-{trial}.npz"
        write_arrays(path, {held_out_name(label_noise, trial): losses})
        self._delete(self.parts.glob(f"fold-{label_noise!r}-{trial}-*"))

    def _fold(self, label_noise: float, trial: int, fold: str) -> Path:
        return self.parts / f"fold-{label_noise!r}-{trial}-{fold}.npz"

    def read_fold(self, label_noise: float, trial: int, fold: str) -> np.ndarray | None:
        """Read the held-out losses of one fold of a trial under way; None without."""
        return read_arrays(self._fold(label_noise, trial, fold)).get("losses")

    def save_fold(self, label_noise: float, trial: int, fold: str, losses: np.ndarray) -> None:
        """Store the held-out losses of one fold."""
        write_arrays(self._fold(label_noise, trial, fold), {"losses": losses})


def held_out_name(label_noise: float, trial: int) -> str:
    """Return the name of a trial's held-out losses."""
    return f"{label_noise!r} {trial}"
