"""Files of results: a study's table with its provenance, and arrays beside it.

A study's file has a row for each run and measured epoch. Measures of single parts of the data have
the part in their name: `loss_test`, `ece_val`, `quantiles_train`. Columns of what was never measured
are left out. The metadata say where the rows come from: `Provenance`. Files appear whole or not at
all, and their pages carry checksums.
"""

import functools
import hashlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from softadlib._files import home, write
from softadlib._validation import UserError
from softadlib.trainer.evaluation import MEASURES
from softadlib.trainer.splits import PARTS
from softadlib.workbook.studies.schema import (
    ALL_COLUMNS,
    DTYPES,
    LOSS_COLUMNS,
    LOSS_DTYPES,
    LOSS_ROW,
    ROW_ORDER,
    RUN_KEY,
)

METADATA_KEY = b"softad"
"""Key of a parquet file's metadata under which a `Provenance` stands as JSON."""
CHECKSUM_KEY = b"softad-checksum"
"""Key of a checksum over that JSON and the names of the columns, which parquet does not protect."""
OF_ALL_PARTS = ("plain_temperature", "prior_temperature", "linked_best_epoch")
"""Columns of losses that are the same on every part of the data."""
IN_FILES = {"loss": "mean_loss"}
"""Columns of losses that have another name in files, where rows have a `loss_test` of their own."""


class Session(BaseModel):
    """What one command did for a study: when, on what, with which versions, and how much it trained."""

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
        """Number of trainings, replays included."""
        return self.runs_trained + self.runs_replayed


class Provenance(BaseModel):
    """Where the rows of a study come from."""

    model_config = ConfigDict(frozen=True)

    profile: str
    dataset: str
    method: str
    fingerprint: str
    protocol: dict[str, Any]
    """The fields that there were when it was trained, as `Protocol.to_dict` gives them."""
    seeds: list[int]
    """One per trial."""
    sessions: list[Session]

    @property
    def seconds(self) -> float:
        """Wall-clock time of all sessions together."""
        return round(sum(session.seconds for session in self.sessions), 1)

    @property
    def grid(self) -> list[float]:
        """Values of the method's hyperparameter; empty for a method without one."""
        return list(self.protocol["grids"].get(self.method, ()))


def outputs(*names: str) -> Path:
    """Return a path under `outputs/`. Raises UserError for a name that is no plain name of a folder."""
    root = home() / "outputs"
    for name in names:
        if not name or Path(name).name != name or name[0] == "." or set(name) & set("\\\0"):
            raise UserError(f"{name!r} cannot be a folder in {root}; use a plain name")
    return root.joinpath(*names)


# Tables in memory


