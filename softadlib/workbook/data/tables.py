"""Tables with a class column: CSV or parquet files, and sets of OpenML by name."""

import functools
import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from softadlib._files import data_root, home
from softadlib._validation import MissingData, UserError, choose, counted
from softadlib.workbook.data.columns import clean, is_text
from softadlib.workbook.data.faults import raise_all

if TYPE_CHECKING:
    import pandas as pd

TABLES = {
    "letter": "letter",
    "magic": "MagicTelescope",
    "penbased": "pendigits",
    "satimage": "satimage",
    "optdigits": "optdigits",
    "texture": "texture",
    "phoneme": "phoneme",
    "spambase": "spambase",
    "chess": "kr-vs-kp",
    "splice": "splice",
    "segment": "segment",
    "marketing": "",
    "contraceptive": "cmc",
    "german": "credit-g",
    "vowel": "vowel",
    "vehicle": "vehicle",
}
"""The built-in tables and their names on OpenML; "" for one that is not there."""
TEXT_INPUTS = 30
"""Inputs of a column of too many words for an input each."""


@dataclass(frozen=True)
class Table:
    """Rows of a table, before anything is fitted to a trial's training rows."""

    x: np.ndarray
    """(n, inputs), float64, not yet standardised; NaN where a value is missing."""
    y: np.ndarray
    """(n,), the number of each row's class among `classes`."""
    inputs: tuple[str, ...]
    """Names of the inputs: the column, column=word, or a part of a date such as column_year."""
    is_word: np.ndarray
    """(inputs,), True for an input of 0 and 1: a word, or that a value is missing."""
    classes: tuple[str, ...]
    texts: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Columns of too many words for an input each, (n,) strings; "" where a value is missing."""
    columns: "pd.DataFrame | None" = field(default=None, repr=False)
    """The columns as `columns.clean` returns them, the classes last."""

    @property
    def width(self) -> int:
        """Number of a network's inputs."""
        return int(self.x.shape[1]) + TEXT_INPUTS * len(self.texts)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the names and values, the same for a CSV file and the parquet file made of it."""
        content = hashlib.sha256(repr((self.x.shape, self.inputs, self.classes)).encode())
        for array in (self.x, self.y, self.is_word):
            content.update(np.ascontiguousarray(array).data)
        for name, words in self.texts.items():
            content.update(repr((name, words.tolist())).encode())
        return content.hexdigest()


def is_table(name: str) -> bool:
    """Tell whether `name` is a built-in table, or one of your own that has been prepared."""
    return name in TABLES or (isinstance(name, str) and prepared_table(name).exists())


def prepared_table(name: str) -> Path:
    """Return the path of the prepared form of a table."""
    return data_root() / f"{name}.parquet"


def table_file(table: str | Path) -> Path:
    """Return the file of a table: a path, below the data root or the workbook's root, or a name.

    A name is that of a prepared table, or of a built-in one, also as `tables/<name>.csv` below the
    data root. Raises MissingData for a table that is not on this machine.
    """
    root = data_root()
    path = os.path.expanduser(table)
    named = [prepared_table(str(table)), root / "tables" / f"{table}.csv"]
    for file in [*named, root / path, home() / path]:
        if file.is_file():
            return file
    if table not in TABLES:
        raise MissingData(f"table {str(table)!r} is no file under {root} or {home()}")
    how = "" if TABLES[str(table)] else " --from-csv FILE"
    raise MissingData(
        f"{table} is not under {root}; get it: softad data prepare {table}{how} "
        "(or set SOFTAD_DATA to where it lies)"
    )


def read_table(path: str | Path, target: str = "") -> Table:
    """Read a table from a .csv or .parquet file, or by name, as `table_file` finds it.

    `target` names the class column; empty, it is the last one. Raises a UserError of one line that names
    the file and all that is wrong in it.
    """
    file = table_file(path)
    return _read_table(file, target, changed=file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _read_table(file: Path, target: str, changed: int) -> Table:
    """Read a table. `changed`: when the file was changed, so that it is read again after that."""
    frame = read_frame(file)
    try:
        return from_frame(frame, target)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def table_digest(path: str | Path, target: str = "") -> str:
    """Return `Table.digest` of a file or a name: what a result's fingerprint holds of its table."""
    return read_table(path, target).digest


def from_frame(frame: "pd.DataFrame", target: str = "") -> Table:
    """Turn columns into inputs, and the column `target`, by default the last, into numbers of classes."""
    columns = clean(frame, target or str(frame.columns[-1]))
    texts = {}
    inputs: list[tuple[str, np.ndarray]] = []
    for name, column in columns.iloc[:, :-1].items():
        if is_text(column):
            texts[str(name)] = column.astype(str).where(column.notna(), "").to_numpy(object)
        else:
            inputs += inputs_of(column)
    values = [value for _, value in inputs]
    classes = columns.iloc[:, -1].cat
    return Table(
        x=np.column_stack(values).astype(np.float64) if values else np.empty((len(columns), 0)),
        y=classes.codes.to_numpy(np.int64),
        inputs=tuple(name for name, _ in inputs),
        is_word=np.array([value.dtype == bool for value in values], bool),
        classes=tuple(classes.categories),
        texts=texts,
        columns=columns,
    )


