"""Image sets by name → arrays, from a prepared file, torchvision's own files, or a folder of one's own.

`<data root>/<name>.npz` with `x_train, y_train, x_test, y_test` is read first: a compute node without
internet needs nothing else. The data root is $SOFTAD_DATA, else `data/` in the workbook.
"""

import functools
import hashlib
import importlib.util
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from softadlib._validation import MissingData, UserError, choose
from softadlib._workspace import check_writable, home, write
from softadlib.data.image_folder import read_folder
from softadlib.data.prepared import read_prepared
from softadlib.data.synthetic import SYNTHETIC
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
        pool, cut = np.concatenate([self.x_train, self.x_test]), len(self.x_train)
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


def data_root() -> Path:
    """Return the folder of the image sets: $SOFTAD_DATA, else `data/` in the workbook."""
    return Path(os.environ.get("SOFTAD_DATA") or home() / "data")


def _channels_first(x: np.ndarray) -> np.ndarray:
    """Turn (n, H, W) or (n, H, W, C) into (n, C, H, W), contiguous."""
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x)


Loader = Callable[[Path, bool], Images]
"""(data root, whether to download) → the images of a set."""


def _from_torchvision(name: str, root: Path, download: bool) -> Images:
    """Read a set of `torchvision.datasets` that takes its part as `train`."""
    make = getattr(torchvision().datasets, name)
    train, test = (make(root, train=part, download=download) for part in (True, False))
    x = [np.asarray(part.data) for part in (train, test)]
    y = [np.asarray(part.targets, dtype=np.uint8) for part in (train, test)]
    return _of_arrays(x[0], y[0], x[1], y[1])


def _svhn(root: Path, download: bool) -> Images:
    """Read SVHN, whose parts have names and whose channels come first."""
    make = torchvision().datasets.SVHN
    train, test = (make(root, split=part, download=download) for part in ("train", "test"))
    y = [np.asarray(part.labels, dtype=np.uint8) for part in (train, test)]
    return Images(train.data, y[0], test.data, y[1])


def _digits_table() -> np.ndarray:
    """Return scikit-learn's bundled digits, 64 pixels and a label in each row: (1797, 65).

    Its file is read where it lies, because importing scikit-learn takes a second of every command.
    """
    spec = importlib.util.find_spec("sklearn")
    for place in (spec and spec.submodule_search_locations) or ():
        file = Path(place) / "datasets/data/digits.csv.gz"
        if file.exists():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    return np.column_stack(load_digits(return_X_y=True))


def _digits(root: Path, download: bool) -> Images:
    """Read scikit-learn's bundled digits: the last fifth of each class is the test part."""
    table = _digits_table()
    x, y = table[:, :-1], table[:, -1]
    x, y = x.reshape(-1, 1, 8, 8).astype(np.uint8), y.astype(np.uint8)
    rank = np.zeros(len(y), dtype=np.int64)  # position of a sample within its class
    for label in range(10):
        rank[y == label] = np.arange((y == label).sum())
    test = rank >= 0.8 * np.bincount(y)[y]
    return Images(x[~test], y[~test], x[test], y[test])


@dataclass(frozen=True)
class ImageSet:
    """A built-in image set: its loader, and what is known of it without its data."""

    load: Loader
    files: tuple[str, ...]
    """Paths below the data root that the loader reads; empty for a set that a package brings."""
    n_train: int
    n_test: int
    shape: tuple[int, int, int] = (3, 32, 32)
    """(channels, height, width) of one image."""
    classes: int = 10

    @property
    def size(self) -> str:
        """Number and size of the images, in words."""
        channels, *pixels = self.shape
        shape = [*pixels, channels] if channels > 1 else pixels
        return f"{self.n_train + self.n_test:,} of {' × '.join(map(str, shape))}"


_fashionmnist, _cifar10, _cifar100 = (
    partial(_from_torchvision, name) for name in ("FashionMNIST", "CIFAR10", "CIFAR100")
)
IMAGES: dict[str, ImageSet] = {
    "digits": ImageSet(_digits, (), 1_440, 357, (1, 8, 8)),
    "fashionmnist": ImageSet(_fashionmnist, ("FashionMNIST/raw",), 60_000, 10_000, (1, 28, 28)),
    "svhn": ImageSet(_svhn, ("train_32x32.mat", "test_32x32.mat"), 73_257, 26_032),
    "cifar10": ImageSet(_cifar10, ("cifar-10-batches-py",), 50_000, 10_000),
    "cifar100": ImageSet(_cifar100, ("cifar-100-python",), 50_000, 10_000, classes=100),
}
"""The built-in sets, in the order in which they are listed; one's own are files and folders."""


def dataset_names() -> list[str]:
    """Return names of the synthetic and the built-in image sets."""
    return [*SYNTHETIC, *IMAGES]


