"""Warnings about data of your own: allowed, and probably a mistake."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from softadlib.workbook.data.columns import FEWEST_ROWS, LEADING_ZERO, has_codes, is_text
from softadlib.workbook.data.datasets import TableData, data_of
from softadlib.workbook.data.images import (
    ImageFolder,
    Images,
    find_images,
    load_images,
    own_folder,
    visible_files,
    visible_folders,
)
from softadlib.workbook.data.tables import TABLES, TEXT_INPUTS, read_table

if TYPE_CHECKING:
    import pandas as pd

SEGMENTATION = {"images", "image", "masks", "mask", "labels", "annotations", "targets", "input"}
"""Folders of images and of what belongs to them, which are no classes."""
MISSING_CODES = (99, 999, 9999, 99999)
"""Numbers, also with a minus, that some write where a value is missing."""


def data_warnings(name: str, folder: str = "", table: str = "", target: str = "") -> list[str]:
    """Return a line for everything in data of your own that may be a mistake.

    The arguments are those of a protocol. Of built-in sets there is none.
    """
    data = data_of(name, folder, table, target)
    if isinstance(data, TableData) and data.table not in TABLES:
        return table_warnings(read_table(data.table, target).columns)
    if folder:
        place = own_folder(folder)
        found = find_images(place)
        lines = [*left_out(place, found), *class_warnings(found)]
        lines += copy_warnings(load_images(name, folder))
        return [f"{place}: {line}" for line in lines]
    return []


def table_warnings(cleaned: "pd.DataFrame") -> list[str]:
    """Return warnings about cleaned columns, of which the last holds the classes."""
    target = cleaned.iloc[:, -1]
    lines = spelling_warnings(target.cat.categories)
    for name, column in cleaned.iloc[:, :-1].items():
        if column.dtype == "category":
            lines += word_warnings(column)
        elif numbers_rows(column):
            lines.append(f"column {name!r} numbers the rows; leave it out if it names them")
        elif (code := missing_code(column)) is not None:
            rows = int((column == code).sum())
            lines.append(
                f"column {name!r} holds {code:g} in {rows:,} rows, far from all others; leave it empty there if "
                "it stands for a missing value"
            )
        if stands_for(column, target):
            lines.append(
                f"column {name!r} has one value per class; leave it out if it says the class"
            )
    copies = int(cleaned.duplicated().sum())
    if copies:
        repeated = "1 row is a copy" if copies == 1 else f"{copies:,} rows are copies"
        lines.append(f"{repeated} of an earlier row; copies may be in training and test")
    return lines


def word_warnings(column: "pd.Series") -> list[str]:
    """Return warnings about a column of words."""
    lines = []
    words = column.cat.categories.to_series()
    if is_text(column):
        lines.append(
            f"column {column.name!r} has {len(words):,} different words, such as {words.iloc[0][:40]!r}; their "
            f"letters make {TEXT_INPUTS} inputs. Leave it out if it names the rows"
        )
    elif has_codes(words):
        code = words[words.str.match(LEADING_ZERO)].iloc[0]
        lines.append(
            f"column {column.name!r} has leading zeros, such as {code!r}; it counts as words"
        )
    return lines


def spelling_warnings(classes: Iterable[str]) -> list[str]:
    """Return a warning about classes that differ in spelling alone, such as Yes and yes, or 1 and 1.0."""
    spellings: dict[str, list[str]] = {}
    for name in classes:
        spellings.setdefault(_spelt_alike(name), []).append(name)
    return [
        f"the classes {', '.join(map(_visible, names))} differ in spelling alone; write one of them if they are one"
        for names in spellings.values()
        if len(names) > 1
    ]


def _spelt_alike(name: str) -> str:
    """Return what spellings of one class have in common: a number's value, or letters without case and hidden signs."""
    import pandas as pd

    number = pd.to_numeric(name, errors="coerce")
    if pd.notna(number):
        return str(float(number))
    letters = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in letters if unicodedata.category(letter) != "Cf")


def _visible(name: str) -> str:
    """Return the name, with escapes where it has letters that can look the same."""
    return name if name.isascii() else ascii(name)


def missing_code(column: "pd.Series") -> float | None:
    """Return a number such as -999 that stands in several rows, far from all others; else None."""
    if column.dtype.kind != "f":
        return None
    for code in (column.min(), column.max()):
        others = column[column.notna() & (column != code)]
        spread = others.max() - others.min()
        is_far = abs(code - others.median()) > 10 * spread
        if abs(code) in MISSING_CODES and (column == code).sum() > 1 and spread > 0 and is_far:
            return float(code)
    return None


def numbers_rows(column: "pd.Series") -> bool:
    """Tell whether a column holds whole numbers in succession, in any order."""
    if column.dtype.kind != "f" or column.hasnans or len(column) < 2:
        return False
    is_counted = column.max() - column.min() == len(column) - 1 and (column % 1 == 0).all()
    return bool(is_counted and column.is_unique)


def stands_for(column: "pd.Series", target: "pd.Series") -> bool:
    """Tell whether each class has a value of its own in a column."""
    classes = target.nunique()
    if column.nunique() != classes:
        return False
    pairs = target.to_frame("class").assign(value=column).drop_duplicates()
    return bool(len(pairs) == classes)


def left_out(folder: Path, found: ImageFolder) -> list[str]:
    """Return what is not read of a folder of images."""
    lines = []
    others = set(visible_folders(folder)) - {"train", "test"} if found.test else set()
    if others:
        names = ", ".join(sorted(others))
        lines.append(f"{names} is not read; validation images are drawn from train")
    files = set(visible_files(folder)) - set(found.files)
    formats = Counter(
        file.suffix.lower() or "without ending"
        for file in files
        if file.relative_to(folder).parts[0] not in others
    )
    if formats:
        shown = ", ".join(f"{ending} ({count:,})" for ending, count in sorted(formats.items()))
        lines.append(f"files beside the images of the classes are left out: {shown}")
    return lines


def class_warnings(found: ImageFolder) -> list[str]:
    """Return warnings about folders that may be no classes, and about small classes."""
    lines = spelling_warnings(found.train)
    names = ", ".join(found.train)
    inner = [{file.parent.name for file in files} for files in found.train.values()]
    if len(inner[0]) > 1 and all(folders == inner[0] for folders in inner):
        below = ", ".join(sorted(inner[0]))
        lines.append(f"{names} are taken for classes; each holds the folders {below}")
    if SEGMENTATION.issuperset(map(str.lower, found.train)):
        lines.append(f"{names} are taken for classes; sort the images into a folder for each class")
    counts = {name: len(files) for name, files in found.train.items()}
    few = [f"{name} ({count})" for name, count in counts.items() if count < FEWEST_ROWS]
    if few:
        lines.append(
            f"classes with few images, of which a part of a trial may have none: {', '.join(few)}"
        )
    return lines


def copy_warnings(images: Images) -> list[str]:
    """Return warnings about images that are there twice."""
    lines = []
    training = {image.tobytes() for image in images.x_train}
    repeats = len(images.x_train) - len(training)
    if repeats:
        lines.append(
            f"{repeats:,} training images are copies of another; images of other parts, drawn from them, "
            "may be training images, too"
        )
    copies = sum(image.tobytes() in training for image in images.x_test)
    if copies:
        lines.append(f"{copies:,} test images are training images, too")
    return lines