def inputs_of(column: "pd.Series") -> list[tuple[str, np.ndarray]]:
    """Return names and values of a column's inputs: float64 for numbers and dates, bool for words."""
    name = column.name
    if column.dtype == "category":
        codes = column.cat.codes.to_numpy()
        found = [(f"{name}={word}", codes == i) for i, word in enumerate(column.cat.categories)]
    else:
        parts = date_parts(column) if column.dtype.kind == "M" else column.to_frame()
        found = [(str(part), values.to_numpy(np.float64)) for part, values in parts.items()]
    if column.hasnans:
        found.append((f"{name} is missing", column.isna().to_numpy()))
    return found


def date_parts(dates: "pd.Series") -> "pd.DataFrame":
    """Return year, month, day, the time of day if there is one, and the seconds since 1970."""
    import skrub

    parts: pd.DataFrame = skrub.DatetimeEncoder(resolution="second").fit_transform(dates)
    return parts


# Files


def read_frame(file: Path) -> "pd.DataFrame":
    """Read a file into columns, those of a CSV file as text; the index counts lines or rows.

    Raises UserError for a file that is empty, broken or of another format.
    """
    choose("format of a table", file.suffix, (".csv", ".parquet"))
    try:
        frame = _read_csv(file) if file.suffix == ".csv" else _read_parquet(file)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except Exception as error:  # pandas, pyarrow: whatever a file makes them raise
        what = " ".join(str(error).split())[:200]
        raise UserError(
            f"{file} is not a readable {file.suffix[1:]} file ({what}); save a table as UTF-8, with the names "
            "of its columns in the first line, commas between the values, and points in the numbers"
        ) from None
    if len(frame.columns) < 2 or frame.empty:
        raise UserError(
            f"{file} holds {counted(len(frame), 'row')} of {counted(len(frame.columns), 'column')}, "
            f"{', '.join(frame.columns)[:80]!r}; a table has a line of names, rows, and two columns or more "
            "with commas between them"
        )
    return frame


def _read_csv(file: Path) -> "pd.DataFrame":
    """Read a CSV file as text, without blank lines."""
    import pandas as pd

    first = pd.read_csv(file, header=None, nrows=1, dtype=str, skip_blank_lines=False)
    names = first.iloc[0].str.strip()
    try:
        with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
            frame = pd.read_csv(file, dtype=str, index_col=False, skip_blank_lines=False)
    except pd.errors.ParserWarning:
        begin = ",".join(names.fillna(""))[:80]
        semicolons = (
            "; it has semicolons: save it with commas between the values, and points in the numbers"
        )
        raise UserError(
            f"its rows have more values than its first line, {begin!r}, has names"
            f"{semicolons * (';' in begin)}"
        ) from None
    nameless = names.isna().to_numpy()
    if frame.loc[:, nameless].isna().all(axis=None):  # every line ends with a comma
        frame, names = frame.loc[:, ~nameless], names[~nameless]
    frame.columns = names.fillna("").to_list()
    check_names(frame.columns)
    lines = np.arange(2, len(frame) + 2)
    has_quotes = b'"' in file.read_bytes()
    if has_quotes:  # a value may go over several lines
        breaks = sum(column.str.count("\n").fillna(0) for _, column in frame.items())
        lines = lines + (breaks.cumsum() - breaks).to_numpy(int)
    frame.index = pd.Index(lines, name="line")
    raise_all(swallowed_rows(frame) if has_quotes else [])
    is_blank = frame.iloc[:, 0].fillna("").str.strip() == ""
    return frame[~(is_blank & frame.iloc[:, 1:].isna().all(axis=1))]


def _read_parquet(file: Path) -> "pd.DataFrame":
    """Read a parquet file. Turn a named index into columns; drop a plain RangeIndex."""
    import pandas as pd
    import pyarrow.parquet as pq

    with open(file, "rb") as stream:  # pyarrow itself opens only what can be written in UTF-8
        check_names(pq.read_schema(stream).names)
        frame = pd.read_parquet(stream)
    names = [name for name in frame.index.names if name is not None and name not in frame.columns]
    if names and not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index(names)[[*names, *frame.columns]]
    frame.columns = [str(name) for name in frame.columns]
    frame.index = pd.RangeIndex(1, len(frame) + 1, name="row")
    return frame


def check_names(names: Sequence[str]) -> None:
    """Refuse columns without a name, and duplicate names.

    pandas renames the second, and a renamed class column would leak the labels.
    """
    counts = Counter(names)
    nameless = counts.pop("", 0)
    faults = [f"{n} columns have the name {name!r}" for name, n in counts.items() if n > 1]
    if nameless:
        columns = "1 column has" if nameless == 1 else f"{nameless} columns have"
        faults.append(f"{columns} no name (row numbers?)")
    raise_all([f"{fault}; leave them out, or give each its own name" for fault in faults])


def swallowed_rows(frame: "pd.DataFrame") -> list[str]:
    """Return a fault for each value that holds whole lines, between two stray quotation marks."""
    columns = len(frame.columns)
    faults = []
    for position, (name, column) in enumerate(frame.items()):
        for line, value in column[column.str.contains("\n", regex=False, na=False)].items():
            pieces = value.split("\n")
            whole = [columns] * (len(pieces) - 2)
            expected = [columns - position, *whole, position + 1]
            if [piece.count(",") + 1 for piece in pieces] == expected:
                faults.append(
                    f"a quotation mark in column {name!r} of line {line} begins a value of {len(pieces)} "
                    "lines, which look like rows; remove it"
                )
    return faults
