"""A changed picture fails: nbval compares what cells print, this plugin what they draw.

A notebook whose kernel does not start or does not answer is run a second time.

    python -m pytest -p tests.figures_check --nbval notebooks

Each page runs once. After nbval has executed and compared a cell, the pictures that it drew are
compared with the stored ones: both as small grey images, cell by cell, within a tolerance that is
above what another build of a font changes and below a line that moves by its own width.
"""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from _pytest.runner import runtestprotocol
from PIL import Image

CELL = 12
"""Pixels on a side that one grey value stands for."""
TOLERANCE = 0.12
"""Largest difference of a grey value, black is 0 and white 1, that is not a change."""
SIZES = 0.03
"""Largest relative difference of width or height: labels of another width move the frame."""


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


tried_again: set[pytest.Collector] = set()
"""Notebooks that were run a second time."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a notebook again from its first cell, once, where its kernel does not start or answer."""
    if type(item).__name__ != "IPyNbCell":
        return None
    notebook = item.parent
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    has_no_kernel = any(report.when == "setup" and report.failed for report in reports)
    if (has_no_kernel or notebook.timed_out) and notebook not in tried_again:
        tried_again.add(notebook)
        notebook.timed_out = False
        notebook.teardown()  # stops its kernel
        runtestprotocol(item, log=False, nextitem=None)  # fails at once, and leaves the notebook
        cells = [cell for cell in item.session.items if cell.parent is notebook]
        for cell in cells[: cells.index(item)]:
            runtestprotocol(cell, log=False, nextitem=item)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
