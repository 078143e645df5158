"""Tables with a class column: CSV or parquet files, and sets of OpenML by name."""

import csv
import functools
import hashlib
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from softadlib._files import data_root, home
from softadlib._validation import MissingData, UserError, choose

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
FEW_WORDS = 20
"""With at most this many words, a column may have a different one in nearly every row."""
FEWEST_ROWS = 5
"""Rows that a class needs: of 5 the parts have 3, 1 and 1 on average."""
NUMBER_AS_TEXT = re.compile(
    r"\s*[-+−]?[$€£]?\s*\d[\d.,'’\s]*([DdEe][-+]?\d+)?\s*[%$€£]?\s*|0x[0-9a-fA-F]+"
)
"""A number as people and programs write it: 1,000 or 1'000 or 5% or $1.50 or −3 or 1.2D+02 or 0x1F."""
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b.*|\d{1,2}:\d{2}(:\d{2}.*)?")
"""A date or a time of day: 2024-01-31 or 31.1.24 or 12:30."""


@dataclass(frozen=True)
class Table:
    """Rows of a table as numbers, not yet standardised; a column of words is one-hot encoded."""

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

    A column holds numbers or words, `target` names the class column; empty, it is the last one. Raises
    a one-line UserError, naming the file and the column, for a missing or infinite value, words among
    numbers, dates, numbers written as text, a column of more than `MOST_WORDS` words or of another word
    in nearly every row, fewer than two classes and a class of fewer than `FEWEST_ROWS` rows.
    """
    file = table_file(path)
    facts = file.stat()
    return _read_table(file, target, (facts.st_mtime_ns, facts.st_size))


@functools.lru_cache(maxsize=2)
def _read_table(file: Path, target: str, changed: tuple[int, int]) -> Table:
    """Read a table. `changed`: time and size of the file, so that a changed one is read again."""
    frame = read_frame(file)
    try:
        return from_frame(frame, target or str(frame.columns[-1]), place_in(file))
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def place_in(file: Path) -> Callable[[int], str]:
    """Return a function that says where a row, counted from 0, stands: "line 22" of a CSV file."""

    def line(row: int) -> str:
        with open(file, newline="", encoding="utf-8-sig") as text:
            reader = csv.reader(text)
            rows = -2  # the header comes before row 0
            begins = 1
            for values in reader:
                is_blank = len(values) < 2 and not "".join(values).strip()
                rows += not is_blank  # pandas leaves blank lines out
                if rows == row:
                    break
                begins = reader.line_num + 1
        return f"line {begins}"

    return line if file.suffix == ".csv" else row_words


def row_words(row: int) -> str:
    """Return the place of a row, counted from 0, where there are no lines: "row 1"."""
    return f"row {row + 1}"


def table_digest(path: str | Path, target: str = "") -> str:
    """Return `Table.digest` of a file or a name: what a result's fingerprint holds of its table."""
    return read_table(path, target).digest


SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""What other programs put between the values of a row."""


def read_frame(file: Path) -> "pd.DataFrame":
    """Read a file into columns. Raises UserError for one that is empty, broken or of another format."""
    import pandas as pd
    import pyarrow.parquet as pq

    choose("format of a table", file.suffix, (".csv", ".parquet"))
    try:
        if file.suffix == ".csv":
            _refuse_repeated(pd.read_csv(file, header=None, nrows=1, dtype=str).iloc[0].dropna())
            with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
                frame = pd.read_csv(file, low_memory=False, index_col=False)
        else:
            _refuse_repeated(pd.Series(pq.read_schema(file).names))
            frame = pd.read_parquet(file)
            frame = _with_index(frame)
    except pd.errors.ParserWarning:
        raise UserError(
            f"{file}: its rows have more values than its first line has names; save it with the names of "
            "the columns in the first line, commas between the values, and points in the numbers"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not a readable {file.suffix[1:]} file ({error}); save it as UTF-8"
        ) from None
    except Exception as error:  # pandas, pyarrow: whatever a file makes them raise
        what = " ".join(str(error).split())[:200]
        raise UserError(f"{file} is not a readable {file.suffix[1:]} file ({what})") from None
    frame.columns = [str(name) for name in frame.columns]
    if nameless := [name for name in frame.columns if name.startswith("Unnamed: ")]:
        raise UserError(
            f"{file}: column {nameless[0].partition(': ')[2]}, counted from 0, has no name; name it, or leave it "
            "out where it numbers the rows"
        )
    if len(frame.columns) < 2 or frame.empty:
        header = "".join(frame.columns) if len(frame.columns) == 1 else ""
        separators = [name for sign, name in SEPARATORS.items() if sign in header]
        raise UserError(
            f"{file} holds {len(frame)} rows of {len(frame.columns)} columns; a table has a header, rows, "
            "and two columns or more with commas between them"
            + "".join(f" (there are {name} between its values)" for name in separators)
        )
    return frame


def _with_index(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return a frame whose named index is columns, too; pandas' own numbers of rows are none."""
    import pandas as pd

    names = [name for name in frame.index.names if name is not None and name not in frame.columns]
    if not names or isinstance(frame.index, pd.RangeIndex):
        return frame
    return frame.reset_index(names)[[*names, *frame.columns]]


