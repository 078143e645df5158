"""Image sets by name: those of torchvision, and folders of your own.

A set of torchvision is read from the files that torchvision unpacks below the data root. Your own
images are those of the protocol's `folder`, `train/<class>/*` and `test/<class>/*`, or `<class>/*`.
"""

import functools
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from softadlib._files import check_writable, data_root, home
from softadlib._validation import MissingData, UserError
from softadlib.models import torchvision
from softadlib.workbook.data.faults import raise_all


@dataclass(frozen=True)
class Images:
    """uint8 images (n, C, H, W) and labels (n,) of a training and a test part.

    The test part of a folder of classes alone is empty: each trial splits the training part. The parts
    become views of one array, `pool` (training part first), so that a set costs its bytes once however
    many trials share it.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    pool: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pool = np.concatenate([self.x_train, self.x_test])
        cut = len(self.x_train)
        for name, value in (("pool", pool), ("x_train", pool[:cut]), ("x_test", pool[cut:])):
            object.__setattr__(self, name, value)

    @property
    def classes(self) -> int:
        return int(max(self.y_train.max(), self.y_test.max(initial=0))) + 1

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of images and labels."""
        content = hashlib.sha256(str((self.x_train.shape, self.x_test.shape)).encode())
        for array in (self.pool, self.y_train.astype(np.int64), self.y_test.astype(np.int64)):
            content.update(np.ascontiguousarray(array).data)
        return content.hexdigest()


Loader = Callable[[Path, bool], Images]
"""(data root, whether to download) → the images of a set."""


def _from_torchvision(name: str, root: Path, download: bool) -> Images:
    """Read a set of `torchvision.datasets`; SVHN names its parts and has its channels first."""
    make = getattr(torchvision().datasets, name)
    kind = np.uint8
    if name == "SVHN":
        train, test = (make(root, split=part, download=download) for part in ("train", "test"))
        return Images(train.data, train.labels.astype(kind), test.data, test.labels.astype(kind))
    train, test = (make(root, train=part, download=download) for part in (True, False))
    y_train, y_test = (np.asarray(part.targets, dtype=kind) for part in (train, test))
    return _of_arrays(np.asarray(train.data), y_train, np.asarray(test.data), y_test)


