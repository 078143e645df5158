"""Image sets by name → arrays, from a prepared file, torchvision's own files, or a folder of one's own.

`<data root>/<name>.npz` with `x_train, y_train, x_test, y_test` is read first: a compute node without
internet needs nothing else. The data root is $SOFTAD_DATA, else `data/` in the workbook.
"""

import functools
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from softadlib._validation import MissingData, UserError, choose
from softadlib._workspace import check_writable, home, write
from softadlib.data.synthetic import SYNTHETIC
from softadlib.models import torchvision

KEYS = ("x_train", "y_train", "x_test", "y_test")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


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


def data_root() -> Path:
    """Where image sets lie: $SOFTAD_DATA, else `data/` in the workbook."""
    named = os.environ.get("SOFTAD_DATA")
    return Path(named) if named else home() / "data"


def _channels_first(x: np.ndarray) -> np.ndarray:
    """(n, H, W) or (n, H, W, C) → (n, C, H, W), contiguous."""
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x)


def _from_torchvision(name: str, root: Path, download: bool) -> Images:
    sets = torchvision().datasets
    if name == "svhn":
        parts = [sets.SVHN(root, split=s, download=download) for s in ("train", "test")]
        x, y = [p.data for p in parts], [p.labels for p in parts]
    else:
        make = {
            "fashionmnist": sets.FashionMNIST,
            "cifar10": sets.CIFAR10,
            "cifar100": sets.CIFAR100,
        }[name]
        parts = [make(root, train=t, download=download) for t in (True, False)]
        x, y = [_channels_first(np.asarray(p.data)) for p in parts], [p.targets for p in parts]
    y = [np.asarray(v, dtype=np.uint8) for v in y]
    return Images(x[0], y[0], x[1], y[1])


def _digits() -> Images:
    """scikit-learn's bundled 8 × 8 digits: the last fifth of each class is the test part."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = x.reshape(-1, 1, 8, 8).astype(np.uint8), y.astype(np.uint8)
    rank = np.zeros(len(y), dtype=np.int64)  # how manieth of its class a sample is
    for label in range(10):
        rank[y == label] = np.arange((y == label).sum())
    test = rank >= 0.8 * np.bincount(y)[y]
    return Images(x[~test], y[~test], x[test], y[test])


DOWNLOADED = ("fashionmnist", "svhn", "cifar10", "cifar100")
IMAGES = ("digits", *DOWNLOADED)
SIZES = {"digits": "1,797 of 8 × 8", "fashionmnist": "70,000 of 28 × 28", "svhn": "99,289 of 32 × 32 × 3",
         "cifar10": "60,000 of 32 × 32 × 3", "cifar100": "60,000 of 32 × 32 × 3"}  # fmt: skip


FILES = {
    "fashionmnist": ("FashionMNIST/raw",),
    "svhn": ("train_32x32.mat", "test_32x32.mat"),
    "cifar10": ("cifar-10-batches-py",),
    "cifar100": ("cifar-100-python",),
}
"""Where torchvision lays each set, below the data root."""


def prepared_file(name: str) -> Path:
    """Where the prepared form of a set lies."""
    return data_root() / f"{name}.npz"


def known_images(name: str) -> bool:
    """True for the sets with a name and for one of one's own that has been prepared."""
    return name in IMAGES or (isinstance(name, str) and prepared_file(name).exists())


def load_images(name: str, folder: str = "") -> Images:
    """The arrays of a set: embedded, prepared, in torchvision's own files, or in `folder`.

    Raises UserError naming the file, and what to do, for a set that is not there or is broken.
    """
    if name == "digits":
        return _digits()
    path = prepared_file(name)
    if path.exists():
        return _read_prepared(path, path.stat().st_mtime_ns)
    if folder:
        return _read_folder(Path(folder))
    if name not in DOWNLOADED:
        raise UserError(
            f"{path} is not there; make it: softad data prepare {name} --from-folder DIR"
        )
    return _read_torchvision(name, data_root())


@functools.lru_cache(maxsize=1)
def _read_torchvision(name: str, root: Path) -> Images:
    try:
        return _from_torchvision(name, root, download=False)
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, IndexError) as error:
        if available(name) == "missing":
            raise MissingData(
                f"{name} is not under {root}; get it: softad data prepare {name} "
                "(or set SOFTAD_DATA to where it lies)"
            ) from None
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        files = ", ".join(str(root / f) for f in FILES[name])
        raise UserError(
            f"{name} is broken ({what}); delete {files} and run: softad data prepare {name}"
        ) from None


