"""The files of results, one study a file, and how they are read.

A study is one dataset × method of a profile under one protocol:

outputs/<profile>/<dataset>/<method>/<fingerprint>.parquet          its rows, `schema.COLUMNS`
                                     <fingerprint>-losses.parquet   losses and calibration of selected runs
                                     <fingerprint>-held-out.npz     what AdaFlood needs of training samples
                                     <fingerprint>.ipynb            the notebook that trained it
                                     parts/<fingerprint>-*          finished runs of a study under way

The metadata of the first file say where the rows come from: `Facts`. Files appear whole or not at
all. That file is written last, then the parts that it replaces are deleted, so a kill at any moment
loses nothing. Another protocol has another fingerprint, and so another file: nothing is moved.

A profile of many studies may be packed into two files, which are read in the same way:

outputs/<profile>/studies.parquet          rows, a row group a study; the metadata list their `Facts`
                  studies-losses.parquet   losses, in the same way
"""

import contextlib
import functools
import hashlib
import io
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError

from softadlib._validation import MissingData, UserError
from softadlib._workspace import home, os_error_as_user_error, write
from softadlib.data.splits import PARTS
from softadlib.methods import METHODS
from softadlib.results import selection
from softadlib.results.schema import (
    ALL_COLUMNS,
    DTYPES,
    LINKED,
    LOSS_COLUMNS,
    LOSS_DTYPES,
    LOSS_ROW,
    ROW_ORDER,
    RUN_KEY,
    run_keys,
)

FACTS = b"softad"
"""Key of a parquet file's metadata under which `Facts` stand as JSON."""
PACKED = ("studies.parquet", "studies-losses.parquet")
"""Files of a packed profile: rows and losses."""
TABLE = (ALL_COLUMNS, DTYPES)
LOSS_TABLE = (LOSS_COLUMNS, LOSS_DTYPES)
"""Columns and types of a file of rows, and of a file of losses."""
ABANDONED = 3600.0
"""Seconds after which nobody is writing a file any more that has a temporary name."""


class Session(BaseModel):
    """One command's part in a study: when, on what, with which versions, and how much it trained."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str
    finished: str
    """UTC, ISO format."""
    seconds: float
    device: str
    torch: str
    runs_trained: int = 0
    runs_replayed: int = 0
    commit: str | None = None

    @property
    def runs(self) -> int:
        """How many trainings, replays included."""
        return self.runs_trained + self.runs_replayed


class Facts(BaseModel):
    """Where the rows of a file come from."""

    model_config = ConfigDict(frozen=True)

    profile: str
    dataset: str
    method: str
    fingerprint: str
    protocol: dict[str, Any]
    """All fields, as `Protocol.to_dict` gives them."""
    seeds: list[int]
    """One a trial."""
    sessions: list[Session]
    asked: str = ""
    """When this protocol was last asked for, UTC, ISO format; empty where `sessions` alone say so."""

    @property
    def last_asked(self) -> str:
        """When they were last asked for."""
        return max([self.asked, *(session.finished for session in self.sessions)])

    @property
    def seconds(self) -> float:
        """Wall-clock time of all sessions together."""
        return round(sum(session.seconds for session in self.sessions), 1)


def outputs(*names: str) -> Path:
    """Return a path under `outputs/`. Raises UserError where a name or a link leads out of it."""
    root = home() / "outputs"
    path = root.joinpath(*names)
    for name in names:
        if not name or Path(name).name != name or name[0] == "." or set(name) & set("\\\0"):
            raise UserError(f"{name!r} cannot be a folder in {root}; use a plain name")
    if not path.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{path} leads out of {root}, to {path.resolve()}; remove that link")
    return path


# Tables in memory


def merge(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return one table in the order of `ROW_ORDER`, each run and epoch once; the last frame wins."""
    return _merge(frames, TABLE, ROW_ORDER)


