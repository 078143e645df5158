"""What is stored of one study: a dataset × method of a profile.

outputs/<profile>/<dataset>/<method>.parquet  its rows, with their provenance
                            <method>.ipynb    the notebook that trained it
                            parts/<method>/   finished runs of a study under way

The table is written last, then the chunks that it replaces are deleted, so a kill at any moment loses
nothing.
"""

import contextlib
import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from softadlib._files import os_error_as_user_error
from softadlib._validation import UserError
from softadlib.workbook.studies.parquet import (
    merge,
    outputs,
    read_provenance,
    read_rows,
    write_study,
)
from softadlib.workbook.studies.provenance import Provenance, Session
from softadlib.workbook.studies.schema import LOSS_COLUMNS, RUN_KEY

FIRST = "first"
REPLAY = "replay"
CHUNKS = (REPLAY, FIRST)
"""Kinds of chunks, finished runs of a study under way: where both have a row, the later kind's counts."""
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
    def chunks_folder(self) -> Path:
        """The folder of what a study under way has finished."""
        return outputs(self.profile, self.dataset, "parts", self.method)

    def finished_chunks(self) -> list[Path]:
        """Return the chunks of finished runs, without saved states of trainings (.pt)."""
        return [path for path in sorted(self.chunks_folder.glob("*")) if path.suffix != ".pt"]

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

    def rows(self, columns: Sequence[str] = LOSS_COLUMNS) -> pd.DataFrame:
        """Return every row that is stored: of the finished study, and of one under way.

        Args:
            columns: those that are read beside `schema.ALL_COLUMNS`.

        A damaged chunk is ignored: its runs are trained again.
        """
        frames = []
        for path in self.chunks():
            with contextlib.suppress(UserError):
                frames.append(read_rows(path, columns))
        if self.file.exists():
            frames.append(read_rows(self.file, columns))
        return merge(frames)

    def chunks(self) -> list[Path]:
        """Return the files of finished runs of a study under way, those that count least first.

        The last epoch of a run stays as its first training had it, so its replay comes before it. What is
        in the file of the finished study counts most.
        """
        return [
            path for kind in CHUNKS for path in sorted(self.chunks_folder.glob(f"{kind}-*.parquet"))
        ]

    def provenances_of_chunks(self) -> list[Provenance]:
        """Return where the rows of each chunk of a study under way come from."""
        found = []
        for path in self.chunks():
            with contextlib.suppress(UserError):  # a damaged chunk
                found.append(read_provenance(path))
        return found

    def sessions(self) -> list[Session]:
        """Return the sessions so far in order; of one that was killed, its last chunk's state."""
        finished = self.provenance()
        sessions = finished.sessions if finished else []
        known = {session.id for session in sessions}
        under_way: dict[str, Session] = {}
        for provenance in self.provenances_of_chunks():
            for session in provenance.sessions:
                last = under_way.setdefault(session.id, session)
                if last.runs < session.runs:
                    under_way[session.id] = session
        more = [session for session in under_way.values() if session.id not in known]
        return sorted([*sessions, *more], key=lambda session: session.finished)

    # Writing

    def save_chunk(
        self,
        rows: pd.DataFrame,
        provenance: Provenance,
        *,
        replay: bool = False,
    ) -> None:
        """Store finished runs. The same runs and epochs always go to the same file."""
        keys = rows[[*RUN_KEY, "epoch"]].to_numpy(dtype=float)
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:16]
        kind = REPLAY if replay else FIRST
        write_study(self.chunks_folder / f"{kind}-{name}.parquet", rows, provenance)

    def finish(
        self,
        rows: pd.DataFrame,
        provenance: Provenance,
        chunks: Sequence[Path] | None = None,
    ) -> None:
        """Write the study's file, then delete the chunks that it replaces.

        `chunks`: as `finished_chunks` gave them before the rows were read; all of now by default.
        """
        replaced = self.finished_chunks() if chunks is None else chunks
        write_study(self.file, rows, provenance)
        self._delete(replaced)

    def clear(self) -> None:
        """Delete everything that is stored of this study."""
        self._delete([self.file, self.notebook, *self.chunks_folder.glob("*")])

    def _delete(self, paths: Iterable[Path]) -> None:
        with os_error_as_user_error(self.folder):
            for path in paths:
                path.unlink(missing_ok=True)
        for folder in (self.chunks_folder, self.chunks_folder.parent):
            with contextlib.suppress(OSError):  # one that is not empty stays
                folder.rmdir()

    def delete_temporary_files(self) -> None:
        """Delete files, `.NAME.NUMBER`, that killed processes left half-written an hour ago or earlier."""
        left = [*self.folder.glob(f".{self.method}*"), *self.chunks_folder.glob(".*")]
        for path in left:
            with contextlib.suppress(OSError):
                if path.suffix[1:].isdigit() and time.time() - path.stat().st_mtime > ABANDONED:
                    path.unlink()
