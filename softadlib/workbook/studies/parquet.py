"""Files of results: a study's table, with its provenance in the metadata.

A file has a row for each run and measured epoch, as `schema` names its columns. Columns of what was
never measured are left out. Files appear whole or not at all, and their pages carry checksums.
"""

import functools
import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from softadlib._files import home, write
from softadlib._validation import UserError
from softadlib.trainer.evaluation import MEASURES
from softadlib.trainer.splits import PARTS
from softadlib.workbook.studies.provenance import Provenance
from softadlib.workbook.studies.schema import (
    ALL_COLUMNS,
    DTYPES,
    HAS_LOSSES,
    LOSS_COLUMNS,
    ROW_ORDER,
    SINGLE_LOSSES,
    columns_of,
)

METADATA_KEY = b"softad"
"""Key of a parquet file's metadata under which a `Provenance` stands as JSON."""
CHECKSUM_KEY = b"softad-checksum"
"""Key of a checksum over that JSON and the names of the columns, which parquet does not protect."""


def outputs(*names: str) -> Path:
    """Return a path under `outputs/`. Raises UserError for a name that is no plain name of a folder."""
    root = home() / "outputs"
    for name in names:
        if not name or Path(name).name != name or name[0] == "." or set(name) & set("\\\0"):
            raise UserError(f"{name!r} cannot be a folder in {root}; use a plain name")
    return root.joinpath(*names)


# Tables in memory


def merge(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return one table in the order of `ROW_ORDER`, each run and epoch once.

    Of two rows of the same run and epoch, measures come from the last one that has them, and so do
    losses of single samples. So a replay adds losses to a row, and its measures stay.
    """
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame({c: pd.Series(dtype=DTYPES[c]) for c in ALL_COLUMNS})
    rows = with_types(pd.concat(frames, ignore_index=True))
    if rows.duplicated(ROW_ORDER).any():
        rows = _last_of_each(rows)
    known = [column for column in DTYPES if column in rows]
    others = [column for column in rows if column not in DTYPES]
    return rows[known + others].sort_values(ROW_ORDER, ignore_index=True)


def _last_of_each(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each run and epoch once: the last measures, and the last losses of single samples."""
    place = rows.groupby(ROW_ORDER, dropna=False).ngroup()
    merged = rows.drop_duplicates(ROW_ORDER, keep="last")
    merged = merged.set_axis(place[merged.index], axis="index")
    has_losses = rows[HAS_LOSSES].notna() if HAS_LOSSES in rows else pd.Series(False, rows.index)
    for has, wanted in ((is_measured(rows), (*MEASURES, NOT_MEASURED)), (has_losses, LOSS_COLUMNS)):
        columns = [column for column in wanted if column in rows]
        last = rows.loc[has].drop_duplicates(ROW_ORDER, keep="last")
        last = last.set_axis(place[last.index], axis="index")
        taken = last.index
        merged.loc[taken, columns] = last.loc[taken, columns]
    return merged


NOT_MEASURED = "not_measured"
"""Column that is True in a row with losses of single samples alone, as some files have; else left out."""


def is_measured(rows: pd.DataFrame) -> pd.Series:
    """Tell which rows hold the measures of a network; the others have losses of single samples alone."""
    if NOT_MEASURED not in rows:
        return pd.Series(True, rows.index)
    return ~rows[NOT_MEASURED].eq(True)


def with_types(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert the columns of another type."""
    wanted = {c: dtype for c, dtype in DTYPES.items() if c in rows and rows[c].dtype != dtype}
    return rows.astype(wanted) if wanted else rows


def by_split(rows: pd.DataFrame) -> pd.DataFrame:
    """Return losses of single samples with a row for each split: the column `split`, and `loss` for its mean.

    Rows without them are left out.
    """
    rows = rows[rows[HAS_LOSSES].notna()] if HAS_LOSSES in rows else rows[:0]
    columns = {name: np.repeat(rows[name].array, len(PARTS)) for name in ROW_ORDER}
    columns["split"] = pd.array(np.tile(np.array(PARTS, dtype=object), len(rows)), dtype="str")
    for measure in SINGLE_LOSSES:
        missing = None if measure == "quantiles" else np.nan
        names = columns_of(measure)
        of_splits = {
            split: rows.get(names[i % len(names)], missing) for i, split in enumerate(PARTS)
        }
        columns[measure] = pd.DataFrame(of_splits, rows.index).to_numpy().ravel()
    return pd.DataFrame(columns).astype({"samples": "int64"})


# Files


def write_study(path: Path, rows: pd.DataFrame, provenance: Provenance) -> None:
    """Write a study's file, or a chunk of it.

    A measure of a run that diverged is NaN, one that was not taken is null.
    """
    filled = [column for column in LOSS_COLUMNS if column in rows and rows[column].notna().any()]
    table = pa.Table.from_pandas(rows[[*ALL_COLUMNS, *filled]], preserve_index=False)
    not_taken = ~is_measured(rows).to_numpy()
    for measure in MEASURES:
        column = pa.array(rows[measure].to_numpy(), mask=not_taken, from_pandas=False)
        table = table.set_column(table.schema.get_field_index(measure), measure, column)
    text = provenance.model_dump_json().encode()
    metadata = {METADATA_KEY: text, CHECKSUM_KEY: _checksum(text, table.schema)}
    table = table.replace_schema_metadata(metadata)
    content = io.BytesIO()
    pq.write_table(
        table, content, compression="zstd", compression_level=9, write_page_checksum=True
    )
    write(path, content.getvalue())


def read_rows(path: Path, columns: Sequence[str] = LOSS_COLUMNS) -> pd.DataFrame:
    """Read a study's table: `ALL_COLUMNS`, and those of `columns` that the file has.

    Raises UserError for a damaged file.
    """
    try:
        # A file object: pyarrow itself encodes a path as the locale does.
        with (
            open(path, "rb") as content,
            pq.ParquetFile(content, page_checksum_verification=True) as file,
        ):
            _checked_metadata(file.schema_arrow)
            known = set(file.schema_arrow.names)
            wanted = [*ALL_COLUMNS, *(column for column in columns if column in known)]
            table = file.read(wanted, use_threads=False)
        measured = table[MEASURES[0]].is_valid().to_numpy()
        rows = with_types(table.to_pandas(ignore_metadata=True)[wanted])
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise broken(path, error) from None
    return rows if measured.all() else rows.assign(**{NOT_MEASURED: ~measured})


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
    with open(path, "rb") as content:
        return Provenance.model_validate_json(_checked_metadata(pq.read_schema(content)))


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