def merge_losses(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return one table of losses, each run, epoch and part once; the last frame wins."""
    return _merge(frames, LOSS_TABLE, LOSS_ROW)


def _merge(
    frames: Iterable[pd.DataFrame], table: tuple[list[str], dict[str, str]], order: list[str]
) -> pd.DataFrame:
    columns, dtypes = table
    frames = [frame[columns] for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame({c: pd.Series(dtype=dtypes.get(c, "object")) for c in columns})
    rows = pd.concat(frames, ignore_index=True).astype(dtypes).drop_duplicates(order, keep="last")
    rank = {part: i for i, part in enumerate(PARTS)}
    return rows.sort_values(
        order, key=lambda c: c.map(rank) if c.name == "part" else c, ignore_index=True
    )


# Files


def _parquet(groups: Sequence[pd.DataFrame], facts: object) -> bytes:
    """Return a parquet file, a row group for each of `groups`, with `facts` in its metadata.

    Its pages carry checksums.
    """
    tables = [pa.Table.from_pandas(rows, preserve_index=False) for rows in groups]
    schema = pa.unify_schemas([table.schema for table in tables])
    metadata = {**(schema.metadata or {}), FACTS: json.dumps(facts).encode()}
    schema, sink = schema.with_metadata(metadata), pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table.cast(schema), row_group_size=max(1, len(table)))
    return bytes(sink.getvalue().to_pybytes())


def _broken(path: Path, what: object) -> UserError:
    """Return the error to raise for a file that cannot be read."""
    if path.name in PACKED:
        return UserError(f"{path} is broken ({what}); restore it, for example: git checkout {path}")
    profile, dataset, method = path.parts[-4:-1]
    command = f"softad train {profile} --dataset {dataset} --method {method}"
    return UserError(f"{path} is broken ({what}); delete it, then train what is missing: {command}")


def _read_file(
    path: Path, columns: Sequence[str], dtypes: Mapping[str, str], group: int | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return rows, or one group of them, and metadata of a file.

    Raises UserError where it is damaged or lacks a column.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            groups = range(file.num_row_groups) if group is None else [group]
            table = file.read_row_groups(groups, use_threads=False)
        facts = json.loads((table.schema.metadata or {}).get(FACTS, b"{}"))
        stored = [c for c in columns if c not in LINKED or c in table.column_names]
        rows = table.select(stored).to_pandas(ignore_metadata=True).reindex(columns=list(columns))
        others = {c: t for c, t in dtypes.items() if rows[c].dtype != t}
        return rows.astype(others), facts
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise _broken(path, " ".join(str(error).split())[:80] or type(error).__name__) from None


def _metadata(path: Path) -> list[dict[str, Any]]:
    """Return what a file's metadata say of each study in it. Raises UserError for a damaged file."""
    try:
        state = path.stat()
    except OSError as error:
        raise _broken(path, error.strerror) from None
    return _read_metadata(path, (state.st_mtime_ns, state.st_size))


@functools.lru_cache(maxsize=4)
def _read_metadata(path: Path, changed: tuple[int, int]) -> list[dict[str, Any]]:
    """Read metadata once while the file stays the same; a packed file is asked once for every study."""
    try:
        with pq.ParquetFile(path) as file:
            facts = json.loads((file.schema_arrow.metadata or {})[FACTS])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise _broken(path, " ".join(str(error).split())[:80]) from None
    return facts if isinstance(facts, list) else [facts]


def read_facts(path: Path) -> list[Facts]:
    """Read where the rows of a file come from, study by study. Raises UserError for a damaged file."""
    return [_facts(path, facts) for facts in _metadata(path)]


def _packed_metadata(profile: str, losses: bool = False) -> list[dict[str, Any]]:
    """Return the metadata of every packed study; an empty list where the profile is not packed."""
    path = outputs(profile, PACKED[losses])
    return _metadata(path) if path.exists() else []


def _facts(path: Path, facts: Mapping[str, Any]) -> Facts:
    """Check metadata of a file. Raises UserError where a field is missing or wrong."""
    try:
        return Facts.model_validate(facts)
    except ValidationError as error:
        raise _broken(path, error.errors()[0]["msg"]) from None


@dataclass(frozen=True)
class StudyStore:
    """The files of one study."""

    profile: str
    dataset: str
    method: str
    fingerprint: str

    @property
    def folder(self) -> Path:
        """The folder of the dataset × method."""
        return outputs(self.profile, self.dataset, self.method)

    @property
    def file(self) -> Path:
        """The table of a finished study."""
        return self.folder / f"{self.fingerprint}.parquet"

    @property
    def losses_file(self) -> Path:
        """Losses of single samples of the selected runs."""
        return self.folder / f"{self.fingerprint}-losses.parquet"

    @property
    def notebook(self) -> Path:
        """The executed notebook."""
        return self.folder / f"{self.fingerprint}.ipynb"

    @property
    def parts(self) -> Path:
        """The folder of what a study under way has finished."""
        return self.folder / "parts"

    def _parts(self, pattern: str) -> list[Path]:
        return sorted(self.parts.glob(f"{self.fingerprint}-{pattern}"))

    def finished_parts(self) -> list[Path]:
        """Return the parts with finished runs, without saved states of trainings (.pt)."""
        return [path for path in self._parts("*") if path.suffix != ".pt"]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the study for writing. Raises UserError where another process does."""
        with os_error_as_user_error(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / f".{self.fingerprint}.lock")
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

    def _place(self, losses: bool = False) -> tuple[Path, int | None] | None:
        """Return the file of the finished study and its group of rows there; None for all groups."""
        own = self.losses_file if losses else self.file
        if self.file.exists():
            return (own, None) if own.exists() else None
        key = {"dataset": self.dataset, "method": self.method, "fingerprint": self.fingerprint}
        for group, facts in enumerate(_packed_metadata(self.profile, losses)):
            if key.items() <= facts.items():
                return outputs(self.profile, PACKED[losses]), group
        return None

    def _finished(self, losses: bool = False) -> list[pd.DataFrame]:
        """Return a list of the finished study's rows or losses; an empty one where there are none."""
        place = self._place(losses)
        table = LOSS_TABLE if losses else TABLE
        return [_read_file(place[0], *table, group=place[1])[0]] if place else []

    def exists(self) -> bool:
        """Tell whether the study is finished. Its own file is not read, and may be damaged."""
        return self._place() is not None

    def of_other_protocols(self) -> list["StudyStore"]:
        """Return the finished studies of the same dataset × method. Files of their own are not read."""
        pair = {"dataset": self.dataset, "method": self.method}
        packed = (of for of in _packed_metadata(self.profile) if pair.items() <= of.items())
        names = {of["fingerprint"] for of in packed}
        names |= {path.stem for path in self.folder.glob("*.parquet")}
        names = {name for name in names if not name.endswith("-losses")} - {self.fingerprint}
        return [replace(self, fingerprint=name) for name in sorted(names)]

    def facts(self) -> Facts | None:
        """Return the facts of the finished study; None where there is none."""
        place = self._place()
        return _facts(place[0], _metadata(place[0])[place[1] or 0]) if place else None

    def _read_parts(self, losses: bool) -> Iterator[tuple[pd.DataFrame, dict[str, Any]]]:
        """Yield the parts of a study under way.

        A part that is damaged, or whose losses are, counts as none: its runs are trained again.
        """
        for path in self._parts("*.parquet"):
            of_losses = path.with_stem(f"{path.stem}-losses")
            if path.stem.endswith("-losses") == losses:
                with contextlib.suppress(UserError):
                    if of_losses.exists():
                        _read_file(of_losses, LOSS_COLUMNS, LOSS_DTYPES)
                    yield _read_file(path, *(LOSS_TABLE if losses else TABLE))

    def rows(self) -> pd.DataFrame:
        """Return every row that is stored: of the finished study, and of one under way."""
        return merge([*self._finished(), *(rows for rows, _ in self._read_parts(losses=False))])

    def losses(self) -> pd.DataFrame:
        """Return the losses of single samples that are stored."""
        parts = (rows for rows, _ in self._read_parts(losses=True))
        return merge_losses([*self._finished(losses=True), *parts])

    def finished_rows(self) -> pd.DataFrame:
        """Return the rows of the finished study that its protocol asks for."""
        return _wanted(merge(self._finished()), self.facts())

    def finished_losses(self) -> pd.DataFrame:
        """Return the losses of the finished study that its protocol asks for."""
        return _wanted(merge_losses(self._finished(losses=True)), self.facts())

    def sessions(self) -> list[Session]:
        """Return the sessions so far in order; of one that was killed, its last part's state."""
        facts = self.facts()
        found = {session.id: session for session in (facts.sessions if facts else ())}
        for _, metadata in self._read_parts(losses=False):
            with contextlib.suppress(KeyError, ValidationError):  # a damaged part
                session = Session.model_validate(metadata["session"])
                known = found.setdefault(session.id, session)
                if known.runs < session.runs:
                    found[session.id] = session
        return sorted(found.values(), key=lambda session: session.finished)

    def save_part(self, rows: pd.DataFrame, losses: pd.DataFrame, session: Session) -> None:
        """Store finished runs. The same runs and epochs always go to the same file."""
        keys = rows[[*RUN_KEY, "epoch"]].to_numpy(dtype=float)
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:16]
        facts = {"session": session.model_dump()}
        path = self.parts / f"{self.fingerprint}-{name}.parquet"
        if len(losses):
            write(path.with_stem(f"{path.stem}-losses"), _parquet([losses], facts))
        write(path, _parquet([rows], facts))

    def finish(
        self,
        rows: pd.DataFrame,
        losses: pd.DataFrame,
        facts: Facts,
        parts: Sequence[Path] | None = None,
    ) -> None:
        """Write the study's files, then delete the parts that they replace.

        `parts`: as `finished_parts` gave them before rows and losses were read; all of now by default.
        """
        replaced = self.finished_parts() if parts is None else parts
        if self._parts("held-out-*"):
            write(self.held_out_file, _pack_arrays(self.held_out()))
        self._write(rows, losses, facts)
        self._delete(replaced)

    def _write(self, rows: pd.DataFrame, losses: pd.DataFrame, facts: Facts) -> None:
        if len(losses):
            write(self.losses_file, _parquet([losses], {"fingerprint": self.fingerprint}))
        write(self.file, _parquet([rows], facts.model_dump()))

    def clear(self) -> None:
        """Delete everything that is stored of this study; the profile is unpacked for that."""
        unpack(self.profile)
        files = [self.file, self.losses_file, self.held_out_file, self.notebook]
        self._delete([*files, *self._parts("*")])

    def _delete(self, paths: Iterable[Path]) -> None:
        with os_error_as_user_error(self.folder):
            for path in paths:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it stays where other studies' parts lie
            self.parts.rmdir()

    def delete_temporary_files(self) -> None:
        """Delete files, `.NAME.PID`, that killed processes left half-written an hour ago or earlier."""
        for path in self.folder.rglob(f".{self.fingerprint}*"):
            with contextlib.suppress(OSError):
                if path.suffix[1:].isdigit() and time.time() - path.stat().st_mtime > ABANDONED:
                    path.unlink()

    # Losses of training samples under models that were not trained on them, for AdaFlood. They stay
    # beside the finished study: more trials or values of the grid need them again.

    @property
    def held_out_file(self) -> Path:
        """Held-out losses of all trials of the finished study."""
        return self.folder / f"{self.fingerprint}-held-out.npz"

    def held_out(self) -> dict[str, np.ndarray]:
        """Return the held-out losses (n,) that are stored, by `held_out_name`."""
        files = [self.held_out_file, *self._parts("held-out-*.npz")]
        return {name: losses for file in files for name, losses in _unpack_arrays(file).items()}

    def save_held_out(self, label_noise: float, trial: int, losses: np.ndarray) -> None:
        """Store the held-out losses of a trial; they replace those of its folds."""
        path = self.parts / f"{self.fingerprint}-held-out-{label_noise!r}-{trial}.npz"
        write(path, _pack_arrays({held_out_name(label_noise, trial): losses}))
        self._delete(self._parts(f"fold-{label_noise!r}-{trial}-*"))

    def _fold(self, label_noise: float, trial: int, fold: str) -> Path:
        return self.parts / f"{self.fingerprint}-fold-{label_noise!r}-{trial}-{fold}.npz"

    def read_fold(self, label_noise: float, trial: int, fold: str) -> np.ndarray | None:
        """Read the held-out losses of one fold of a trial under way; None without."""
        return _unpack_arrays(self._fold(label_noise, trial, fold)).get("losses")

    def save_fold(self, label_noise: float, trial: int, fold: str, losses: np.ndarray) -> None:
        """Store the held-out losses of one fold."""
        write(self._fold(label_noise, trial, fold), _pack_arrays({"losses": losses}))


