"""Trainings under way as files: what `torch.save` makes of their state, believed only when whole.

Read by `torch.load(weights_only=True)` alone, which runs no code. A state is gone on from where
everything that decides its bits is the same: protocol, runs, epochs measured, engine, device, torch.
"""

import contextlib
import hashlib
import io
import json
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pandas as pd
import torch

from .errors import UserError
from .protocol import Protocol, Run
from .provenance import device_name
from .recipe import Keeper, State
from .store import Place, merge

SECONDS = 60.0
"""Between two saves where the protocol names no number of epochs."""
SHARE = 30
"""Times as long as a save takes is waited for the next one at least, there."""


class Checkpoint(Keeper):
    """The file of one lot. `facts` must be alike for its state to be gone on from; `every` epochs."""

    def __init__(self, place: Place, facts: dict[str, Any], epochs: int, every: int | str):
        self.place, self.epochs, self.every = place, epochs, every
        text = json.dumps(facts, sort_keys=True)
        self.name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.facts, self.pause, self.saved = json.loads(text), SECONDS, time.monotonic()
        self.found = self._read() if every else None

    def due(self, epoch: int) -> bool:
        """Never at the start, nor at the end, whose rows are stored."""
        if not 0 < epoch < self.epochs or not self.every:
            return False
        if isinstance(self.every, str):  # auto
            return time.monotonic() - self.saved >= self.pause
        return epoch % self.every == 0

    def save(self, state: State) -> None:
        """Whole or not at all; a disk that is full now may not be so when rows are stored."""
        started = time.monotonic()
        with contextlib.suppress(UserError):
            self.place.save_checkpoint(self.name, packed({"facts": self.facts, **state}))
        self.saved = time.monotonic()
        self.pause = max(SECONDS, SHARE * (self.saved - started))

    def _read(self) -> State | None:
        content = self.place.read_checkpoint(self.name)
        state = None if content is None else unpacked(content)
        return state if state and state.get("facts") == self.facts else None

    def drop(self) -> None:
        """The rows are stored: nobody goes on from here."""
        self.place.drop_checkpoint(self.name)


def packed(state: State) -> bytes:
    """A file for `torch.load`, and the SHA-256 of it at the end."""
    content = io.BytesIO()
    torch.save(state, content)
    with content.getbuffer() as view:
        digest = hashlib.sha256(view).digest()
    content.write(digest)
    return content.getvalue()


def unpacked(content: bytes) -> State | None:
    """What `packed` was given; None for anything else."""
    body, digest = content[:-32], content[-32:]
    if hashlib.sha256(body).digest() != digest:
        return None
    try:
        state = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception:  # whatever is in there, the work can be done again
        return None
    return state if isinstance(state, dict) else None


class Desk:
    """Where the rows and the states of a sweep go: to `save`, and to files of `place` if there is one.

    Rows of runs trained one by one wait a minute for each other, unless a number of epochs is named.
    """

    def __init__(
        self,
        protocol: Protocol,
        save: Callable[[pd.DataFrame], object] = lambda rows: None,
        place: Place | None = None,
    ):
        self.protocol, self.save, self.place = protocol, save, place
        self.waiting: list[tuple[pd.DataFrame, Keeper]] = []
        self.saved, self.resumed = time.monotonic(), 0

    def keeper(
        self, runs: Sequence[Run], engine: str, device: torch.device, eval_epochs: Collection[int]
    ) -> Keeper:
        """Of a lot of runs; its state, if an earlier one was left."""
        if self.place is None:
            return Keeper()
        facts = {
            "fingerprint": self.place.fingerprint,
            "runs": [r.key for r in runs],
            "measured": sorted(eval_epochs),
            "engine": engine,
            "device": device_name(device),
            "torch": torch.__version__,
        }
        every = self.protocol.checkpoint_every
        made = Checkpoint(self.place, facts, self.protocol.epochs, every)
        self.resumed += made.found["epoch"] * len(runs) if made.found else 0
        return made

    def put(self, rows: pd.DataFrame, keeper: Keeper) -> None:
        """Take the rows of a lot that has ended."""
        self.waiting.append((rows, keeper))
        explicit = self.protocol.checkpoint_every not in ("auto", 0)
        if explicit or time.monotonic() - self.saved > SECONDS:
            self.flush()

    def flush(self) -> None:
        """Store what waits; its states have served."""
        if self.waiting:
            self.save(merge([rows for rows, _ in self.waiting]))
        for _, keeper in self.waiting:
            if isinstance(keeper, Checkpoint):
                keeper.drop()
        self.waiting, self.saved = [], time.monotonic()
