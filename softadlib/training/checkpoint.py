"""Checkpoints of trainings under way.

A checkpoint is what `torch.save` makes of the state, followed by the SHA-256 of that. It is read by
`torch.load(weights_only=True)` alone, which runs no code. Its life: `RunWriter.checkpoint_for` opens it, an
engine resumes from `.state` and calls `.save` as epochs end, and `RunWriter.flush` deletes it once
the rows of its runs are stored. A state is used only where everything that decides the bits of the
result is the same: protocol, runs, measured epochs, engine, device and torch.
"""

import contextlib
import hashlib
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from softadlib._validation import UserError
from softadlib._workspace import write

State = dict[str, Any]
"""Tensors, arrays, numbers and texts, in dicts and lists."""
INTERVAL = 60.0
"""Seconds between two saves where `checkpoint_every` is auto."""


class NullCheckpoint:
    """A checkpoint that saves nothing and holds no earlier state."""

    state: State | None = None
    """What an earlier call saved: `epoch`, `measured`, and the engine's own `state`."""

    def due(self, epoch: int) -> bool:
        """Tell whether to save at the end of this epoch."""
        return False

    def save(self, state: State) -> None:
        """Save the state at the end of an epoch."""

    def clear(self) -> None:
        """Delete this checkpoint."""


NO_CHECKPOINT = NullCheckpoint()


class Checkpoint(NullCheckpoint):
    """The checkpoint file of one lot of runs.

    Args:
        directory: folder of the file.
        fingerprint: of the protocol; the file's name begins with it.
        facts: must be equal for an earlier state to be used. The file's name ends with their hash.
        every: epochs between two saves, or "auto" for one a minute.
    """

    def __init__(self, directory: Path, fingerprint: str, facts: dict[str, Any], every: int | str):
        text = json.dumps({"fingerprint": fingerprint, **facts}, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = directory / f"{fingerprint}-{name}.pt"
        self.facts, self.every = json.loads(text), every
        self.saved = time.monotonic()
        self.state = self._load()

    def due(self, epoch: int) -> bool:
        """Tell whether to save at the end of this epoch; never before the first one."""
        if isinstance(self.every, str):  # auto
            return epoch > 0 and time.monotonic() - self.saved >= INTERVAL
        return epoch > 0 and epoch % self.every == 0

    def save(self, state: State) -> None:
        """Replace the file. A failure is ignored: the rows are what matters, and may still fit."""
        with contextlib.suppress(UserError):
            write(self.path, serialize({"facts": self.facts, **state}))
        self.saved = time.monotonic()

    def _load(self) -> State | None:
        """Read the file; None where there is none, or one that is damaged or of other facts."""
        try:
            state = deserialize(self.path.read_bytes())
        except OSError:
            return None
        if state is None or state.get("facts") != self.facts:
            return None
        measured = tree_map(torch.Tensor.numpy, state.get("measured", {}))
        return {**state, "measured": measured}

    def clear(self) -> None:
        """Delete the file, and its folder where that leaves none."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self.path.parent.rmdir()


def serialize(state: State) -> bytes:
    """Return the bytes of a checkpoint: torch's own format, then its SHA-256."""
    content = io.BytesIO()
    torch.save(
        tree_map(lambda v: torch.from_numpy(v) if isinstance(v, np.ndarray) else v, state), content
    )
    with content.getbuffer() as view:
        digest = hashlib.sha256(view).digest()
    content.write(digest)
    return content.getvalue()


def deserialize(content: bytes) -> State | None:
    """Return the state in `content`; None unless it is whole. Arrays come back as tensors."""
    body, digest = content[:-32], content[-32:]
    if hashlib.sha256(body).digest() != digest:  # torch.load would read a flipped bit silently
        return None
    try:
        state = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception:  # a foreign file; its work can be done again
        return None
    return state if isinstance(state, dict) else None