def held_out_name(label_noise: float, trial: int) -> str:
    """Return the name of a trial's held-out losses."""
    return f"{label_noise!r} {trial}"


def _pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return an npz file, which carries checksums."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def _unpack_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an npz file. One that is damaged counts as none: it is computed again, to the same bits."""
    try:
        with np.load(io.BytesIO(path.read_bytes())) as file:
            return dict(file)
    except Exception:  # numpy and zipfile raise many types
        return {}


# Finished results


def _wanted(rows: pd.DataFrame, facts: Facts | None) -> pd.DataFrame:
    """Return the rows of the runs that the protocol asks for; a file may hold more of earlier grids."""
    if facts is None:
        return rows
    protocol = facts.protocol
    keep = rows["trial"].lt(protocol["trials"]) & rows["label_noise"].isin(protocol["label_noise"])
    if facts.method in protocol["grids"]:
        keep &= rows["knob"].isin(protocol["grids"][facts.method])
    return rows if keep.all() else rows[keep]


def _study(profile: str, facts: Facts) -> StudyStore:
    return StudyStore(profile, facts.dataset, facts.method, facts.fingerprint)


def stored_facts(profile: str) -> list[Facts]:
    """Return the facts of every finished study under any protocol, packed ones first.

    A file of its own stands in place of a packed study, as it does where rows are read.
    """
    packed = outputs(profile, PACKED[0])
    studies = [
        facts
        for facts in (read_facts(packed) if packed.exists() else ())
        if facts.method in METHODS and not _study(profile, facts).file.exists()
    ]
    for path in sorted(outputs(profile).glob("*/*/*.parquet")):
        if path.stem.endswith("-losses") or path.parent.name not in METHODS:
            continue
        (facts,) = read_facts(path)
        if (facts.dataset, facts.method) != path.parts[-3:-1]:
            raise _broken(path, f"it has rows of {facts.dataset} × {facts.method}")
        studies.append(facts)
    return studies


