"""The metrics table as a file and in memory: packed, read whole or each run's end, merged."""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from . import selection
from .errors import UserError
from .metrics import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

RUN = ["label_noise", "trial", "knob"]
"""What tells the runs of one dataset and method apart."""
ALL = [*COLUMNS[:3], "label_noise", *COLUMNS[3:]]
NAMES = ["dataset", "method"]
ORDER = [*NAMES, *RUN, "epoch"]
TAG = b"softad"


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

    table = _table(path)
    tag = (table.schema.metadata or {}).get(TAG, b"").decode(errors="replace")
    types = {"str": pa.string(), "int64": pa.int64(), "float64": pa.float64()}
    names = [c for c in table.column_names if c in ALL]
    try:
        return table.select(names).cast(
            pa.schema([(c, types[_dtype(c)]) for c in names])
        ).to_pandas(), tag
    except pa.ArrowException:
        raise _broken(path) from None


def _broken(path: Path) -> UserError:
    return UserError(
        f"{path} is broken (cut short, or not a parquet file); "
        f"delete {path.parent} and run the same command again"
    )


def _table(path: Path, **options) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True, **options) as file:
            table = file.read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError):
        raise _broken(path) from None
    missing = [c for c in COLUMNS if c not in table.column_names]
    if missing:
        raise UserError(
            f"{path} lacks the columns {', '.join(missing)}; delete it and run the same command again"
        )
    return table


def merge(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One table of rows in a fixed order, each run and epoch once."""
    frames = [f[ALL] for f in frames if len(f)]
    if not frames:
        return pd.DataFrame({c: pd.Series(dtype=_dtype(c)) for c in ALL})
    rows = pd.concat(frames, ignore_index=True).astype({c: _dtype(c) for c in ALL})
    return rows.drop_duplicates(ORDER, keep="last").sort_values(ORDER, ignore_index=True)


def _dtype(column: str) -> str:
    if column in NAMES:
        return "str"
    return "int64" if column in ("trial", "epoch") else "float64"


def load(
    files: Mapping[Path, float | None], label_noise: float | None = None, final: bool = False
) -> pd.DataFrame:
    """Rows of many files as `merge` gives them; `files` also says the noise of one without that column.

    `label_noise` keeps those rows only; `final` keeps the last epoch of every run, file by file, so
    that memory is that of the runs and not of their curves. Raises UserError, naming a broken file.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def one(item: tuple[Path, float | None]) -> pa.Table:
        table = _plain(_table(item[0], read_dictionary=NAMES), item[1])
        if label_noise is not None:
            table = table.filter(pc.equal(table["label_noise"], label_noise))
        return _ends(table) if final else table

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # arrow lets threads run
        tables = [t for t in pool.map(one, files.items()) if len(t)]
    if not tables:
        return merge([])
    table = pa.concat_tables(tables)
    tables.clear()  # each column is let go as soon as pandas has it
    rows = table.to_pandas(split_blocks=True, self_destruct=True)
    del table
    rows = rows.astype({c: _dtype(c) for c in ALL})
    names = [pd.factorize(rows[c], sort=True)[0] for c in NAMES]
    ordered = _steps([*names, *(rows[c].to_numpy() for c in ORDER[2:])])
    return merge([rows]) if ordered is None else rows


def _plain(table: "pa.Table", noise: float | None) -> "pa.Table":
    """The columns `ALL`, each of one type whoever wrote the file."""
    import pyarrow as pa

    if "label_noise" not in table.column_names:
        column = pa.array(np.full(len(table), np.nan if noise is None else noise))
        table = table.append_column("label_noise", column)
    types = {
        "str": pa.dictionary(pa.int32(), pa.large_string()),
        "int64": pa.int64(),
        "float64": pa.float64(),
    }
    return table.select(ALL).cast(pa.schema([(c, types[_dtype(c)]) for c in ALL]))


def _ends(table: "pa.Table") -> "pa.Table":
    """The last row of every run."""
    import pyarrow as pa

    names = [table[c].combine_chunks() for c in NAMES]
    codes = [n.indices.to_numpy(zero_copy_only=False) for n in names]
    same = _steps([*codes, *(table[c].to_numpy() for c in ORDER[2:])])
    if same is not None:
        return table.take(np.flatnonzero(np.append(~same, True)[: len(table)]))
    rows = selection.final(merge([table.to_pandas().astype({c: "str" for c in NAMES})]))
    return pa.Table.from_pandas(rows, table.schema, preserve_index=False)


def _steps(keys: list[np.ndarray]) -> np.ndarray | None:
    """Whether each row but the last goes on with the same run, by all keys but the last of `keys`.

    None where the rows do not increase strictly in the order of `keys`. NaN is above all numbers.
    """
    *keys, epoch = keys
    above, same = np.zeros(max(len(epoch) - 1, 0), bool), np.ones(max(len(epoch) - 1, 0), bool)
    for key in keys:
        if key.dtype.kind == "f":
            key = np.where(np.isnan(key), np.inf, key)
        above |= same & (key[1:] > key[:-1])
        same &= key[1:] == key[:-1]
    return same if (above | same & (epoch[1:] > epoch[:-1])).all() else None