@functools.lru_cache(maxsize=1)
def _read_prepared(path: Path, changed: int) -> Images:
    again = f"delete it and run: softad data prepare {path.stem}"
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            missing = [k for k in KEYS if k not in file]
            if missing:
                raise UserError(f"{path} lacks {', '.join(missing)}; {again}")
            x_train, y_train, x_test, y_test = (file[k] for k in KEYS)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is broken ({error}); {again}") from None
    for key, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if (
            x.dtype != np.uint8
            or x.ndim not in (3, 4)
            or len(x) != len(y)
            or not len(x)
            or y.ndim != 1
        ):
            raise UserError(
                f"{path}: x_{key} must be uint8 (n, H, W) or (n, H, W, C) and y_{key} (n,), n > 0; "
                f"got {x.dtype} {x.shape} and {y.shape}; {again}"
            )
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
        if name in (*IMAGES, *SYNTHETIC) or not re.fullmatch(r"[A-Za-z0-9][\w-]*", name):
            raise UserError(
                f"{name!r} is taken or no plain name; choose another for your own images"
            )
        images = _from_folder(Path(folder), progress)
    else:
        choose("dataset", name, DOWNLOADED)
        images = _download(name)
    sink = io.BytesIO()
    np.savez(
        sink,
        x_train=np.ascontiguousarray(images.x_train.transpose(0, 2, 3, 1)),
        x_test=np.ascontiguousarray(images.x_test.transpose(0, 2, 3, 1)),
        y_train=images.y_train,
        y_test=images.y_test,
    )
    content = sink.getvalue()
    path = prepared_file(name)
    write(path, content)
    return path, hashlib.sha256(content).hexdigest()


@functools.lru_cache(maxsize=1)
def _read_folder(folder: Path) -> Images:
    return _from_folder(folder, None)


def _download(name: str) -> Images:
    """Through torchvision, which checks what it finds and fetches what is missing."""
    root = data_root()
    check_writable(root)
    root.mkdir(parents=True, exist_ok=True)
    try:
        return _from_torchvision(name, root, download=True)
    except UserError:
        raise
    except Exception as error:  # urllib, ssl, tarfile, scipy: whatever a refused download raises
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(
            f"{name} could not be had ({what}); check the network, or copy its files to {root}"
        ) from None


def _from_folder(folder: Path, progress: Callable[[int, int], None] | None) -> Images:
    """train/<class>/* and test/<class>/* as uint8 arrays; all images of one size and mode."""
    from PIL import Image, UnidentifiedImageError

    layout = f"{folder} must hold train/<class>/ and test/<class>/ with images"
    names = {
        p: sorted(d.name for d in (folder / p).iterdir() if d.is_dir())
        if (folder / p).is_dir()
        else []
        for p in ("train", "test")
    }
    if not names["train"] or names["train"] != names["test"]:
        raise UserError(
            f"{layout}; train has {names['train'] or 'nothing'}, test has {names['test'] or 'nothing'}"
        )
    files = {p: [(f, i) for i, c in enumerate(names[p]) for f in sorted((folder / p / c).iterdir())
                 if f.suffix.lower() in SUFFIXES] for p in names}  # fmt: skip
    if not files["train"] or not files["test"]:
        raise UserError(f"{layout}; no image files were found")
    arrays, total, done, shape = {}, sum(map(len, files.values())), 0, None
    for part, entries in files.items():
        pictures = []
        for file, _ in entries:
            try:
                with Image.open(file) as picture:
                    pixels = np.asarray(
                        picture.convert("L" if picture.mode in ("1", "L", "P", "I;16") else "RGB")
                    )
            except (OSError, UnidentifiedImageError) as error:
                raise UserError(
                    f"{file} is not a readable image ({error}); remove or repair it"
                ) from None
            shape = pixels.shape if shape is None else shape
            if pixels.shape != shape:
                raise UserError(
                    f"{file} is {pixels.shape}, the images before it {shape}; give all one size and mode"
                )
            pictures.append(pixels)
            done += 1
            if progress:
                progress(done, total)
        arrays[part] = _channels_first(np.stack(pictures))
    y = {p: np.array([i for _, i in entries], dtype=np.int64) for p, entries in files.items()}
    return Images(arrays["train"], y["train"], arrays["test"], y["test"])


def available(name: str) -> str:
    """`embedded`, `prepared`, `downloaded` or `missing`."""
    if name == "digits":
        return "embedded"
    if prepared_file(name).exists():
        return "prepared"
    here = name in FILES and all((data_root() / f).exists() for f in FILES[name])
    return "downloaded" if here else "missing"
