"""Put data sets below the data root, and list those that are there or can be had."""

import io
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from softadlib._validation import UserError, choose
from softadlib._workspace import data_root, write
from softadlib.data.images import (
    IMAGES,
    available,
    download,
    downloaded_sets,
    is_image_set,
    load_images,
)
from softadlib.data.synthetic import SYNTHETIC
from softadlib.data.tables import (
    TABLES,
    from_frame,
    prepared_table,
    read_frame,
    read_table,
    table_file,
)

if TYPE_CHECKING:
    import pandas as pd


def prepare(name: str, from_csv: str | Path | None = None, target: str = "") -> Path:
    """Put a set below the data root and return where: downloaded, or a table of one's own.

    `from_csv` is a .csv, .parquet or .npz file and `target` its class column, empty for the last.
    Raises UserError for a set that cannot be had; then nothing is written.
    """
    if from_csv is not None or name in TABLES:
        return prepare_table(name, from_csv, target)
    if name in SYNTHETIC or (name in IMAGES and name not in downloaded_sets()):
        raise UserError(f"{name} needs no preparation; it is made or embedded here")
    try:
        choose("dataset", name, [*downloaded_sets(), *TABLES])
    except UserError as error:
        own = (
            "for a table of your own add --from-csv FILE, for images name folder: DIR in a profile"
        )
        raise UserError(f"{error}; {own}") from None
    download(name)
    return data_root()


def prepare_table(name: str, path: str | Path | None = None, target: str = "") -> Path:
    """Write `<data root>/<name>.parquet`, the class column last, of a checked table; return its path.

    The table is a file, or without `path` that of a built-in name, downloaded from OpenML. Raises
    UserError for a name that is taken, a table that `read_table` refuses and a failed download; then
    nothing is written.
    """
    if path is None:
        choose("table to download", name, [table for table, theirs in TABLES.items() if theirs])
        frame, target = _download(name)
    else:
        if name in SYNTHETIC or is_image_set(name) or not re.fullmatch(r"[A-Za-z0-9][\w-]*", name):
            raise UserError(f"{name!r} is taken or no plain name; choose another for your table")
        if not Path(path).is_file():
            raise UserError(f"{path} is no file; give a .csv, .parquet or .npz file")
        frame = read_frame(Path(path))
        target = target or str(frame.columns[-1])
    try:
        from_frame(frame, target)
    except UserError as error:
        raise UserError(f"{path or name}: {error}") from None
    content = io.BytesIO()
    frame[target] = frame.pop(target)
    frame.to_parquet(content, index=False)
    write(prepared_table(name), content.getvalue())
    return prepared_table(name)


def _download(name: str) -> tuple["pd.DataFrame", str]:
    """Return a built-in table from OpenML, and the name of its class column."""
    from sklearn.datasets import fetch_openml

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several versions: the oldest is taken
            bunch = fetch_openml(TABLES[name], as_frame=True, parser="auto", cache=False)
    except Exception as error:  # urllib, ssl, http, sklearn: whatever a download raises
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        place = data_root() / "tables" / f"{name}.csv"
        raise UserError(
            f"{name} could not be had from OpenML ({what}); check the network, or put it at {place}"
        ) from None
    return bunch.frame, str(bunch.target_names[0])


def size_of(name: str) -> str:
    """Return number and size of a set's samples, in words. Raises UserError where it cannot be read."""
    if name in IMAGES:
        return IMAGES[name].size
    if is_image_set(name):
        pool = load_images(name).pool
        return f"{len(pool):,} of {' × '.join(map(str, pool.shape[1:]))}"
    table = read_table(table_file(name))
    return f"{len(table.y):,} rows, {table.x.shape[1]} inputs, {len(table.classes)} classes"


def listing() -> list[tuple[str, str, str]]:
    """Return (name, state, size) of image sets and tables, the built-in ones first, then one's own.

    The state is `embedded`, `prepared`, `downloaded`, `missing`, or `broken` for a file that cannot
    be read.
    """
    out = [(name, available(name), entry.size) for name, entry in IMAGES.items()]
    tables, arrays = (data_root().glob(f"*.{kind}") for kind in ("parquet", "npz"))
    files = {file.stem: file for file in (*tables, *arrays)}
    own = sorted(files.keys() - IMAGES.keys() - TABLES.keys())
    for name in [*TABLES, *own]:
        try:
            out.append((name, "prepared", size_of(name)))
        except UserError as error:
            missing = name in TABLES and name not in files
            out.append((name, "missing" if missing else "broken", "" if missing else str(error)))
    return out