def finished(profile: str) -> dict[StudyStore, Facts]:
    """Return every finished dataset × method with its facts, in the registry's order.

    Where several protocols of one are stored, it is the one that was asked for last. Raises
    UserError where the profile has no folder under `outputs/`.
    """
    folder = outputs(profile)
    if not folder.is_dir():
        known = ", ".join(sorted(p.name for p in outputs().glob("*/") if p.name[0] != "."))
        raise MissingData(
            f"profile {profile!r} has no results in {folder.parent}; softad run {profile} makes them; "
            f"there are: {known or 'none'}"
        )
    latest: dict[tuple[str, str], Facts] = {}
    for facts in stored_facts(profile):
        pair = facts.dataset, facts.method
        if pair not in latest or latest[pair].last_asked < facts.last_asked:
            latest[pair] = facts
    order = {method: i for i, method in enumerate(METHODS)}
    chosen = sorted(latest, key=lambda pair: (pair[0], order[pair[1]]))
    return {StudyStore(profile, *pair, latest[pair].fingerprint): latest[pair] for pair in chosen}


def pack(profile: str) -> None:
    """Put all finished studies of a profile into two files; their own files are deleted then."""
    studies = {_study(profile, facts): facts for facts in stored_facts(profile)}
    if not studies:
        raise MissingData(
            f"nothing is finished in profile {profile!r}, so there is nothing to pack"
        )
    about = [facts.model_dump() for facts in studies.values()]
    rows = [merge(study._finished()) for study in studies]
    losses = [merge_losses(study._finished(losses=True)) for study in studies]
    write(outputs(profile, PACKED[1]), _parquet(losses, about))
    write(outputs(profile, PACKED[0]), _parquet(rows, about))
    for study in studies:
        study._delete([study.file, study.losses_file])