def merge(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return one table in the order of `ROW_ORDER`, each run and epoch once; the last frame wins."""
    return _merge(frames, ALL_COLUMNS, DTYPES, ROW_ORDER)


def merge_losses(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return one table of losses, each run, epoch and part once; the last frame wins."""
    return _merge(frames, LOSS_COLUMNS, LOSS_DTYPES, LOSS_ROW)


def _merge(
    frames: Iterable[pd.DataFrame], columns: list[str], dtypes: dict[str, str], order: list[str]
) -> pd.DataFrame:
    frames = [frame[columns] for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame({c: pd.Series(dtype=dtypes.get(c, "object")) for c in columns})
    rows = pd.concat(frames, ignore_index=True)
    rows = with_types(rows, dtypes).drop_duplicates(order, keep="last")
    if "part" not in order:
        return rows.sort_values(order, ignore_index=True)
    rank = {part: i for i, part in enumerate(PARTS)}
    rows["rank"] = rows["part"].map(rank)
    return rows.sort_values([*order[:-1], "rank"], ignore_index=True)[columns]


def with_types(rows: pd.DataFrame, dtypes: dict[str, str]) -> pd.DataFrame:
    """Convert the columns of another type."""
    return rows.astype({c: dtype for c, dtype in dtypes.items() if rows[c].dtype != dtype})


def _file_columns(column: str) -> list[str]:
    """Return the columns of a file that hold a column of losses."""
    if column in OF_ALL_PARTS:
        return [column]
    return [f"{IN_FILES.get(column, column)}_{part}" for part in PARTS]


MEASURED_OF_LOSSES = LOSS_COLUMNS[len(LOSS_ROW) :]
"""Columns of losses that are measured: all but those that name the row."""
LOSSES_ARE_THERE = _file_columns("samples")[0]
"""A column of a file that is filled in exactly the rows that have losses."""


def with_losses(rows: pd.DataFrame, losses: pd.DataFrame) -> pd.DataFrame:
    """Return rows of runs with the columns of their losses beside them, as a file has them.

    `measured` tells the rows of runs from those that have losses alone.
    """
    key = LOSS_ROW[:-1]
    wide = rows.assign(measured=True)
    for i, part in enumerate(PARTS):
        names = {c: _file_columns(c)[i] for c in MEASURED_OF_LOSSES if c not in OF_ALL_PARTS}
        of_part = losses[losses["part"] == part].rename(columns=names)
        if i == 0:
            names |= {column: column for column in OF_ALL_PARTS}
        wide = wide.merge(of_part[[*key, *names.values()]], on=key, how="outer")
    wide["measured"] = wide["measured"].eq(True)
    columns = [c for column in MEASURED_OF_LOSSES for c in _file_columns(column)]
    filled = [c for c in columns if wide[c].notna().any()]
    wide = wide[[*ALL_COLUMNS, *filled, "measured"]]
    return wide.sort_values(ROW_ORDER, ignore_index=True)


def losses_of(wide: pd.DataFrame) -> pd.DataFrame:
    """Return the losses in the columns of a file: a row for each run, epoch and part, in its order."""
    columns = {name: np.repeat(wide[name].array, len(PARTS)) for name in LOSS_ROW[:-1]}
    columns["part"] = np.tile(PARTS, len(wide))
    for column in MEASURED_OF_LOSSES:
        missing = None if column == "quantiles" else np.nan
        names = _file_columns(column)
        by_part = {part: wide.get(names[i % len(names)], missing) for i, part in enumerate(PARTS)}
        columns[column] = pd.DataFrame(by_part, wide.index).to_numpy().ravel()
    return with_types(pd.DataFrame(columns), LOSS_DTYPES)


# Files


def write_study(
    path: Path, rows: pd.DataFrame, losses: pd.DataFrame, provenance: Provenance
) -> None:
    """Write a study's file, or a part of it.

    A measure of a run that diverged is NaN, one that was not taken is null.
    """
    wide = with_losses(rows, losses)
    not_taken = ~wide.pop("measured").to_numpy()
    table = pa.Table.from_pandas(wide, preserve_index=False)
    for measure in MEASURES:
        column = pa.array(wide[measure].to_numpy(), mask=not_taken, from_pandas=False)
        table = table.set_column(table.schema.get_field_index(measure), measure, column)
    text = provenance.model_dump_json().encode()
    metadata = {METADATA_KEY: text, CHECKSUM_KEY: _checksum(text, table.schema)}
    table = table.replace_schema_metadata(metadata)
    content = io.BytesIO()
    how = {"compression": "zstd", "compression_level": 9, "write_page_checksum": True}
    pq.write_table(table, content, **how)
    write(path, content.getvalue())


def read_rows(path: Path) -> pd.DataFrame:
    """Read the rows of a study's file, without its losses. Raises UserError for a damaged file."""
    rows = _read(path, ALL_COLUMNS, taken=MEASURES[0])
    try:
        return with_types(rows[ALL_COLUMNS], DTYPES)
    except KeyError as error:
        raise broken(path, error) from None


def read_losses_of(path: Path) -> pd.DataFrame:
    """Read the losses of a study's file. Raises UserError for a damaged file."""
    names = [c for column in MEASURED_OF_LOSSES for c in _file_columns(column)]
    return losses_of(_read(path, [*LOSS_ROW[:-1], *names], taken=LOSSES_ARE_THERE))


def read_keys_of_losses(path: Path) -> pd.DataFrame:
    """Read which runs and epochs of a study's file have losses. Raises UserError for a damaged file."""
    return _read(path, [*RUN_KEY, "epoch", LOSSES_ARE_THERE], taken=LOSSES_ARE_THERE)


def read_provenance(path: Path) -> Provenance:
    """Read where the rows of a file come from. Raises UserError for a damaged file."""
    try:
        file = path.stat()
        return _read_provenance(path, file.st_ino, file.st_mtime_ns)
    except ValidationError as error:
        raise broken(path, error.errors()[0]["msg"]) from None
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise broken(path, error) from None


@functools.lru_cache(maxsize=1000)
def _read_provenance(path: Path, inode: int, changed: int) -> Provenance:
    """Read it once for each state of a file: the studies of a folder ask for each other's."""
    return Provenance.model_validate_json(_checked_metadata(pq.read_schema(path)))


def _read(path: Path, columns: list[str], taken: str) -> pd.DataFrame:
    """Read those of `columns` that a file has, where the measure `taken` was taken.

    Raises UserError where the file is damaged.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _checked_metadata(file.schema_arrow)
            known = set(file.schema_arrow.names)
            table = file.read([c for c in columns if c in known], use_threads=False)
        rows = table.filter(table[taken].is_valid()) if taken in known else table.slice(0, 0)
        return rows.to_pandas(ignore_metadata=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise broken(path, error) from None


def _checked_metadata(schema: pa.Schema) -> bytes:
    """Return the provenance of a file as JSON. Raises ValueError and KeyError for a damaged one."""
    metadata = schema.metadata or {}
    text: bytes = metadata[METADATA_KEY]
    if metadata[CHECKSUM_KEY] != _checksum(text, schema):
        raise ValueError("its metadata do not match their checksum")
    return text


def _checksum(provenance: bytes, schema: pa.Schema) -> bytes:
    names = ",".join(schema.names)
    return hashlib.sha256(provenance + names.encode()).hexdigest().encode()


def broken(path: Path, problem: object) -> UserError:
    """Return the error to raise for a file that cannot be read."""
    what = " ".join(str(problem).split())[:80] or type(problem).__name__
    profile, dataset = path.parts[-3:-1]
    command = f"softad train {profile} --dataset {dataset} --method {path.stem}"
    return UserError(f"{path} is broken ({what}); delete it, then train what is missing: {command}")


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an npz file, which carries checksums."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write(path, content.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an npz file. A damaged one is ignored: its arrays are computed again, to the same bits."""
    try:
        with np.load(io.BytesIO(path.read_bytes())) as file:
            return dict(file)
    except Exception:  # numpy and zipfile raise many types
        return {}
