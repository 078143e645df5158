"""Image sets as one file, `<data root>/<name>.npz`."""

from pathlib import Path

import numpy as np

from softadlib._validation import UserError

KEYS = ("x_train", "y_train", "x_test", "y_test")


def read_prepared(path: Path, again: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x_train, y_train, x_test, y_test: uint8 images (n, H, W) or (n, H, W, C) and labels (n,).

    `again` says how to make the file anew. Raises UserError, naming the file, for anything else.
    """
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            if missing := [key for key in KEYS if key not in file]:
                raise UserError(f"{path} lacks {', '.join(missing)}; {again}")
            x_train, y_train, x_test, y_test = (file[key] for key in KEYS)
    except UserError:
        raise
    except Exception as error:  # zlib, zipfile, numpy: whatever a damaged file makes them raise
        raise UserError(f"{path} is broken ({error}); {again}") from None
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        images = x.dtype == np.uint8 and x.ndim in (3, 4) and x.size
        if not (images and y.shape == (len(x),) and y.dtype.kind in "biufSU"):
            raise UserError(
                f"{path}: x_{part} must be uint8 (n, H, W) or (n, H, W, C), not empty, and y_{part} (n,); "
                f"got {x.dtype} {x.shape} and {y.dtype} {y.shape}; {again}"
            )
        if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] > 4:
            raise UserError(
                f"{path}: x_{part} of shape {x.shape} has its channels first; give (n, H, W, C); {again}"
            )
    classes = np.unique(np.concatenate([y_train, y_test])).tolist()
    if len(classes) < 2 or classes != list(range(len(classes))):
        raise UserError(f"{path}: labels must be 0, 1, … of two classes or more, got {classes[:6]}")
    if x_train.shape[1:] != x_test.shape[1:]:
        sizes = f"{x_train.shape[1:]}, test images {x_test.shape[1:]}"
        raise UserError(f"{path}: training images are {sizes}; give all one size; {again}")
    return x_train, y_train, x_test, y_test