def unpack(profile: str) -> None:
    """Give every packed study of a profile files of its own again."""
    files = [outputs(profile, name) for name in PACKED]
    for facts in read_facts(files[0]) if files[0].exists() else ():
        study = _study(profile, facts)
        if not study.file.exists():
            rows, losses = study._finished(), study._finished(losses=True)
            study._write(merge(rows), merge_losses(losses), facts)
    with os_error_as_user_error(outputs(profile)):
        for path in files:
            path.unlink(missing_ok=True)


def read(
    profile: str,
    dataset: str | None = None,
    label_noise: float | None = None,
    *,
    final: bool = False,
) -> pd.DataFrame:
    """Return the rows of all finished results of a profile, one a run and epoch.

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
    for study in finished(profile):
        if dataset in (None, study.dataset):
            rows = study.finished_rows()
            if label_noise is not None:
                rows = rows[rows["label_noise"] == label_noise]
            frames.append(selection.final(rows) if final and len(rows) else rows)
    return merge(frames)


def read_losses(
    profile: str, dataset: str | None = None, label_noise: float | None = None
) -> pd.DataFrame:
    """Return losses of single samples and calibration of the selected runs: a row a run, epoch and part.

    Arguments and errors are those of `read`. `quantiles` are at the levels `schema.LEVELS`; columns of
    calibration hold numbers at the last epoch alone.
    """
    frames = []
    for study, facts in finished(profile).items():
        if dataset in (None, facts.dataset):
            losses = study.finished_losses()
            if facts.protocol["curves"] == "selected" and not facts.protocol.get("best_epoch"):
                # A file may also hold runs that were selected among other values, or by other ties.
                chosen = selection.select(study.finished_rows(), facts.protocol["ties"])
                keys = set(run_keys(chosen))
                losses = losses[[key in keys for key in run_keys(losses)]]
            frames.append(losses)
    rows = merge_losses(frames)
    if label_noise is not None:
        rows = rows[rows["label_noise"] == label_noise].reset_index(drop=True)
    return rows


def provenances(profile: str) -> pd.DataFrame:
    """Return one line a result: what was trained, how much of it, on what, when and how long.

    `runs_without_session` counts runs whose time is unknown: their command was killed by a version
    that stored no session of such a command.
    """
    lines = []
    for study, facts in finished(profile).items():
        protocol, ends = facts.protocol, selection.final(study.finished_rows())
        grid = protocol["grids"].get(facts.method, ())
        losses = ends[["loss_train", "loss_val", "loss_test"]]
        trained = sum(session.runs_trained for session in facts.sessions)
        span = dict.fromkeys((min(grid), max(grid)) if grid else ())
        lines.append(
            {
                "dataset": facts.dataset,
                "method": facts.method,
                "runs": len(ends),
                "diverged": int((~np.isfinite(losses).all(axis=1)).sum()),
                "trials": protocol["trials"],
                "label_noise": ", ".join(f"{noise:g}" for noise in protocol["label_noise"]),
                "grid": len(grid) or 1,
                "span": " to ".join(f"{value:g}" for value in span),
                "epochs": protocol["epochs"],
                "samples": " + ".join(str(protocol[f"n_{p}"] or "all") for p in PARTS),
                "training": training_words(protocol, facts.method),
                "dtype": protocol["dtype"],
                "device": ", ".join(dict.fromkeys(s.device for s in facts.sessions)),
                "torch": ", ".join(dict.fromkeys(s.torch for s in facts.sessions)),
                "seconds": facts.seconds,
                "runs_without_session": max(len(ends) - trained, 0),
                "finished": max((s.finished for s in facts.sessions), default="")[:16],
            }
        )
    return pd.DataFrame(lines)


def training_words(protocol: Mapping[str, Any], method: str) -> str:
    """Write network, optimizer and settings of a method: "model mlp4x500, optimizer adam, …"."""
    names = (
        "model",
        "optimizer",
        "lr",
        "lr_schedule",
        "momentum",
        "weight_decay",
        "batch_size",
        "precision",
    )
    words = {name: protocol[name] for name in names} | protocol["settings"].get(method, {})
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in words.items())
