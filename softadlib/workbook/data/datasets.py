"""What data a protocol trains on: points that are drawn, images, or a table.

A new set is an entry of `synthetic.SYNTHETIC`, `images.IMAGES` or `tables.TABLES`. Your own images and
tables are named in a protocol.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from softadlib._validation import MissingData, UserError, choose, whole
from softadlib.trainer.splits import PARTS, Splits
from softadlib.workbook.data.images import IMAGES, load_images, own_folder
from softadlib.workbook.data.make_splits import image_splits, synthetic_splits, table_splits
from softadlib.workbook.data.synthetic import EVEN_SETS, SYNTHETIC
from softadlib.workbook.data.tables import TABLES, is_table, read_table, table_digest, table_file


def dataset_names() -> list[str]:
    """Return names of the synthetic sets, the built-in image sets and the built-in tables."""
    return [*SYNTHETIC, *IMAGES, *TABLES]


@dataclass(frozen=True)
class Data:
    """The data of a protocol: where they come from, and how a trial is made of them."""

    name: str
    cheap: ClassVar[bool] = False
    """Whether a training is short, so that a process may be given several."""
    takes_label_noise: ClassVar[bool] = True

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Raise UserError for numbers of samples, of train, val and test, that these data cannot have."""
        for split, size in zip(PARTS, sizes):
            if size:  # 0 takes all that there are
                whole(f"n_{split}", size, 2)

    def digest(self) -> str:
        """Return a hash of what the data hold, wherever they lie; "" where the name says it.

        Raises MissingData for data that are not there.
        """
        return ""

    def splits(self, seeds: Sequence[int], sizes: Sequence[int], label_noise: float) -> Splits:
        """Return the data of one trial per seed, on the CPU."""
        raise NotImplementedError

    def place(self) -> dict[str, str]:
        """Return the fields of a protocol that name it by an absolute path, for another workbook."""
        return {}


@dataclass(frozen=True)
class DrawnPoints(Data):
    """A synthetic set: every trial draws its own points."""

    cheap: ClassVar[bool] = True

    def check_sizes(self, sizes: Sequence[int]) -> None:
        for split, size in zip(PARTS, sizes):
            whole(f"n_{split}", size, 2)
            if self.name in EVEN_SETS and size % 2:
                halves = f"even for {self.name}, half of it for each class"
                raise UserError(f"n_{split} must be {halves}, got {size}")

    def splits(self, seeds: Sequence[int], sizes: Sequence[int], label_noise: float) -> Splits:
        return synthetic_splits(self.name, seeds, label_noise, sizes)


@dataclass(frozen=True)
class ImageData(Data):
    """A built-in set of images, or with `folder` your own, `train/<class>/*` and `test/<class>/*`."""

    folder: str = ""
    takes_label_noise: ClassVar[bool] = False

    def digest(self) -> str:
        return load_images(self.name, self.folder).digest if self.folder else ""

    def splits(self, seeds: Sequence[int], sizes: Sequence[int], label_noise: float) -> Splits:
        return image_splits(load_images(self.name, self.folder), seeds, sizes)

    def place(self) -> dict[str, str]:
        return {"folder": str(own_folder(self.folder))} if self.folder else {}


@dataclass(frozen=True)
class TableData(Data):
    """A table, a file or the name of one, whose column `target` holds the classes; "" is the last one."""

    table: str = ""
    target: str = ""

    def digest(self) -> str:
        return table_digest(self.table, self.target)

    def splits(self, seeds: Sequence[int], sizes: Sequence[int], label_noise: float) -> Splits:
        return table_splits(read_table(self.table, self.target), seeds, sizes, label_noise)

    def place(self) -> dict[str, str]:
        return {"table": str(table_file(self.table))} if self.table != self.name else {}


def data_of(name: str, folder: str = "", table: str = "", target: str = "") -> Data:
    """Return the data that a protocol's dataset, `folder`, `table` and `target` lead to.

    A file that is missing is refused where it is read: stored results can be drawn without it.

    Raises UserError for a folder or table of a known set, and MissingData for an unknown name.
    """
    if folder and table:
        raise UserError("folder and table are two sets of data; give one of them")
    known = name in SYNTHETIC or name in IMAGES
    if known and (folder or table):
        own = "folder" if folder else "table"
        raise UserError(f"{own} is for your own data, {name!r} is a known set; rename it")
    if table or (not known and not folder and is_table(name)):
        return TableData(name, table or name, target)
    if target:
        raise UserError(f"target is the class column of a table; {name} has none")
    if name in SYNTHETIC:
        return DrawnPoints(name)
    if name in IMAGES or folder:
        return ImageData(name, folder)
    try:
        choose("dataset", name, dataset_names())
    except UserError as error:
        way_out = "your own data: folder: DIR (images) or table: FILE in the profile"
        raise MissingData(f"{error}; {way_out}") from None
    raise AssertionError(name)
