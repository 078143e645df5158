"""Tables with a class column: CSV, parquet or npz files, and sets of OpenML by name."""

import functools
import hashlib
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from softadlib._validation import MissingData, UserError, choose
from softadlib._workspace import data_root, home

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
MOST_WORDS = 256
"""Different words that a column may hold; each becomes an input of the network."""


@dataclass(frozen=True)
class Table:
    """Rows of a table as numbers, not yet standardised: a column of words is 0/1 inputs, one a word."""

    x: np.ndarray
    """(n, inputs), float64."""
    y: np.ndarray
    """(n,), the number of each row's class among `classes`."""
    inputs: tuple[str, ...]
    """Names of the inputs: the column, or column=word."""
    is_word: np.ndarray
    """(inputs,), True for an input that stands for a word."""
    classes: tuple[str, ...]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the names and values, the same for a CSV file and the parquet file made of it."""
        content = hashlib.sha256(repr((self.x.shape, self.inputs, self.classes)).encode())
        for array in (self.x, self.y, self.is_word):
            content.update(np.ascontiguousarray(array).data)
        return content.hexdigest()


def is_table(name: str) -> bool:
    """Tell whether `name` is a built-in table, or one of one's own that has been prepared."""
    return name in TABLES or (isinstance(name, str) and prepared_table(name).exists())


def prepared_table(name: str) -> Path:
    """Return the path of the prepared form of a table."""
    return data_root() / f"{name}.parquet"


def table_file(table: str | Path) -> Path:
    """Return the file of a table: a path, below the data root or the workbook's root, or a name.

    A name is that of a prepared table, or of a built-in one, also as `tables/<name>.csv` below the
    data root. Raises MissingData for a table that is not on this machine.
    """
    root, path = data_root(), os.path.expanduser(table)
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
    """Read a table from a .csv, .parquet or .npz file, or by name, as `table_file` finds it.

    A column holds numbers or words, `target` names the class column; empty, it is the last one. An
    .npz holds `x` (n, columns) and `y` (n,). Raises a one-line UserError, naming the file and the
    column, for a missing or infinite value, words among numbers, a column of more than `MOST_WORDS`
    words, fewer than two classes and a class of a single row.
    """
    file = table_file(path)
    facts = file.stat()
    return _read_table(file, target, (facts.st_mtime_ns, facts.st_size))


@functools.lru_cache(maxsize=2)
def _read_table(file: Path, target: str, changed: tuple[int, int]) -> Table:
    """Read a table; its time and size are `changed` when the file is another."""
    frame = read_frame(file)
    try:
        return from_frame(frame, target or str(frame.columns[-1]))
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def table_digest(path: str | Path, target: str = "") -> str:
    """Return `Table.digest` of a file or a name: what a result's fingerprint holds of its table."""
    return read_table(path, target).digest


def read_frame(file: Path) -> "pd.DataFrame":
    """Read a file into columns. Raises UserError for one that is empty, broken or of another format."""
    import pandas as pd
    import pyarrow.parquet as pq

    choose("format of a table", file.suffix, (".csv", ".parquet", ".npz"))
    try:
        if file.suffix == ".csv":
            _refuse_repeated(pd.read_csv(file, header=None, nrows=1, dtype=str).iloc[0].dropna())
            with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
                frame = pd.read_csv(file, low_memory=False, index_col=False)
        elif file.suffix == ".parquet":
            _refuse_repeated(pd.Series(pq.read_schema(file).names))
            frame = pd.read_parquet(file)
        else:
            with open(file, "rb") as raw, np.load(raw, allow_pickle=False) as arrays:
                frame = pd.DataFrame(arrays["x"]).add_prefix("x").assign(y=arrays["y"])
    except pd.errors.ParserWarning:
        raise UserError(f"{file}: its rows have more values than its header has names") from None
    except Exception as error:  # pandas, pyarrow, zipfile, numpy: whatever a file makes them raise
        what = " ".join(str(error).split())[:200]
        raise UserError(f"{file} is not a readable {file.suffix[1:]} file ({what})") from None
    frame.columns = [str(name) for name in frame.columns]
    if nameless := [name for name in frame.columns if name.startswith("Unnamed: ")]:
        raise UserError(
            f"{file}: column {nameless[0].partition(': ')[2]}, counted from 0, has no name; name it, or leave it "
            "out where it numbers the rows"
        )
    if len(frame.columns) < 2 or frame.empty:
        raise UserError(
            f"{file} holds {len(frame)} rows of {len(frame.columns)} columns; a table has a header, rows, "
            "and two columns or more with commas between them"
        )
    return frame


def _refuse_repeated(names: "pd.Series") -> None:
    """Raise ValueError for a name of two columns, which pandas would rename: a copy of the classes leaks."""
    for name in names[names.duplicated()]:
        raise ValueError(f"{(names == name).sum()} columns have the name {name!r}; leave one")


def from_frame(frame: "pd.DataFrame", target: str) -> Table:
    """Turn columns into numbers, and the column `target` into numbers of classes."""
    choose("class column (target)", target, frame.columns)
    for name, column in frame.items():
        if rows := np.flatnonzero(column.isna()).tolist():
            raise UserError(
                f"column {name!r} has {len(rows)} missing values, first in row {rows[0] + 1}; "
                "fill them in or leave these rows out (empty, NA, n/a, NaN, None and null count as missing)"
            )
    levels, y = np.unique(frame[target].astype(str), return_inverse=True)
    classes = tuple(levels.tolist())
    if len(classes) < 2:
        raise UserError(f"column {target!r} holds one class, {classes[0]!r}; give two or more")
    single = np.flatnonzero(np.bincount(y) == 1)
    if len(single):
        raise UserError(
            f"class {classes[single[0]]!r} of column {target!r} has a single row; it cannot be trained on "
            "and tested, leave it out (a column of numbers to predict is no class column)"
        )
    x, inputs, is_word = [], [], []
    for name, column in frame.drop(columns=target).items():
        words, values = _encode(str(name), column)
        x.append(values)
        inputs += [f"{name}={word}" for word in words] or [str(name)]
        is_word += [bool(words)] * values.shape[1]
    return Table(np.hstack(x), y.astype(np.int64), tuple(inputs), np.array(is_word), classes)


def _encode(name: str, column: "pd.Series") -> tuple[list[str], np.ndarray]:
    """Return the different words of a column and its values (n, 1), or (n, words) in 0 and 1."""
    import pandas as pd

    words, values = column.astype(str), column
    if not isinstance(column.dtype, pd.CategoricalDtype):
        values = pd.to_numeric(column, errors="coerce")
    numbers = (
        values.notna() if pd.api.types.is_numeric_dtype(values) else np.zeros(len(words), bool)
    )
    if numbers.all():
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            raise UserError(f"column {name!r} is infinite in row {infinite[0] + 1}; repair it")
        return [], values.to_numpy(np.float64)[:, None]
    if numbers.any():
        row = int(np.argmin(numbers))
        raise UserError(
            f"column {name!r} holds numbers and the text {words.iloc[row]!r} in row {row + 1}; "
            "give numbers alone or words alone"
        )
    levels, which = np.unique(words, return_inverse=True)
    if len(levels) > MOST_WORDS:
        raise UserError(
            f"column {name!r} holds {len(levels):,} different words, more than {MOST_WORDS}; "
            "leave it out, or give it as numbers"
        )
    return levels.tolist(), np.eye(len(levels))[which]
