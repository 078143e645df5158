"""A changed picture fails: nbval compares what cells print, this plugin what they draw.

    python -m pytest -p tests.figures_check --nbval notebooks

Each page runs once. After nbval has executed and compared a cell, the pictures that it drew are
compared with the stored ones: both as small grey images, cell by cell, within a tolerance that is
above what another build of a font changes and below a line that moves by its own width.
"""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import nbval.kernel
import numpy as np
import pytest
from PIL import Image

CELL = 12
"""Pixels on a side that one grey value stands for."""
TOLERANCE = 0.12
"""Largest difference of a grey value, black is 0 and white 1, that is not a change."""
SIZES = 0.03
"""Largest relative difference of width or height: labels of another width move the frame."""
start_kernel = nbval.kernel.start_new_kernel


def start_kernel_twice(*args: Any, **kwargs: Any) -> Any:
    """Start a kernel, a second time where it dies at once: another process may have taken its port."""
    try:
        return start_kernel(*args, **kwargs)
    except RuntimeError:
        return start_kernel(*args, **kwargs)


nbval.kernel.start_new_kernel = start_kernel_twice


def thumbnail(png: bytes, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return mean grey per cell, (rows, columns) in [0, 1], of a PNG on white, scaled to `size` first."""
    with Image.open(io.BytesIO(png)) as image:
        drawn = image.convert("RGBA")
    white = Image.new("RGBA", drawn.size, "white")
    grey = Image.alpha_composite(white, drawn).convert("L")
    width, height = size or drawn.size
    small = grey.resize((width, height)).resize(
        (max(1, width // CELL), max(1, height // CELL)), Image.Resampling.BOX
    )
    return np.asarray(small, dtype=float) / 255


def difference(stored: bytes, fresh: bytes) -> str:
    """Say how far two PNGs are apart; "" where they show the same."""
    sizes = []
    for png in (stored, fresh):
        with Image.open(io.BytesIO(png)) as image:
            sizes.append(image.size)
    if any(abs(a - b) > SIZES * a for a, b in zip(*sizes)):
        return f"its size is {sizes[1]}, stored is {sizes[0]}"
    apart = np.abs(thumbnail(stored) - thumbnail(fresh, sizes[0]))
    if apart.max() <= TOLERANCE:
        return ""
    row, column = np.unravel_index(apart.argmax(), apart.shape)
    place = f"{(column + 0.5) / apart.shape[1]:.0%} from the left, {(row + 0.5) / apart.shape[0]:.0%} from the top"
    return f"{(apart > TOLERANCE).sum()} of {apart.size} cells differ, most {place}"


def pictures(outputs: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield the PNGs among the outputs of a cell."""
    for output in outputs:
        if png := output.get("data", {}).get("image/png"):
            yield base64.b64decode("".join(png))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Compare the pictures of a cell once nbval has run and compared it."""
    result = yield
    if type(item).__name__ == "IPyNbCell" and item.options["check"]:
        stored, fresh = list(pictures(item.cell.outputs)), list(pictures(item.test_outputs))
        if len(stored) != len(fresh):
            item.raise_cell_error(f"{len(fresh)} pictures, stored are {len(stored)}", "")
        for number, pair in enumerate(zip(stored, fresh), 1):
            if words := difference(*pair):
                item.raise_cell_error(f"picture {number} of the cell has changed: {words}", "")
    return result
