"""The writer of the rows of runs that have ended, and of the checkpoints of runs under way."""

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from softadlib.results import sample_losses
from softadlib.results.table import merge
from softadlib.training.checkpoint import INTERVAL, Checkpoint, NullCheckpoint
from softadlib.training.device import device_name
from softadlib.training.protocol import Protocol, Run

Save = Callable[[pd.DataFrame, pd.DataFrame], object]
"""Called with the rows of runs and with the losses of their single samples, which may be empty."""


class RunWriter:
    """Stores the rows of runs as they end, and hands out checkpoints for those under way.

    Rows of runs trained one by one wait a minute for each other, unless `checkpoint_every` names a
    number of epochs.

    Args:
        protocol: of the runs.
        save: called with rows to store, and with the losses of their single samples.
        directory: folder of the checkpoints; None makes none.
    """

    def __init__(
        self,
        protocol: Protocol,
        save: Save = lambda rows, losses: None,
        directory: Path | None = None,
    ):
        self.protocol, self.save, self.directory = protocol, save, directory
        self.waiting: list[tuple[pd.DataFrame, pd.DataFrame, NullCheckpoint]] = []
        self.saved, self.resumed = time.monotonic(), 0

    def checkpoint_for(
        self,
        runs: Sequence[Run],
        engine: str,
        device: torch.device,
        eval_epochs: Collection[int] = (),
        **facts: str,
    ) -> NullCheckpoint:
        """Open the checkpoint of a lot of runs; `facts` name what else its bits depend on."""
        every = self.protocol.checkpoint_every
        if self.directory is None or not every:
            return NullCheckpoint()
        decisive: dict[str, Any] = {
            "runs": [run.key for run in runs],
            "measured": sorted(eval_epochs),
            "engine": engine,
            **facts,
            "device": device_name(device),
            "torch": torch.__version__,
        }
        fingerprint = self.protocol.fingerprint(runs[0].method)
        checkpoint = Checkpoint(self.directory, fingerprint, decisive, every)
        if checkpoint.state:
            self.resumed += checkpoint.state["epoch"] * len(runs)
        return checkpoint

    def add(self, rows: pd.DataFrame, losses: pd.DataFrame, checkpoint: NullCheckpoint) -> None:
        """Take the rows of a lot that has ended, and the losses of its single samples."""
        self.waiting.append((rows, losses, checkpoint))
        explicit = self.protocol.checkpoint_every not in ("auto", 0)
        if explicit or time.monotonic() - self.saved > INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Store the rows that wait, then delete the checkpoints that they replace."""
        if self.waiting:
            rows, losses, _ = zip(*self.waiting)
            self.save(merge(rows), sample_losses.merge(losses))
        for *_, checkpoint in self.waiting:
            checkpoint.clear()
        self.waiting, self.saved = [], time.monotonic()
