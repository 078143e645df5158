"""Image sets by name: those of torchvision, and folders of your own.

A set of torchvision is read from the files that torchvision unpacks below the data root. Your own
images are those of the protocol's `folder`, `train/<class>/*` and `test/<class>/*`.
"""

import functools
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from softadlib._files import check_writable, data_root, home
from softadlib._validation import MissingData, UserError
from softadlib.models import torchvision


@dataclass(frozen=True)
class Images:
    """uint8 images (n, C, H, W) and labels (n,) of a training and a test part.

    The parts become views of one array, `pool` (training part first), so that a set costs its bytes
    once however many trials share it.
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
        return int(max(self.y_train.max(), self.y_test.max())) + 1

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
    """Paths below the data root that the loader reads; empty for a set that a package brings."""
    size: str
    """Number and size of the images, in words."""


_fashionmnist, _svhn, _cifar10, _cifar100 = (
    partial(_from_torchvision, name) for name in ("FashionMNIST", "SVHN", "CIFAR10", "CIFAR100")
)
IMAGES: dict[str, ImageSet] = {
    "digits": ImageSet(_digits, (), "1,797 of 8 × 8"),
    "fashionmnist": ImageSet(_fashionmnist, ("FashionMNIST/raw",), "70,000 of 28 × 28"),
    "svhn": ImageSet(_svhn, ("train_32x32.mat", "test_32x32.mat"), "99,289 of 32 × 32 × 3"),
    "cifar10": ImageSet(_cifar10, ("cifar-10-batches-py",), "60,000 of 32 × 32 × 3"),
    "cifar100": ImageSet(_cifar100, ("cifar-100-python",), "60,000 of 32 × 32 × 3"),
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
def _load(name: str, download: bool = False) -> Images:
    """Call a set's loader; one line says what to do where its files are missing or broken."""
    root, prepare_it = data_root(), f"softad data prepare {name}"
    if not download and available(name) == "missing":
        raise MissingData(
            f"{name} is not under {root}; get it: {prepare_it} (or set SOFTAD_DATA to where it lies)"
        )
    try:
        return IMAGES[name].load(root, download)
    except UserError:
        raise
    except Exception as error:  # urllib, ssl, tarfile, pickle, scipy: whatever a loader raises
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    files = ", ".join(str(root / file) for file in IMAGES[name].files)
    if download:
        raise UserError(
            f"{name} could not be downloaded ({what}); check the network, or copy its files to {files}"
        )
    raise UserError(f"{name} is broken ({what}); delete {files} and run: {prepare_it}")


def _of_arrays(
    x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> Images:
    """Return images with their channels first, of images (n, H, W) or (n, H, W, C)."""
    parts = [x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2) for x in (x_train, x_test)]
    return Images(parts[0], y_train, parts[1], y_test)


def _file_state(path: Path) -> tuple[Path, int]:
    """Return the name of a file and when it changed; of a link without a target, the link."""
    return path, path.stat(follow_symlinks=path.exists()).st_mtime_ns


def class_folders(part: Path) -> list[str]:
    """Return the names of the classes in a part of a folder, sorted; hidden folders are none."""
    return sorted(path.name for path in part.iterdir() if path.is_dir() and path.name[0] != ".")


@functools.lru_cache(maxsize=1)
def _read_folder(folder: Path, files: frozenset[tuple[Path, int]]) -> Images:
    """Read `train/<class>/*` and `test/<class>/*`.

    `files` and when each was changed are part of the cache's key, so that changed files are read again.
    Raises UserError for another layout, a class without images, a file that is no image, and images
    of several sizes or modes.
    """
    layout = f"{folder} must hold train/<class>/ and test/<class>/ with images of several classes"

    class Visible(torchvision().datasets.ImageFolder):  # type: ignore[misc]
        def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
            """Return the classes without hidden folders, such as .ipynb_checkpoints."""
            classes = class_folders(Path(directory))
            return classes, {name: i for i, name in enumerate(classes)}

    try:
        parts = [Visible(folder / part, loader=_read_pixels) for part in ("train", "test")]
    except OSError as error:
        raise UserError(f"{layout} ({str(error).splitlines()[0]})") from None
    names = [part.classes for part in parts]
    if names[0] != names[1] or len(names[0]) < 2:
        raise UserError(f"{layout}; train has {names[0]}, test has {names[1]}")
    pictures: list[np.ndarray] = []
    for part in parts:
        for (file, _), (pixels, _) in zip(part.samples, part):
            pictures.append(pixels)
            if pixels.shape != pictures[0].shape:
                sizes = f"is {pixels.shape}, the images before it {pictures[0].shape}"
                raise UserError(f"{file} {sizes}; give all one size and mode")
    y_train, y_test = (np.array(part.targets) for part in parts)
    cut = len(y_train)
    return _of_arrays(np.stack(pictures[:cut]), y_train, np.stack(pictures[cut:]), y_test)


def _read_pixels(file: str) -> np.ndarray:
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

    Raises UserError where the download is refused or a file is broken.
    """
    check_writable(data_root())
    data_root().mkdir(parents=True, exist_ok=True)
    _load(name, download=True)


def available(name: str) -> str:
    """Return `embedded`, `downloaded` or `missing`."""
    files = IMAGES[name].files
    if not files:
        return "embedded"
    complete = all((data_root() / file).exists() for file in files)
    return "downloaded" if complete else "missing"
