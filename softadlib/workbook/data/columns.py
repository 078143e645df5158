"""What the columns of a table are: numbers, dates or words, each with its missing values."""

from typing import TYPE_CHECKING

import numpy as np

from softadlib._validation import UserError, choose
from softadlib.workbook.data.faults import raise_all

if TYPE_CHECKING:
    import pandas as pd

MISSING = ("", "?", ".")
"""Text that stands for a missing value, beside what pandas reads as one: NA, n/a, NaN, None, null."""
ONE_HOT_WORDS = 256
"""Up to this many distinct words, each becomes an input."""
FEW_WORDS = 20
"""Up to this many distinct words, nearly every row may have its own."""
FEWEST_ROWS = 5
"""Rows that a class needs: of 5 the splits have 3, 1 and 1 on average."""
MOSTLY_NUMBERS = 0.9
"""From this share of numbers on, the other values of a column are taken for mistakes."""
LEADING_ZERO = r" *[-+]?0\d"
"""How a code begins that is no number: 007."""
_SIGN = r"[-+−]? ?[$€£]? ?"
_UNIT = r" ?[%$€£]?"
_WHOLE = "([1-9][0-9]{0,2}([SEPARATOR'’ \u00a0\u202f][0-9]{3})+|[0-9]+)"
_ENGLISH = (
    _SIGN
    + "("
    + _WHOLE.replace("SEPARATOR", ",")
    + r"(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"
    + _UNIT
)
_CONTINENTAL = _SIGN + _WHOLE.replace("SEPARATOR", ".") + r"(,[0-9]*)?" + _UNIT


def clean(frame: "pd.DataFrame", target: str) -> "pd.DataFrame":
    """Return the columns of a table as float64 numbers, datetimes or categories (words), `target` last.

    The index of `frame` says where a row stands in its file; its name is "line" or "row". Raises one
    UserError that names every fault of every column.
    """
    import pandas as pd

    choose("class column (target)", target, frame.columns)
    faults = []
    columns = {}
    for name in [*frame.columns.drop(target), target]:
        try:
            columns[name] = (clean_classes if name == target else clean_column)(frame[name])
        except UserError as error:
            faults.append(str(error))
    cleaned = pd.DataFrame(columns, index=frame.index)
    if not faults and frame.index.name == "line" and names_are_a_row(cleaned):
        first = ", ".join(frame.columns)[:80]
        faults.append(f"line 1, {first!r}, is a row; write the names of the columns above it")
    raise_all(faults)
    return cleaned


def clean_column(column: "pd.Series") -> "pd.Series":
    """Return an input column as numbers, datetimes or categories. Raises UserError for a fault."""
    import pandas as pd

    types = pd.api.types
    if column.dtype == "category" or types.is_bool_dtype(column):
        return words_of(column)
    if types.is_numeric_dtype(column):
        return checked_numbers(column)
    if types.is_datetime64_any_dtype(column):
        return column
    if types.is_timedelta64_dtype(column):
        return column.dt.total_seconds()
    if types.is_string_dtype(column) and (numbers := plain_numbers(column)) is not None:
        return checked_numbers(numbers)  # most columns: nothing else is asked of them
    text = text_of(column)
    for parse in (plain_numbers, written_numbers):
        if (numbers := parse(text)) is not None:
            return checked_numbers(numbers)
    refuse_text_among_numbers(text)
    dates = parse_dates(text)
    return words_of(text) if dates is None else dates


def clean_classes(column: "pd.Series") -> "pd.Series":
    """Return the class column as categories. Raises UserError for missing values and small classes."""
    text = text_of(column)
    missing = np.flatnonzero(text.isna())
    if len(missing):
        raise UserError(
            f"the class column {column.name!r} has {len(missing)} missing values, first in "
            f"{place(column, missing[0])}; leave these rows out (empty, ?, NA, None and null count as missing)"
        )
    counts = text.value_counts(sort=False).sort_index()
    if len(counts) < 2:
        raise UserError(
            f"column {column.name!r} holds one class, {counts.index[0]!r}; give two or more"
        )
    small = counts[counts < FEWEST_ROWS]
    if len(small):
        shown = ", ".join(f"{name!r} ({count})" for name, count in small[:5].items())
        raise UserError(
            f"classes of column {column.name!r} have fewer than {FEWEST_ROWS} rows, too few for three "
            f"parts: {shown}{', …' * (len(small) > 5)}; leave them out or join them with another (to "
            "predict a number, sort it into classes first)"
        )
    return words_of(text)


def words_of(column: "pd.Series") -> "pd.Series":
    """Return a column as categories called by text; missing values stay."""
    return column.astype(str).where(column.notna()).astype("category")


def text_of(column: "pd.Series") -> "pd.Series":
    """Return a column as text without spaces around it, `MISSING` ones as missing values."""
    import pandas as pd

    if not pd.api.types.is_hashable(column.dropna().iloc[0] if column.count() else ""):
        kind = type(column.dropna().iloc[0]).__name__
        raise UserError(
            f"column {column.name!r} holds a {kind} in a row; give each of its values a column, or leave it out"
        )
    text = column.astype(str).where(column.notna()).str.strip()
    return text.mask(text.isin(MISSING))


