"""The metrics table as a file and in memory: packed, read whole or each run's end, merged."""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from softadlib._validation import UserError
from softadlib.results import selection
from softadlib.results.schema import ALL_COLUMNS, COLUMNS, DTYPES, ROW_ORDER, RUN_KEY

if TYPE_CHECKING:
    import pyarrow as pa

TAG = b"softad"
NAMES = ["dataset", "method"]


def pack(rows: pd.DataFrame, fingerprint: str) -> bytes:
    """A parquet file of `rows` that carries the fingerprint of the protocol that made them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(rows, preserve_index=False)
    table = table.replace_schema_metadata(
        {**(table.schema.metadata or {}), TAG: fingerprint.encode()}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def unpack(path: Path) -> tuple[pd.DataFrame, str]:
    """Rows and the fingerprint of the protocol that made them; UserError for a broken file."""
    import pyarrow as pa

    found, tag = table_of(path)
    types = {"str": pa.string(), "int64": pa.int64(), "float64": pa.float64()}
    names = [c for c in found.column_names if c in ALL_COLUMNS]
    try:
        return found.select(names).cast(
            pa.schema([(c, types[_dtype(c)]) for c in names])
        ).to_pandas(), tag
    except pa.ArrowException:
        raise _broken(path, _mend(path)) from None


def _mend(path: Path) -> str:
    return f"delete {path.parent} and run the same command again"


def _broken(path: Path, mend: str) -> UserError:
    return UserError(f"{path} is broken (cut short, or not a parquet file); {mend}")


def table_of(
    path: Path, columns: Sequence[str] = COLUMNS, mend: str = "", **options: Any
) -> tuple["pa.Table", str]:
    """A table and the fingerprint that it carries; `options` as `pyarrow.parquet.ParquetFile`'s.

    Raises a UserError that says what to do, `mend`, for a broken file and one without `columns`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    mend = mend or _mend(path)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, **options) as file:
            found = file.read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError):
        raise _broken(path, mend) from None
    missing = [c for c in columns if c not in found.column_names]
    if missing:
        raise UserError(f"{path} lacks the columns {', '.join(missing)}; {mend}")
    return found, (found.schema.metadata or {}).get(TAG, b"").decode(errors="replace")


def merge(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One table of rows in a fixed order, each run and epoch once."""
    frames = [f[ALL_COLUMNS] for f in frames if len(f)]
    if not frames:
        return pd.DataFrame({c: pd.Series(dtype=_dtype(c)) for c in ALL_COLUMNS})
    rows = pd.concat(frames, ignore_index=True).astype({c: _dtype(c) for c in ALL_COLUMNS})
    return rows.drop_duplicates(ROW_ORDER, keep="last").sort_values(ROW_ORDER, ignore_index=True)


def _dtype(column: str) -> str:
    return DTYPES[column]


def load(
    files: Mapping[Path, float | None], label_noise: float | None = None, final: bool = False
) -> pd.DataFrame:
    """Rows of many files as `merge` gives them; `files` also says the noise of one without that column.

    `label_noise` keeps those rows only; `final` keeps the last epoch of every run, file by file, so
    that memory is that of the runs and not of their curves. Raises UserError, naming a broken file.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def one(item: tuple[Path, float | None]) -> tuple[pa.Table, tuple[str, str] | None]:
        table = _plain(table_of(item[0], read_dictionary=NAMES)[0], item[1])
        if label_noise is not None:
            table = table.filter(pc.equal(table["label_noise"], label_noise))
        same = _steps(table)
        if final:
            table = _ends(table, same)
        ordered = same is not None and len(table) > 0
        return table, tuple(table[c][0].as_py() for c in NAMES) if ordered else None

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # arrow lets threads run
        read = [(t, pair) for t, pair in pool.map(one, files.items()) if len(t)]
    if not read:
        return merge([])
    pairs = [pair for _, pair in read]
    known = [pair for pair in pairs if pair is not None]
    apart = all(a < b for a, b in itertools.pairwise(known))
    rows = _together(read)
    return rows if apart and len(known) == len(pairs) else merge([rows])


def _together(read: list[tuple["pa.Table", Any]]) -> pd.DataFrame:
    """One frame of many tables; each column is let go as soon as it has been copied.

    `read` is emptied: whoever holds a table holds its memory.
    """
    import pyarrow as pa

    tables = [table for table, _ in read]
    read.clear()
    columns = {}
    for c in ALL_COLUMNS[::-1]:
        parts = [t[c] for t in tables]
        tables = [t.drop_columns(c) for t in tables]
        if c in NAMES:
            chunks = [chunk for part in parts for chunk in part.cast(pa.large_string()).chunks]
            columns[c] = pd.array(pa.chunked_array(chunks, pa.large_string()), dtype="str")
        else:
            columns[c] = np.concatenate([part.to_numpy() for part in parts])
        del parts
        pa.default_memory_pool().release_unused()
    return pd.DataFrame({c: columns[c] for c in ALL_COLUMNS}, copy=False)


def _plain(table: "pa.Table", noise: float | None) -> "pa.Table":
    """The columns `ALL_COLUMNS`, each of one type whoever wrote the file."""
    import pyarrow as pa

    if "label_noise" not in table.column_names:
        column = pa.array(np.full(len(table), np.nan if noise is None else noise))
        table = table.append_column("label_noise", column)
    types = {
        "str": pa.dictionary(pa.int32(), pa.large_string()),
        "int64": pa.int64(),
        "float64": pa.float64(),
    }
    return table.select(ALL_COLUMNS).cast(pa.schema([(c, types[_dtype(c)]) for c in ALL_COLUMNS]))


def _ends(table: "pa.Table", same: np.ndarray | None) -> "pa.Table":
    """The last row of every run; `same` as `_steps` has it."""
    import pyarrow as pa

    if same is not None:
        return table.take(np.flatnonzero(np.append(~same, True)[: len(table)]))
    rows = selection.final(merge([table.to_pandas().astype({c: "str" for c in NAMES})]))
    return pa.Table.from_pandas(rows, table.schema, preserve_index=False)


def _steps(table: "pa.Table") -> np.ndarray | None:
    """Whether each row but the last goes on with the same run: (n - 1,).

    None where rows are not of one dataset and method or do not increase strictly in `RUN_KEY` and
    epoch, NaN above all numbers.
    """
    if any(len(table[c].unique()) > 1 for c in NAMES):
        return None
    above, same = np.zeros(max(len(table) - 1, 0), bool), np.ones(max(len(table) - 1, 0), bool)
    for key in (table[c].to_numpy() for c in RUN_KEY):
        if key.dtype.kind == "f":
            key = np.where(np.isnan(key), np.inf, key)
        above |= same & (key[1:] > key[:-1])
        same &= key[1:] == key[:-1]
    epoch = table["epoch"].to_numpy()
    return same if (above | same & (epoch[1:] > epoch[:-1])).all() else None
