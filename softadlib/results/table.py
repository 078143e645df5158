"""The metrics table as a file and in memory: packed, read, merged."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from softadlib._validation import UserError
from softadlib.results import selection
from softadlib.results.schema import ALL_COLUMNS, COLUMNS, DTYPES, ROW_ORDER

TAG = b"softad"
"""Key of a parquet file's metadata under which the protocol's fingerprint stands."""


def pack(rows: pd.DataFrame, fingerprint: str) -> bytes:
    """Return a parquet file of `rows` that carries the fingerprint of their protocol."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(rows, preserve_index=False)
    metadata = {**(table.schema.metadata or {}), TAG: fingerprint.encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, write_page_checksum=True)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def train_again(folder: Path) -> str:
    """Say what to do about a broken file in the folder of one dataset × method."""
    profile, dataset, method = folder.parts[-3:]
    command = f"softad train {profile} --dataset {dataset} --method {method}"
    return f"delete {folder} and train it again: {command}"


def unpack(
    path: Path, columns: Sequence[str] = COLUMNS, mend: str = ""
) -> tuple[pd.DataFrame, str]:
    """Return the rows of a file and the fingerprint of their protocol.

    Args:
        path: a file that `pack` made.
        columns: must be there; others are left out, but for `label_noise`.
        mend: what a person does about a broken file.

    Raises UserError for a missing or broken file and one without `columns`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    mend = mend or train_again(path.parent)
    if not path.exists():
        raise UserError(f"{path} is missing; {mend}")
    try:
        # Pages carry checksums: without them a flipped bit would be another number.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(use_threads=False)
        wanted = [c for c in table.column_names if c in columns or c == "label_noise"]
        rows = table.select(wanted).to_pandas(ignore_metadata=True)
        # Converting a column takes time even where nothing changes.
        others = {c: DTYPES[c] for c in wanted if rows[c].dtype != DTYPES.get(c, rows[c].dtype)}
        rows = rows.astype(others)
    except (pa.ArrowException, OSError, ValueError, TypeError):
        raise UserError(f"{path} is broken (cut short, or not a parquet file); {mend}") from None
    if missing := [c for c in columns if c not in rows]:
        raise UserError(f"{path} lacks the columns {', '.join(missing)}; {mend}")
    return rows, (table.schema.metadata or {}).get(TAG, b"").decode(errors="replace")


def merge(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return one table in the order of `ROW_ORDER`, each run and epoch once; the last frame wins."""
    frames = [frame[ALL_COLUMNS] for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame({c: pd.Series(dtype=DTYPES[c]) for c in ALL_COLUMNS})
    rows = pd.concat(frames, ignore_index=True).astype(DTYPES)
    return rows.drop_duplicates(ROW_ORDER, keep="last").sort_values(ROW_ORDER, ignore_index=True)


def load(
    files: Mapping[Path, float], label_noise: float | None = None, final: bool = False
) -> pd.DataFrame:
    """Return the rows of many files as one table.

    Args:
        files: each with the label noise of its rows, for files without that column.
        label_noise: keep the rows of this one only.
        final: keep the last epoch of every run, file by file, to hold no curves in memory.

    Raises UserError, naming a broken file, and one whose rows belong to another folder.
    """
    frames = []
    for path, noise in files.items():
        rows, _ = unpack(path)
        for names in rows[["dataset", "method"]].drop_duplicates().to_numpy().tolist():
            if names != list(path.parts[-3:-1]):
                raise UserError(
                    f"{path} has rows of {' × '.join(names)}; {train_again(path.parent)}"
                )
        if "label_noise" not in rows:
            rows["label_noise"] = noise
        if label_noise is not None:
            rows = rows[rows["label_noise"] == label_noise]
        frames.append(selection.final(rows) if final and len(rows) else rows)
    return merge(frames)
