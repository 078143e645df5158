"""Trainings under way as files: what `torch.save` makes of their state, believed only when whole.

Read by `torch.load(weights_only=True)` alone, which runs no code. A state is gone on from where
everything that decides its bits is the same: protocol, runs, epochs measured, engine, device, torch.
"""

import contextlib
import hashlib
import io
import json
import time
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pandas as pd
import torch

from softadlib._validation import UserError
from softadlib.results.table import merge
from softadlib.training.device import device_name
from softadlib.training.engines.base import Keeper, State
from softadlib.training.protocol import Protocol, Run

SECONDS = 60.0
"""Between two saves where the protocol names no number of epochs."""
SHARE = 30
"""Times as long as a save takes is waited for the next one at least, there."""


class CheckpointStore(typing.Protocol):
    """Where states lie by name, and rows: a `place.ResultFolder`, or what stands for it on another machine."""

    @property
    def fingerprint(self) -> str:
        """Of the protocol whose states these are."""

    def read_checkpoint(self, name: str) -> bytes | None:
        """None where there is none."""

    def save_checkpoint(self, name: str, content: bytes) -> None:
        """Keep it for whoever goes on. Raises UserError."""

    def drop_checkpoint(self, name: str) -> None:
        """It has served."""

    def save_part(self, rows: pd.DataFrame) -> None:
        """Keep rows of runs that have ended."""


class Checkpoint(Keeper):
    """The file of one lot. `facts` must be alike for its state to be gone on from; `every` epochs."""

    def __init__(
        self, shelf: CheckpointStore, facts: dict[str, Any], epochs: int, every: int | str
    ):
        self.shelf, self.epochs, self.every = shelf, epochs, every
        text = json.dumps(facts, sort_keys=True)
        self.name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.facts, self.pause, self.saved = json.loads(text), SECONDS, time.monotonic()
        self.found = self._read()

    def due(self, epoch: int) -> bool:
        """Never at the start, nor at the end, whose rows are stored."""
        if not 0 < epoch < self.epochs:
            return False
        if isinstance(self.every, str):  # auto
            return time.monotonic() - self.saved >= self.pause
        return epoch % self.every == 0

    def save(self, state: State) -> None:
        """Whole or not at all; a disk that is full now may not be so when rows are stored."""
        started = time.monotonic()
        with contextlib.suppress(UserError):
            self.shelf.save_checkpoint(self.name, packed({"facts": self.facts, **state}))
        self.saved = time.monotonic()
        self.pause = max(SECONDS, SHARE * (self.saved - started))

    def _read(self) -> State | None:
        content = self.shelf.read_checkpoint(self.name)
        state = None if content is None else unpacked(content)
        return state if state and state.get("facts") == self.facts else None

    def drop(self) -> None:
        self.shelf.drop_checkpoint(self.name)


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


class RunWriter:
    """Where the rows and the states of a sweep go: to `save`, and to `shelf` if there is one.

    Rows of runs trained one by one wait a minute for each other, unless a number of epochs is named.
    """

    def __init__(
        self,
        protocol: Protocol,
        save: Callable[[pd.DataFrame], object] = lambda rows: None,
        shelf: CheckpointStore | None = None,
    ):
        self.protocol, self.save, self.shelf = protocol, save, shelf
        self.waiting: list[tuple[pd.DataFrame, Keeper]] = []
        self.notes: list[Keeper] = []
        self.saved, self.resumed = time.monotonic(), 0

    def keeper(
        self,
        runs: Sequence[Run],
        engine: str,
        device: torch.device,
        eval_epochs: Collection[int] = (),
        **more: str,
    ) -> Keeper:
        """Of a lot of runs; its state, if an earlier one was left. `more`: what else it depends on."""
        facts = {
            "runs": [r.key for r in runs],
            "measured": sorted(eval_epochs),
            "engine": engine,
            **more,
        }
        made = self._keeper(device, facts)
        self.resumed += made.found["epoch"] * len(runs) if made.found else 0
        return made

    def note(self, run: Run, device: torch.device, **what: str) -> Keeper:
        """Of what came of one run, to be kept until more of its kind is together."""
        self.notes.append(self._keeper(device, {"of": run.key, **what}))
        return self.notes[-1]

    def drop_notes(self) -> None:
        """All that they were kept for is stored."""
        while self.notes:
            self.notes.pop().drop()

    def _keeper(self, device: torch.device, facts: dict[str, Any]) -> Keeper:
        every = self.protocol.checkpoint_every
        if self.shelf is None or not every:
            return Keeper()
        where = {"device": device_name(device), "torch": torch.__version__}
        facts = {"fingerprint": self.shelf.fingerprint, **facts, **where}
        return Checkpoint(self.shelf, facts, self.protocol.epochs, every)

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
            keeper.drop()
        self.waiting, self.saved = [], time.monotonic()
