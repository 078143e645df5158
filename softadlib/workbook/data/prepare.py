"""Put data sets below the data root, and list those that are there or can be had."""

import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from softadlib._files import data_root, write
from softadlib._validation import UserError, choose
from softadlib.workbook.data.data_warnings import table_doubts
from softadlib.workbook.data.images import IMAGES, available, download, downloaded_sets
from softadlib.workbook.data.synthetic import SYNTHETIC
from softadlib.workbook.data.tables import (
    TABLES,
    from_frame,
    place_in,
    prepared_table,
    read_frame,
    read_table,
    row_words,
    table_file,
)

if TYPE_CHECKING:
    import pandas as pd


def prepare(
    name: str, from_csv: str | Path | None = None, target: str = "", *, replace: bool = False
) -> Path:
    """Put a set below the data root and return where: downloaded, or a table of your own.

    `from_csv` is a .csv or .parquet file and `target` its class column, empty for the last. `replace`
    allows to write over a table of that name. Raises UserError for a set that cannot be had; then
    nothing is written.
    """
    if from_csv is not None or name in TABLES:
        return prepare_table(name, from_csv, target, replace=replace)
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


def prepare_table(
    name: str, path: str | Path | None = None, target: str = "", *, replace: bool = False
) -> Path:
    """Write `<data root>/<name>.parquet`, the class column last, of a checked table; return its path.

    The table is a file, or without `path` that of a built-in name, downloaded from OpenML. Raises
    UserError for a name that is taken, a table that `read_table` refuses and a failed download; then
    nothing is written.
    """
    place: Callable[[int], str] = row_words
    if path is None:
        choose("table to download", name, [table for table, theirs in TABLES.items() if theirs])
        frame, target = _download(name)
    else:
        file = Path(path)
        _check_name(name, replace)
        if not file.is_file():
            raise UserError(f"{path} is no file; give a .csv or .parquet file")
        frame, place = read_frame(file), place_in(file)
        target = target or str(frame.columns[-1])
    try:
        from_frame(frame, target, place)
    except UserError as error:
        raise UserError(f"{path or name}: {error}") from None
    content = io.BytesIO()
    frame[target] = frame.pop(target)
    frame.to_parquet(content, index=False)
    write(prepared_table(name), content.getvalue())
    return prepared_table(name)


def _check_name(name: str, replace: bool) -> None:
    """Raise UserError for a name that a table of your own cannot have."""
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name):
        raise UserError(f"{name!r} is no plain name; take letters, digits, - and _")
    if name in SYNTHETIC or name in IMAGES or TABLES.get(name):
        place = data_root() / "tables" / f"{name}.csv"
        its_own = f"put the built-in table's CSV at {place}, or " if name in TABLES else ""
        raise UserError(
            f"{name!r} is the name of a built-in set; {its_own}choose another for your table"
        )
    if prepared_table(name).exists() and not replace:
        raise UserError(
            f"{prepared_table(name)} is there already; add --replace to write over it, or choose another name"
        )


def describe(name: str) -> str:
    """Return what a prepared set holds, in lines: of a table its classes, columns and doubts."""
    lines = [size_of(name)]
    if name not in IMAGES:
        frame = read_frame(table_file(name))
        target = str(frame.columns[-1])
        lines += kinds(frame, target)
        lines += [f"note: {line}" for line in table_doubts(frame, target)]
    return "\n".join(lines)


def kinds(frame: "pd.DataFrame", target: str) -> list[str]:
    """Return what a table holds, a line each: its classes with their counts, its columns by kind."""
    table = from_frame(frame, target)
    counts = np.bincount(table.y)
    classes = [f"{name} ({count:,})" for name, count in zip(table.classes, counts)]
    columns = [str(name) for name in frame.columns if name != target]
    numbers = [name for name in columns if name in table.inputs]
    words = [f"{name} ({frame[name].nunique()})" for name in columns if name not in table.inputs]
    lines = [f"classes, column {target}: {_listed(classes)}"]
    if numbers:
        lines.append(f"numbers: {_listed(numbers)}")
    if words:
        lines.append(f"words: {_listed(words)}")
    return lines


def _listed(names: list[str], most: int = 20) -> str:
    """Return names with commas; of more than `most` the first ones and the number of all."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])}, … {len(names):,} in all"


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
            f"{name} could not be downloaded from OpenML ({what}); check the network, or put it at {place}"
        ) from None
    return bunch.frame, str(bunch.target_names[0])


def size_of(name: str) -> str:
    """Return number and size of a set's samples, in words. Raises UserError where it cannot be read."""
    if name in IMAGES:
        return IMAGES[name].size
    table = read_table(table_file(name))
    return f"{len(table.y):,} rows, {table.x.shape[1]} inputs, {len(table.classes)} classes"


def listing() -> list[tuple[str, str, str]]:
    """Return (name, state, size) of image sets and tables, the built-in ones first, then your own.

    The state is `embedded`, `prepared`, `downloaded`, `missing`, or `broken` for a file that cannot
    be read.
    """
    out = [(name, available(name), entry.size) for name, entry in IMAGES.items()]
    files = {file.stem for file in data_root().glob("*.parquet")}
    own = sorted(files - IMAGES.keys() - TABLES.keys())
    for name in [*TABLES, *own]:
        try:
            out.append((name, "prepared", size_of(name)))
        except UserError as error:
            missing = name in TABLES and name not in files
            out.append((name, "missing" if missing else "broken", "" if missing else str(error)))
    return out