def plain_numbers(text: "pd.Series") -> "pd.Series | None":
    """Return the numbers of a column whose every value is one, else None; a code such as 007 is none."""
    import pandas as pd

    numbers = pd.to_numeric(text, errors="coerce")
    if numbers.count() < text.count() or has_codes(text):
        return None
    return numbers


def has_codes(text: "pd.Series") -> bool:
    """Tell whether a value has leading zeros."""
    return bool(text.dropna().astype(str).str.match(LEADING_ZERO).any())


def written_numbers(text: "pd.Series") -> "pd.Series | None":
    """Return the numbers of a column that are all written for people in the same way, else None.

    For example "1,000", "5%", "$1.50", "−3", or "1.000,5".
    """
    import pandas as pd

    present = text.dropna().astype(str)
    if has_codes(present) or units(present).nunique() > 1:
        return None
    for pattern, point in ((_ENGLISH, "."), (_CONTINENTAL, ",")):
        if present.str.fullmatch(pattern).all():
            digits = present.str.replace("−", "-").str.replace(rf"[^-\d{point}eE]", "", regex=True)
            return pd.to_numeric(digits.str.replace(point, ".")).reindex(text.index)
    return None


def units(text: "pd.Series") -> "pd.Series":
    """Return the signs of per cent and of currencies in each value."""
    return text.str.replace(r"[^%$€£]", "", regex=True)


def refuse_text_among_numbers(text: "pd.Series") -> None:
    """Raise UserError where nearly every value is a number: the others are mistakes, or a row of units."""
    present = text.dropna().astype(str)
    is_number = present.str.fullmatch(_ENGLISH) | present.str.fullmatch(_CONTINENTAL)
    if has_codes(present) or not is_number.mean() >= MOSTLY_NUMBERS:
        return
    if is_number.all():
        unlike = units(present) != units(present).iloc[0]
        first, other = 0, int(np.argmax(unlike))
        if not unlike.any():
            first, other = (
                int(np.argmin(present.str.fullmatch(way))) for way in (_CONTINENTAL, _ENGLISH)
            )
        raise UserError(
            f"column {text.name!r} holds numbers written in more than one way, such as {present.iloc[first]!r} "
            f"and {present.iloc[other]!r} in {place(present, other)}; write all in one way"
        )
    row = int(np.argmin(is_number))
    raise UserError(
        f"column {text.name!r} holds numbers and the text {present.iloc[row][:40]!r} in "
        f"{place(present, row)}; leave it empty if it is missing, or leave the {present.index.name} out"
    )


def checked_numbers(column: "pd.Series") -> "pd.Series":
    """Return numbers as float64, NaN where one is missing. Raises UserError for infinite and huge ones."""
    import pandas as pd

    numbers = column.to_numpy(np.float64, na_value=np.nan)
    too_large = np.flatnonzero(np.abs(numbers) > 1e100)
    if len(too_large):
        row = too_large[0]
        raise UserError(
            f"column {column.name!r} holds {numbers[row]:g} in {place(column, row)}, which is too large to "
            "standardise; repair it, or leave it empty where a value is missing"
        )
    return pd.Series(numbers, column.index, name=column.name)


def parse_dates(text: "pd.Series") -> "pd.Series | None":
    """Return the datetimes of a column whose every value is one in the same format, else None."""
    import pandas as pd

    present = text.dropna().astype(str)
    if not len(present) or not present.str.contains(r"\d\D+\d").all():
        return None
    import skrub  # two seconds

    dates = skrub.to_datetime(text)
    return dates if pd.api.types.is_datetime64_any_dtype(dates) else None


def is_text(column: "pd.Series") -> bool:
    """Tell whether a column has too many words for an input each, or its own in nearly every row."""
    if column.dtype != "category":
        return False
    different = column.nunique()
    return bool(
        different > ONE_HOT_WORDS or (different > FEW_WORDS and 2 * different > column.count())
    )


def names_are_a_row(cleaned: "pd.DataFrame") -> bool:
    """Tell whether the columns' names could be values of theirs: a file without a line of names.

    Texts are left out, of which every one may be another.
    """
    import pandas as pd

    def is_value(name: str, column: "pd.Series") -> bool:
        if column.dtype == "category":
            return name in column.cat.categories
        parse = parse_dates if column.dtype.kind == "M" else plain_numbers
        return parse(pd.Series([name])) is not None

    are_counted = set(cleaned.columns) == {str(i) for i in range(len(cleaned.columns))}
    found = [is_value(*item) for item in cleaned.items() if not is_text(item[1])]
    return not are_counted and len(found) > 1 and all(found)


def place(column: "pd.Series", position: int) -> str:
    """Return where a value stands in its file, such as "line 22"."""
    return f"{column.index.name} {column.index[position]}"