def _digits(root: Path, download: bool) -> Images:
    """Read scikit-learn's bundled digits: the last fifth of each class is the test part."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = x.reshape(-1, 1, 8, 8).astype(np.uint8), y.astype(np.uint8)
    rows = [np.flatnonzero(y == label) for label in range(10)]
    test = np.sort(np.concatenate([r[math.ceil(0.8 * len(r)) :] for r in rows]))
    train = np.setdiff1d(np.arange(len(y)), test)
    return Images(x[train], y[train], x[test], y[test])


@dataclass(frozen=True)
class ImageSet:
    """A built-in image set: its loader, and what is known of it without its data."""

    load: Loader
    files: tuple[str, ...]
    """Files below the data root that show that the set is there; empty for one that a package brings."""
    size: str
    """Number and size of the images, in words."""


_fashionmnist, _svhn, _cifar10, _cifar100 = (
    partial(_from_torchvision, name) for name in ("FashionMNIST", "SVHN", "CIFAR10", "CIFAR100")
)
IMAGES: dict[str, ImageSet] = {
    "digits": ImageSet(_digits, (), "1,797 of 8 × 8"),
    "fashionmnist": ImageSet(
        _fashionmnist, ("FashionMNIST/raw/t10k-labels-idx1-ubyte",), "70,000 of 28 × 28"
    ),
    "svhn": ImageSet(_svhn, ("train_32x32.mat", "test_32x32.mat"), "99,289 of 32 × 32 × 3"),
    "cifar10": ImageSet(_cifar10, ("cifar-10-batches-py/test_batch",), "60,000 of 32 × 32 × 3"),
    "cifar100": ImageSet(_cifar100, ("cifar-100-python/test",), "60,000 of 32 × 32 × 3"),
}
"""The built-in sets, in the order in which they are listed; your own are folders."""


def downloaded_sets() -> list[str]:
    """Return names of the image sets that torchvision downloads."""
    return [name for name, entry in IMAGES.items() if entry.files]


def own_folder(folder: str) -> Path:
    """Return the path of a protocol's `folder`; a relative one starts at the workbook's root."""
    return home() / os.path.expanduser(folder)


def load_images(name: str, folder: str = "") -> Images:
    """Return the arrays of a set: of a built-in one by its name, or those of `folder`.

    The last one is kept, as long as no file of the folder changes. Raises UserError naming the file,
    and what to do, for a set that is not there or is broken.
    """
    if folder:
        place = own_folder(folder)
        return _read_folder(place, frozenset(_file_state(path) for path in place.rglob("*")))
    if name not in IMAGES:
        raise UserError(f"{name!r} is no image set; name your images in the profile, folder: DIR")
    return _load(name)


@functools.lru_cache(maxsize=1)
def _load(name: str) -> Images:
    """Read a set; one line says what to do where its files are missing or broken."""
    root = data_root()
    if available(name) == "missing":
        raise MissingData(
            f"{name} is not under {root}; get it: softad data prepare {name} (or set SOFTAD_DATA to where "
            "it lies)"
        )
    try:
        return IMAGES[name].load(root, False)
    except UserError:
        raise
    except Exception as error:  # tarfile, pickle, scipy: whatever a loader raises
        raise UserError(
            f"{name} is broken ({_one_line(error)}); delete {_places(name)} and run: softad data prepare {name}"
        ) from None


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _places(name: str) -> str:
    """Return the folders or files of a set below the data root, with commas."""
    tops = dict.fromkeys(Path(file).parts[0] for file in IMAGES[name].files)
    return ", ".join(str(data_root() / top) for top in tops)


def _of_arrays(
    x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> Images:
    """Return images with their channels first, of images (n, H, W) or (n, H, W, C)."""
    parts = [x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2) for x in (x_train, x_test)]
    return Images(parts[0], y_train, parts[1], y_test)


def _file_state(path: Path) -> tuple[Path, int]:
    """Path and modification time; for a dangling link, those of the link."""
    return path, path.stat(follow_symlinks=path.exists()).st_mtime_ns


IMAGE_FORMATS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of the files that are read, as in `torchvision.datasets.ImageFolder`."""
SPLIT_NAMES = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Folders, in small letters, that are no classes."""


@dataclass(frozen=True)
class ImageFolder:
    """The files of your own images: of each class, in the order in which they are read."""

    train: Mapping[str, Sequence[Path]]
    test: Mapping[str, Sequence[Path]]
    """Empty where the folder holds the classes themselves: `<class>/*`."""

    @property
    def classes(self) -> list[tuple[str, Sequence[Path]]]:
        """Name and files of each class, those of training first."""
        return [*self.train.items(), *self.test.items()]

    @property
    def files(self) -> list[Path]:
        """All files, those of training first."""
        return [file for _, files in self.classes for file in files]


def find_images(folder: Path) -> ImageFolder:
    """Find `train/<class>/*` and `test/<class>/*`, or `<class>/*`; files of other formats are left out.

    Raises a UserError that names all faults of the layout.
    """
    layout = (
        f"{folder} must hold <class>/, or train/<class>/ and test/<class>/, with images "
        f"({', '.join(IMAGE_FORMATS)})"
    )
    if not folder.is_dir():
        raise UserError(f"{layout}; there is no such folder")
    if {"train", "test"} <= set(visible_folders(folder)):
        images = ImageFolder(classes_in(folder / "train"), classes_in(folder / "test"))
    else:
        images = ImageFolder(classes_in(folder), {})
    faults = [f"{name}/ has no images" for name, files in images.classes if not files]
    for name in images.train:
        if name.casefold() in SPLIT_NAMES:
            faults.append(f"{name}/ is no class: give train/ and test/, or folder: {folder / name}")
    if images.test and (differing := sorted(images.train.keys() ^ images.test.keys())):
        faults.append(f"{', '.join(differing[:5])} is in one of train/ and test/ alone")
    if len(images.train) < 2:
        faults.append(f"it has the classes {list(images.train)}; give two or more")
    raise_all([layout, *faults] if faults else [])
    return images


def classes_in(folder: Path) -> dict[str, list[Path]]:
    """Return the images of each class in a folder."""
    return {
        name: [
            file for file in visible_files(folder / name) if file.suffix.lower() in IMAGE_FORMATS
        ]
        for name in visible_folders(folder)
    }


def is_visible(name: str) -> bool:
    """Tell whether a file or folder is yours: not hidden, and not what macOS puts into archives."""
    return not name.startswith(".") and name != "__MACOSX"


def visible_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and is_visible(path.name))


def visible_files(folder: Path) -> list[Path]:
    """Return the files below a folder, in the order of `torchvision.datasets.ImageFolder`."""
    files = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = filter(is_visible, folders)
        files += [Path(place, name) for name in names if is_visible(name)]
    return sorted(files, key=lambda file: (str(file.parent), file.name))


@functools.lru_cache(maxsize=1)
def _read_folder(folder: Path, files: frozenset[tuple[Path, int]]) -> Images:
    """Read your own images.

    `files` and when each was changed are part of the cache's key, so that changed files are read again.
    Raises a UserError that names all files which are no image, or of another size or mode.
    """
    found = find_images(folder)
    pictures: list[np.ndarray] = []
    faults = []
    for file in found.files:
        try:
            pixels = _read_pixels(file)
        except UserError as error:
            faults.append(str(error))
            continue
        if pictures and pixels.shape != pictures[0].shape:
            faults.append(
                f"{file} is {pixels.shape}, the images before it {pictures[0].shape}; give all one size and mode"
            )
            continue
        pictures.append(pixels)
    raise_all(faults)
    y_train, y_test = (
        np.repeat(np.arange(len(split)), [len(files) for files in split.values()])
        for split in (found.train, found.test)
    )
    x = np.stack(pictures)
    return _of_arrays(x[: len(y_train)], y_train, x[len(y_train) :], y_test)


def _read_pixels(file: Path) -> np.ndarray:
    """Read one image of 8 bits, turned as its camera says: (H, W) where it is grey, else (H, W, 3)."""
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as picture:
            mode = picture.mode
            upright = ImageOps.exif_transpose(picture)
            alpha = np.asarray(upright.convert("RGBA"))[..., 3]
            pixels = np.asarray(upright.convert("L" if mode in ("1", "L", "LA") else "RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{file} is not a readable image ({error}); remove or repair it") from None
    if mode.startswith(("I", "F")):
        raise UserError(f"{file} has pixels of more than 8 bits (mode {mode}); save it with 8 bits")
    if alpha.min() < 255:
        raise UserError(
            f"{file} has transparent pixels, which have no colour; give it a background"
        )
    is_grey = mode == "P" and (pixels == pixels[..., :1]).all()
    return pixels[..., 0] if is_grey else pixels


def download(name: str) -> None:
    """Download a set of `torchvision.datasets` to the data root; torchvision checks its files.

    Raises UserError where the download is refused or a file is broken; then nothing is left.
    """
    root = data_root()
    if available(name) == "downloaded":
        _load(name)
        return
    check_writable(root)
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as temporary:
        try:
            IMAGES[name].load(Path(temporary), True)
        except UserError:
            raise
        except Exception as error:  # urllib, ssl, tarfile: whatever a loader raises
            raise UserError(
                f"{name} could not be downloaded ({_one_line(error)}); check the network, or copy its files to "
                f"{_places(name)}"
            ) from None
        shutil.copytree(temporary, root, dirs_exist_ok=True)


def available(name: str) -> str:
    """Return `embedded`, `downloaded` or `missing`."""
    files = IMAGES[name].files
    if not files:
        return "embedded"
    complete = all((data_root() / file).is_file() for file in files)
    return "downloaded" if complete else "missing"