def _refuse_repeated(names: "pd.Series") -> None:
    """Raise ValueError for a name of two columns, which pandas would rename: a copy of the classes leaks."""
    for name in names[names.duplicated()]:
        raise ValueError(f"{(names == name).sum()} columns have the name {name!r}; leave one")


def from_frame(
    frame: "pd.DataFrame", target: str, place: Callable[[int], str] = row_words
) -> Table:
    """Turn columns into numbers, and the column `target` into numbers of classes.

    `place` says where a row, counted from 0, stands in its file.
    """
    choose("class column (target)", target, frame.columns)
    for name, column in frame.items():
        _refuse_missing(str(name), column, place)
    _refuse_lists(target, frame[target])
    levels, y = np.unique(frame[target].astype(str), return_inverse=True)
    classes = tuple(levels.tolist())
    _check_classes(target, classes, np.bincount(y))
    x = []
    inputs = []
    is_word = []
    problems = []
    for name, column in frame.drop(columns=target).items():
        try:
            words, values = _encode(str(name), column, place)
        except UserError as error:  # a file of your own has several; name them all
            problems.append(str(error))
            continue
        x.append(values)
        inputs += [f"{name}={word}" for word in words] or [str(name)]
        is_word += [bool(words)] * values.shape[1]
    if problems:
        more = f"; and so for {len(problems) - 4} more columns" if len(problems) > 4 else ""
        raise UserError("; ".join(problems[:4]) + more)
    return Table(np.hstack(x), y.astype(np.int64), tuple(inputs), np.array(is_word), classes)


def _refuse_missing(name: str, column: "pd.Series", place: Callable[[int], str]) -> None:
    """Raise UserError for a column with missing values."""
    rows = np.flatnonzero(column.isna())
    if len(rows):
        raise UserError(
            f"column {name!r} has {len(rows)} missing values, first in {place(rows[0])}; "
            "fill them in or leave these rows out (empty, NA, n/a, NaN, None and null count as missing)"
        )


def _check_classes(target: str, classes: tuple[str, ...], counts: np.ndarray) -> None:
    """Raise UserError for fewer than two classes, names that differ in spaces, and rare classes."""
    if len(classes) < 2:
        raise UserError(f"column {target!r} holds one class, {classes[0]!r}; give two or more")
    for name in classes:
        if name != name.strip() and name.strip() in classes:
            raise UserError(
                f"classes {name!r} and {name.strip()!r} of column {target!r} differ in spaces alone; "
                "make them one"
            )
    rare = int(np.argmin(counts))
    if counts[rare] < FEWEST_ROWS:
        raise UserError(
            f"class {classes[rare]!r} of column {target!r} has {counts[rare]} rows; three parts need "
            f"{FEWEST_ROWS} or more: leave it out or join it with another class "
            "(to predict a number, sort it into classes first)"
        )


