"""What is allowed in data of your own and may be a mistake: said, and not refused."""

import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from softadlib.workbook.data.datasets import table_of
from softadlib.workbook.data.images import class_folders, load_images, own_folder
from softadlib.workbook.data.tables import FEWEST_ROWS, TABLES, read_frame, table_file

if TYPE_CHECKING:
    import pandas as pd


def doubts_about(name: str, folder: str = "", table: str = "", target: str = "") -> list[str]:
    """Return a line for everything in data of your own that is allowed but may be a mistake.

    The arguments are those of a protocol. Of built-in sets there is none.
    """
    own = table_of(name, folder, table)
    if own and own not in TABLES:
        frame = read_frame(table_file(own))
        return table_doubts(frame, target or str(frame.columns[-1]))
    return folder_doubts(name, folder) if folder else []


def table_doubts(frame: "pd.DataFrame", target: str) -> list[str]:
    """Return a line for everything that is allowed but may be a mistake."""
    import pandas as pd

    lines = []
    names = pd.to_numeric(frame.columns.to_series(), errors="coerce").dropna()
    if len(names) == 1 or (names.diff().dropna() != 1).any():
        lines.append(
            f"column {names.index[0]!r} is called by a number; the first line must be names"
        )
    if frame[target].astype(str).eq(target).any():
        lines.append(f"the target {target!r} is one of its classes; the first line must be names")
    for name, column in frame.items():
        lines += _column_doubts(str(name), column, name == target)
        if name != target and _stands_for(column, frame[target]):
            lines.append(
                f"column {name!r} has one value per class; leave it out if it says the class"
            )
    copies = int(frame.duplicated().sum())
    if copies:
        lines.append(
            f"{copies:,} rows are copies of an earlier row; copies may be in training and test"
        )
    inputs = frame.drop(columns=target)
    contrary = int((inputs.duplicated(keep=False) & ~frame.duplicated(keep=False)).sum())
    if contrary:
        lines.append(f"{contrary:,} rows have the inputs of another row and another class")
    return lines


def _column_doubts(name: str, column: "pd.Series", is_target: bool) -> list[str]:
    """Return doubts about one column."""
    import pandas as pd

    lines = []
    if pd.api.types.is_numeric_dtype(column):
        values = column.astype(float)
        steps = np.diff(np.sort(values))
        if not is_target and len(steps) and (steps == 1).all():
            lines.append(f"column {name!r} numbers the rows; leave it out if it names them")
    else:
        words = sorted(set(column.astype(str)))
        alike: dict[str, list[str]] = {}
        for word in words:
            plain = unicodedata.normalize("NFKC", " ".join(word.split())).casefold()
            alike.setdefault(plain, []).append(word)
        same = [f"{' and '.join(map(repr, group))}" for group in alike.values() if len(group) > 1]
        if same:
            lines.append(f"column {name!r}: {', '.join(same)} count as different words")
        unknown = [word for word in words if word.strip() in ("?", "-", ".", "")]
        if unknown:
            lines.append(
                f"column {name!r}: {unknown[0]!r} counts as a word, not as a missing value"
            )
    if not is_target and column.nunique() == 1:
        lines.append(f"column {name!r} is the same in every row")
    return lines


def _stands_for(column: "pd.Series", target: "pd.Series") -> bool:
    """Tell whether each class has a value of its own in a column."""
    pairs = target.to_frame("class").assign(value=column).drop_duplicates()
    return bool(len(pairs) == column.nunique() == target.nunique())


def folder_doubts(name: str, given: str) -> list[str]:
    """Return what is left out of a folder of images, or stands in it twice, a line each.

    Args:
        name: of the dataset.
        given: the protocol's `folder`.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    images = load_images(name, given)
    folder = own_folder(given)
    lines = []
    others = {path.name for path in folder.iterdir() if path.is_dir()} - {"train", "test"}
    if shown := sorted(other for other in others if other[0] != "."):
        lines.append(
            f"{folder}: {', '.join(shown)} is not read; validation images are drawn from train"
        )
    files = [path for part in ("train", "test") for path in (folder / part).glob("*/**/*")]
    files = [path for path in files if path.is_file() and path.name[0] != "."]
    left_out = Counter(p.suffix.lower() for p in files if p.suffix.lower() not in IMG_EXTENSIONS)
    for ending, count in sorted(left_out.items()):
        lines.append(f"{folder}: {count:,} files of format {ending or 'unknown'} are left out")
    loose = [path for part in ("train", "test") for path in (folder / part).iterdir()]
    loose = [path for path in loose if path.is_file() and path.name[0] != "."]
    if loose:
        lines.append(f"{folder}: {len(loose):,} files beside the folders of classes are left out")
    counts = np.bincount(images.y_train, minlength=images.classes)
    few = [
        f"{name} ({count})"
        for name, count in zip(class_folders(folder / "train"), counts)
        if count < FEWEST_ROWS
    ]
    if few:
        lines.append(
            f"{folder}: classes with few training images, of which a trial may train on none: "
            + ", ".join(few)
        )
    training = {image.tobytes() for image in images.x_train}
    repeats = len(images.x_train) - len(training)
    if repeats:
        lines.append(
            f"{folder}: {repeats:,} training images are copies of another; validation images, drawn from "
            "them, may be training images, too"
        )
    copies = sum(image.tobytes() in training for image in images.x_test)
    if copies:
        lines.append(f"{folder}: {copies:,} test images are training images, too")
    return lines
