"""Pictures of one's own, `train/<class>/*` and `test/<class>/*`, as arrays."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from softadlib._validation import UserError
from softadlib.models import torchvision


def read_folder(
    folder: Path, progress: Callable[[int, int], None] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x_train, y_train, x_test, y_test: uint8 images (n, H, W) or (n, H, W, 3) and labels (n,).

    `progress` is called with the numbers of images read and in all. Raises UserError for another
    layout, a class without images, a file that is no image, and images of several sizes or modes.
    """
    layout = f"{folder} must hold train/<class>/ and test/<class>/ with images of several classes"
    walk = partial(torchvision().datasets.ImageFolder, allow_empty=True)
    try:
        train, test = walk(folder / "train"), walk(folder / "test")
    except OSError as error:
        raise UserError(f"{layout} ({error})") from None
    alike = train.classes == test.classes and len(train.classes) > 1
    if not (alike and train.samples and test.samples):
        counts = f"{len(train.samples)} and {len(test.samples)} images"
        raise UserError(f"{layout}; train has {train.classes}, test has {test.classes}: {counts}")
    for part in (train, test):
        present = {label for _, label in part.samples}
        for label, name in enumerate(part.classes):
            if name.startswith(".") or label not in present:
                what = "is hidden" if name.startswith(".") else "has no images"
                raise UserError(
                    f"{Path(part.root) / name} {what}; delete it, or give every class images"
                )
    entries: list[tuple[str, int]] = [*train.samples, *test.samples]
    pictures: list[np.ndarray] = []
    for done, (file, _) in enumerate(entries, 1):
        pictures.append(pixels := read_pixels(file))
        if pixels.shape != pictures[0].shape:
            sizes = f"is {pixels.shape}, the images before it {pictures[0].shape}"
            raise UserError(f"{file} {sizes}; give all one size and mode")
        if progress:
            progress(done, len(entries))
    x, y = np.stack(pictures), np.array([label for _, label in entries])
    cut = len(train.samples)
    return x[:cut], y[:cut], x[cut:], y[cut:]


def read_pixels(file: str) -> np.ndarray:
    """Read one image of 8 bits as (H, W) where it is grey, else as (H, W, 3)."""
    from PIL import Image

    try:
        with Image.open(file) as picture:
            if picture.mode.startswith(("I", "F")):
                deep = f"has pixels of more than 8 bits (mode {picture.mode})"
                raise UserError(f"{file} {deep}; save it with 8 bits")
            pixels = np.asarray(picture.convert("L" if picture.mode in ("1", "L") else "RGB"))
            is_grey = picture.mode == "P" and (pixels == pixels[..., :1]).all()
            return pixels[..., 0] if is_grey else pixels
    except UserError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{file} is not a readable image ({error}); remove or repair it") from None