def _encode(
    name: str, column: "pd.Series", place: Callable[[int], str]
) -> tuple[list[str], np.ndarray]:
    """Return the different words of a column and its values (n, 1), or (n, words) in 0 and 1."""
    import pandas as pd

    _refuse_dates(name, column)
    _refuse_lists(name, column)
    is_categorical = isinstance(column.dtype, pd.CategoricalDtype)
    words = column.astype(str)
    values = column if is_categorical else pd.to_numeric(column, errors="coerce")
    is_number = np.zeros(len(words), bool)
    if pd.api.types.is_numeric_dtype(values):
        is_number = values.notna().to_numpy()
    if is_number.all():
        numbers = values.to_numpy(np.float64)
        infinite = np.flatnonzero(np.isinf(numbers))
        if len(infinite):
            raise UserError(f"column {name!r} is infinite in {place(infinite[0])}; repair it")
        if column.dtype == object and np.abs(numbers).max() >= 2**63:
            raise UserError(
                f"column {name!r} holds numbers beyond 64 bits, such as "
                f"{words.iloc[np.abs(numbers).argmax()]}; leave it out if it only names the rows"
            )
        _check_size(name, numbers, place)
        return [], numbers[:, None]
    if is_number.any() and not all(map(NUMBER_AS_TEXT.fullmatch, words)):
        row = int(np.argmin(is_number))
        raise UserError(
            f"column {name!r} holds numbers and the text {words.iloc[row]!r} in {place(row)}; "
            "give numbers alone or words alone"
        )
    _check_words(name, words.tolist(), is_categorical, place)
    levels, which = np.unique(words, return_inverse=True)
    return levels.tolist(), np.eye(len(levels))[which]


def _check_size(name: str, numbers: np.ndarray, place: Callable[[int], str]) -> None:
    """Raise UserError for numbers whose squares, or those of their differences, are no number."""
    row = int(np.abs(numbers).argmax())
    if abs(numbers[row]) > 1e100:
        raise UserError(
            f"column {name!r} holds {numbers[row]:g} in {place(row)}, which is too large to standardise; if "
            "it marks a missing value, fill it in or leave the row out"
        )
    if 0 < np.ptp(numbers) < 1e-100:
        raise UserError(
            f"column {name!r} differs by {np.ptp(numbers):g} at most, too little to standardise; give it "
            "in another unit"
        )


def _refuse_lists(name: str, column: "pd.Series") -> None:
    """Raise UserError for a column with several values in a row."""
    import pandas as pd

    if not pd.api.types.is_hashable(column.iloc[0]):
        kind = type(column.iloc[0]).__name__
        raise UserError(
            f"column {name!r} holds a {kind} in every row; give each of its values a column, or leave it out"
        )


def _refuse_dates(name: str, column: "pd.Series") -> None:
    """Raise UserError for a column whose type is a date, a time or a duration."""
    first = column.iloc[0]
    is_date = column.dtype.kind in "mM" or hasattr(first, "isoformat")
    if is_date:
        raise UserError(
            f"column {name!r} holds dates, such as {str(first)!r}; give numbers, such as the days since "
            "the first, or leave it out"
        )


def _check_words(
    name: str, words: list[str], is_categorical: bool, place: Callable[[int], str]
) -> None:
    """Raise UserError for words, one per row, that are dates, numbers or names of the rows.

    Most of them are enough: a column of dates may have an "unknown".
    """
    if not is_categorical:
        for what, pattern, advice in (
            ("dates", DATE, "give numbers, such as the days since the first,"),
            ("numbers as text", NUMBER_AS_TEXT, "write them with digits and a point alone,"),
        ):
            matching = [word for word in words if pattern.fullmatch(word)]
            if 2 * len(matching) > len(words):
                longest = max(matching, key=len)  # of 999 and 1,000 show the one with the comma
                raise UserError(
                    f"column {name!r} holds {what}, such as {longest!r} in "
                    f"{place(words.index(longest))}; {advice} or leave it out"
                )
    different = len(set(words))
    if different > MOST_WORDS or (different > FEW_WORDS and 2 * different > len(words)):
        raise UserError(
            f"column {name!r} holds {different:,} different words in {len(words):,} rows, such as {words[0]!r}; "
            f"each would be an input. Leave it out, give it as numbers, or sort it into at most {MOST_WORDS} words"
        )
