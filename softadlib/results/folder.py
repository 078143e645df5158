"""A folder of `outputs/` and its one writer: whole files or none, and what was done is kept.

outputs/<profile>/<dataset>/<method>/metrics.parquet    rows, `metrics.COLUMNS`
                                     provenance.json    written last: its presence means done
                                     train.ipynb        the executed notebook
                                     parts/*.parquet    finished stacks of a sweep under way
                                     parts/*.json       sessions of its shards
                                     checkpoints/*.pt   trainings under way, `checkpoints.packed`
                                     held-out/*.npz     losses of AdaFlood's auxiliary models
                                     suggested/*.json   θ of an ordinary run, of grids that say auto
                                     progress.json      how far a sweep under way is
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from softadlib._validation import UserError
from softadlib._workspace import home, os_error_as_user_error, write
from softadlib.results import locks
from softadlib.results.drawers import Drawers
from softadlib.results.schema import COLUMNS
from softadlib.results.table import merge, pack, unpack


def profile_dir(profile: str) -> Path:
    """outputs/<profile>. Raises UserError for a name that leads elsewhere."""
    return _inside(profile)


def _inside(*names: str) -> Path:
    root = home() / "outputs"
    path = root.joinpath(*names)
    for name in names:
        if not name or Path(name).name != name or name[0] == "." or set(name) & set("\\\0"):
            raise UserError(f"{name!r} cannot be a folder in {root}; use a plain name")
    if not path.resolve().is_relative_to(root.resolve()):
        raise UserError(
            f"{path} leads out of {root}, to {path.resolve()}; remove that link, or make {root} itself one"
        )
    return path


@contextlib.contextmanager
def claim(profile: str, pairs: Iterable[tuple[str, str]], shared: bool = False) -> Iterator[None]:
    """Be the one who writes the results of these (dataset, method) pairs, until the block ends.

    Processes started inside may claim them too. `shared` is for shards, who only add parts: several
    may, but nobody alone meanwhile. Raises UserError, naming who holds one already. Whoever comes
    first to a profile removes what killed processes left half-written.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(locks.working(profile_dir(profile)))
        for dataset, method in pairs:
            path = _inside(profile, dataset, method)
            lock, what = path.with_name(f".{method}.lock"), f"{profile}: {dataset} × {method}"
            stack.enter_context(locks.held(lock, what, shared))
            if not shared:
                _settle(path)
        yield


def _next(path: Path) -> Path:
    return path.with_name(f".{path.name}.next")


def _settle(path: Path) -> None:
    """End what `ResultFolder.set_aside` began, if it was killed meanwhile."""
    if _next(path).exists():
        with os_error_as_user_error(path):
            if path.exists():
                shutil.rmtree(_next(path))
            else:
                os.replace(_next(path), path)


