"""Put data sets below the data root, and list those that are there or can be had."""

import io
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from softadlib._files import data_root, write
from softadlib._validation import UserError, choose, counted
from softadlib.workbook.data.columns import clean, is_text
from softadlib.workbook.data.data_warnings import table_warnings
from softadlib.workbook.data.images import IMAGES, available, download, downloaded_sets
from softadlib.workbook.data.synthetic import SYNTHETIC
from softadlib.workbook.data.tables import (
    TABLES,
    prepared_table,
    read_table,
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
    if path is None:
        choose("table to download", name, [table for table, theirs in TABLES.items() if theirs])
        columns = _download(name)
    else:
        _check_name(name, replace)
        file = Path(path).expanduser().absolute()
        if not file.is_file():
            raise UserError(f"{path} is no file; give a .csv or .parquet file")
        columns = read_table(file, target).columns
    content = io.BytesIO()
    columns.to_parquet(content, index=False)
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
    """Return what a prepared set holds, in lines: of a table its classes, columns and warnings."""
    lines = [size_of(name)]
    if name not in IMAGES:
        columns = read_table(name).columns
        lines += kinds(columns)
        lines += [f"note: {line}" for line in table_warnings(columns)]
    return "\n".join(lines)


def kinds(columns: "pd.DataFrame") -> list[str]:
    """Return what was made of a table's columns, a line for each kind."""
    classes = columns.iloc[:, -1]
    counts = classes.value_counts(sort=False)
    shown: dict[str, list[str]] = {}
    for name, column in columns.iloc[:, :-1].items():
        if column.dtype == "category":
            kind = "texts" if is_text(column) else "words"
            shown.setdefault(kind, []).append(f"{name} ({column.nunique():,})")
        else:
            kind = "dates" if column.dtype.kind == "M" else "numbers"
            shown.setdefault(kind, []).append(str(name))
    missing = [f"{name} ({count:,})" for name, count in columns.isna().sum().items() if count]
    if missing:
        shown["missing values"] = missing
    lines = [f"{kind}: {_listed(names)}" for kind, names in sorted(shown.items())]
    listed = _listed([f"{name} ({count:,})" for name, count in counts.items()])
    return [f"classes, column {classes.name}: {listed}", *lines]


def _listed(names: list[str], most: int = 20) -> str:
    """Return names with commas; of more than `most` the first ones and the number of all."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])}, … {len(names):,} in all"


def _download(name: str) -> "pd.DataFrame":
    """Return the cleaned columns of a built-in table from OpenML."""
    import pandas as pd
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
    frame = bunch.frame.set_axis(pd.RangeIndex(1, len(bunch.frame) + 1, name="row"))
    return clean(frame, str(bunch.target_names[0]))


def size_of(name: str) -> str:
    """Return number and size of a set's samples, in words. Raises UserError where it cannot be read."""
    if name in IMAGES:
        return IMAGES[name].size
    table = read_table(name)
    rows, inputs = counted(len(table.y), "row"), counted(table.width, "input")
    return f"{rows}, {inputs}, {counted(len(table.classes), 'class', 'classes')}"


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