def downloaded_sets() -> list[str]:
    """Return names of the image sets that torchvision downloads."""
    return [name for name, entry in IMAGES.items() if entry.files]


def prepared_file(name: str) -> Path:
    """Return the path of the prepared form of a set."""
    return data_root() / f"{name}.npz"


def own_folder(folder: str) -> Path:
    """Return the path of a protocol's `folder`; a relative one starts at the workbook's root.

    Raises UserError for the home folder of a user whom this machine does not know.
    """
    try:
        return home() / Path(folder).expanduser()
    except RuntimeError:
        raise UserError(f"folder {folder!r}: no such user on this machine; give a path") from None


def is_image_set(name: str) -> bool:
    """Tell whether `name` is a built-in image set, or one of one's own that has been prepared."""
    return name in IMAGES or (isinstance(name, str) and prepared_file(name).exists())


def own_digest(name: str, folder: str = "") -> str:
    """Return `Images.digest` of a set of one's own; "" for a built-in or synthetic one."""
    return "" if name in dataset_names() else load_images(name, folder).digest


def own_image_set(name: str, folder: str = "") -> ImageSet | None:
    """Return the facts of a set of one's own; None for a built-in or synthetic one."""
    if name in dataset_names():
        return None
    images = load_images(name, folder)
    channels, height, width = images.pool.shape[1:]
    sizes = (len(images.x_train), len(images.x_test), (channels, height, width), images.classes)
    return ImageSet(lambda root, download: images, (), *sizes)


def load_images(name: str, folder: str = "") -> Images:
    """Return the arrays of a set: embedded, prepared, in torchvision's own files, or in `folder`.

    Raises UserError naming the file, and what to do, for a set that is not there or is broken.
    """
    path = prepared_file(name)
    return _read(name, folder, path, path.stat().st_mtime_ns if path.exists() else 0)


@functools.lru_cache(maxsize=1)
def _read(name: str, folder: str, path: Path, changed: int) -> Images:
    """Read a set from where it is; `changed` is the time of its prepared file, 0 without one."""
    if name in IMAGES and not IMAGES[name].files:
        return _load(name)
    if changed:
        again = f"delete it and run: softad data prepare {name}"
        again += "" if name in IMAGES else " --from-folder DIR"
        return _of_arrays(*read_prepared(path, again))
    if folder:
        return _of_arrays(*read_folder(own_folder(folder)))
    if name not in IMAGES:
        raise UserError(
            f"{path} is not there; make it: softad data prepare {name} --from-folder DIR"
        )
    return _load(name)


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
            f"{name} could not be had ({what}); check the network, or copy its files to {root}"
        )
    raise UserError(f"{name} is broken ({what}); delete {files} and run: {prepare_it}")


def _of_arrays(
    x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> Images:
    """Return images with their channels first, of images (n, H, W) or (n, H, W, C)."""
    return Images(_channels_first(x_train), y_train, _channels_first(x_test), y_test)


def prepare(
    name: str, folder: str | None = None, progress: Callable[[int, int], None] | None = None
) -> tuple[Path, str]:
    """Write `<data root>/<name>.npz` and return its path and SHA-256.

    From torchvision's files, downloaded and checked by torchvision where missing, or from the images
    of `folder` (`train/<class>/*`, `test/<class>/*`). The file appears whole or not at all. Raises
    UserError where the download is refused, a file is broken or the folder is not laid out so.
    """
    if folder is not None:
        if name in dataset_names() or not re.fullmatch(r"[A-Za-z0-9][\w-]*", name):
            raise UserError(
                f"{name!r} is taken or no plain name; choose another for your own images"
            )
        images = _of_arrays(*read_folder(Path(folder), progress))
    else:
        if name in dataset_names() and name not in downloaded_sets():
            raise UserError(f"{name} needs no preparation; it is made or embedded here")
        try:
            choose("dataset", name, downloaded_sets())
        except UserError as error:
            raise UserError(f"{error}; for images of your own add --from-folder DIR") from None
        check_writable(data_root())
        data_root().mkdir(parents=True, exist_ok=True)
        images = _load(name, download=True)
    x_train, x_test = (x.transpose(0, 2, 3, 1) for x in (images.x_train, images.x_test))
    sink = io.BytesIO()
    np.savez(sink, x_train=x_train, x_test=x_test, y_train=images.y_train, y_test=images.y_test)
    content, path = sink.getvalue(), prepared_file(name)
    write(path, content)
    return path, hashlib.sha256(content).hexdigest()


def available(name: str) -> str:
    """Return `embedded`, `prepared`, `downloaded` or `missing`."""
    files = IMAGES[name].files
    if not files:
        return "embedded"
    if prepared_file(name).exists():
        return "prepared"
    complete = all((data_root() / file).exists() for file in files)
    return "downloaded" if complete else "missing"