@dataclass(frozen=True)
class ResultFolder(Drawers):
    """The folder of one dataset × method of a profile, for one fingerprint of its protocol."""

    profile: str
    dataset: str
    method: str
    fingerprint: str

    @property
    def path(self) -> Path:
        return _inside(self.profile, self.dataset, self.method)

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.parquet"

    @property
    def provenance(self) -> Path:
        return self.path / "provenance.json"

    @property
    def notebook(self) -> Path:
        return self.path / "train.ipynb"

    @property
    def progress(self) -> Path:
        return self.path / "progress.json"

    def _parts(self) -> list[Path]:
        return sorted((self.path / "parts").glob(f"{self.fingerprint}-*.parquet"))

    def kept(self, label_noise: Sequence[float]) -> pd.DataFrame:
        """Every row that this protocol may keep: finished ones and those of a sweep cut short."""
        frames = []
        for part in self._parts():
            with contextlib.suppress(UserError):  # a broken one is trained again
                rows, fingerprint = unpack(part)
                frames += [rows] if fingerprint == self.fingerprint else []
        if self.metrics.exists():
            rows, fingerprint = unpack(self.metrics)
            if fingerprint == self.fingerprint:
                known = (
                    read_provenance(self.provenance)["protocol"] if self.provenance.exists() else {}
                )
                noise = known.get("label_noise", label_noise)
                frames.append(rows if "label_noise" in rows else rows.assign(label_noise=noise[0]))
        return merge(frames)

    def save_part(self, rows: pd.DataFrame) -> None:
        """Keep the rows of one finished stack."""
        name = hashlib.sha256(pd.util.hash_pandas_object(rows).to_numpy().tobytes()).hexdigest()[
            :16
        ]
        write(
            self.path / "parts" / f"{self.fingerprint}-{name}.parquet",
            pack(rows, self.fingerprint),
        )

    def _sessions(self) -> list[Path]:
        return sorted((self.path / "parts").glob(f"{self.fingerprint}-*.json"))

    def save_session(self, facts: dict[str, Any]) -> None:
        """Keep what a shard says of itself, for the provenance of the whole."""
        text = json.dumps(facts)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        write(self.path / "parts" / f"{self.fingerprint}-{name}.json", text + "\n")

    def sessions(self) -> list[dict[str, Any]]:
        """What earlier calls under this protocol said of themselves, shards included."""
        found: list[dict[str, Any]] = []
        if self.provenance.exists():
            facts = read_provenance(self.provenance)
            found = facts["sessions"] if facts.get("fingerprint") == self.fingerprint else []
        shards = []
        for path in self._sessions():
            with contextlib.suppress(OSError, ValueError, TypeError):  # cut short in copying
                facts = dict(json.loads(path.read_text(encoding="utf-8")))
                shards += [facts] if facts not in found else []
        return [*found, *sorted(shards, key=lambda facts: str(facts.get("finished")))]

    def stored_fingerprint(self) -> str | None:
        """The protocol that made the stored table; None where there is none."""
        return unpack(self.metrics)[1] or "unknown" if self.metrics.exists() else None

    def set_aside(self) -> Path | None:
        """Move the stored results out of the way, unharmed; returns where to.

        What this protocol keeps for its own later use stays. A kill in between loses nothing.
        """
        old = self.stored_fingerprint()
        if old is None:
            return None
        target, n = self.path.with_name(f"{self.method}.{old}"), 1
        while target.exists():
            n += 1
            target = self.path.with_name(f"{self.method}.{old}-{n}")
        following = _next(self.path)
        with os_error_as_user_error(target):
            shutil.rmtree(following, ignore_errors=True)
            following.mkdir()
            for path in self._own():
                copy = following / path.relative_to(self.path)
                copy.parent.mkdir(exist_ok=True)
                shutil.copy2(path, copy)
            os.replace(self.path, target)
            os.replace(following, self.path)
        return target

    def _own(self) -> list[Path]:
        """Files besides the results that are of this protocol."""
        return [p for p in self.path.glob(f"*/{self.fingerprint}-*") if p.is_file()]

    def clear(self) -> None:
        """Forget what was kept: the next sweep starts from nothing."""
        with os_error_as_user_error(self.path):
            for path in (
                self.provenance,
                self.metrics,
                self.notebook,
                self.progress,
                *self._own(),
            ):
                path.unlink(missing_ok=True)

    def finish(self, rows: pd.DataFrame, provenance: dict[str, Any]) -> None:
        """Write the table, then its provenance, then drop what they replace."""
        replaced = self._under_way()
        noise_varies = rows["label_noise"].nunique() > 1
        columns = [*COLUMNS[:3], "label_noise", *COLUMNS[3:]] if noise_varies else list(COLUMNS)
        write(self.metrics, pack(rows[columns], self.fingerprint))
        write(self.provenance, json.dumps(provenance, indent=1, allow_nan=False) + "\n")
        self._drop(replaced)

    def tidy(self) -> None:
        """Drop what a finished table has replaced: whoever finished it may have been killed over this."""
        self._drop(self._under_way())

    def _under_way(self) -> list[Path]:
        """Files that serve a sweep until its table is finished."""
        checkpoints = self.path.glob(f"checkpoints/{self.fingerprint}-*")
        return [*self._parts(), *self._sessions(), *checkpoints, self.progress]

    def _drop(self, files: Iterable[Path]) -> None:
        with os_error_as_user_error(self.path):
            for path in files:
                path.unlink(missing_ok=True)
        for folder in ("parts", "checkpoints"):
            with contextlib.suppress(OSError):
                (self.path / folder).rmdir()  # stays where another protocol's files still lie


def read_provenance(path: Path) -> dict[str, Any]:
    """The facts beside a table; UserError for a broken file."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts["sessions"], list) or not facts["protocol"]["label_noise"]:
            raise ValueError("sessions or label_noise missing")
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise broken(path, error) from None
    return facts


def broken(path: Path, error: Exception) -> UserError:
    """To be raised for a provenance that says too little."""
    what = f"{error} missing" if isinstance(error, KeyError) else error
    return UserError(
        f"{path} is broken ({what}); delete {path.parent} and run the same command again"
    )
