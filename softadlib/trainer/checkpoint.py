"""The state of trainings under way: one file, written by `torch.save`, replaced whole."""

import contextlib
import io
import time
import zipfile
from pathlib import Path
from typing import Any

import torch

from softadlib._files import write
from softadlib._validation import UserError

State = dict[str, Any]
"""Tensors, numbers and texts, in dicts and lists."""
FORM = 5
"""Raised when engines save their state in another form: files of an earlier one do not count."""
INTERVAL = 60.0
"""Seconds between two saves where `checkpoint_every` is auto."""


class Checkpoint:
    """The state of a few runs that are trained together.

    Args:
        path: the file; None saves nothing.
        decisive: what decides the bits of the runs. A file with other facts is not used.
        every: epochs between two saves, or "auto" for one a minute.
    """

    def __init__(self, path: Path | None, decisive: State, every: int | str = "auto"):
        self.path = path if every else None
        self.decisive = {"form": FORM, **decisive}
        self.every = every
        self.saved = time.monotonic()

    def load(self) -> State | None:
        """Return the state that an earlier process saved; None where there is none to use.

        A damaged file is ignored: its work is done again.
        """
        if self.path is None or not self.path.exists():
            return None
        try:
            with zipfile.ZipFile(self.path) as file:
                if file.testzip():  # torch.load itself does not check the sums
                    return None
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            return dict(state["state"]) if state["decisive"] == self.decisive else None
        except Exception:  # torch, pickle and zipfile raise many types
            return None

    def due(self, epoch: int) -> bool:
        """Tell whether to save at the end of this epoch; never before the first one."""
        if self.path is None or not epoch:
            return False
        if isinstance(self.every, str):
            return time.monotonic() - self.saved >= INTERVAL
        return epoch % self.every == 0

    def save(self, state: State) -> None:
        """Replace the file. A full disk is no error here: the rows are what matters."""
        if self.path is not None:
            content = io.BytesIO()
            torch.save({"decisive": self.decisive, "state": state}, content)
            with contextlib.suppress(UserError):
                write(self.path, content.getvalue())
            self.saved = time.monotonic()

    def delete(self) -> None:
        """Delete the file, once the rows of its runs are stored or returned."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
