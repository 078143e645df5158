"""The writer of the rows of runs that have ended, and of the checkpoints of runs under way."""

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from softadlib.results.table import merge
from softadlib.training.checkpoint import INTERVAL, Checkpoint, NullCheckpoint
from softadlib.training.device import device_name
from softadlib.training.protocol import Protocol, Run


class RunWriter:
    """Stores the rows of runs as they end, and hands out checkpoints for those under way.

    Rows of runs trained one by one wait a minute for each other, unless `checkpoint_every` names a
    number of epochs.

    Args:
        protocol: of the runs.
        save: called with rows to store.
        directory: folder of the checkpoints; None makes none.
        save_losses: called with the losses of single samples, before the rows of their runs.
    """

    def __init__(
        self,
        protocol: Protocol,
        save: Callable[[pd.DataFrame], object] = lambda rows: None,
        directory: Path | None = None,
        save_losses: Callable[[pd.DataFrame], object] = lambda rows: None,
    ):
        self.protocol, self.save, self.directory = protocol, save, directory
        self.save_losses = save_losses
        self.waiting: list[tuple[pd.DataFrame, NullCheckpoint]] = []
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
        """Take the rows of a lot that has ended; store the losses of its samples, if there are any."""
        if len(losses):  # rows that are stored are not trained again, so these come first
            self.save_losses(losses)
        self.waiting.append((rows, checkpoint))
        explicit = self.protocol.checkpoint_every not in ("auto", 0)
        if explicit or time.monotonic() - self.saved > INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Store the rows that wait, then delete the checkpoints that they replace."""
        if self.waiting:
            self.save(merge([rows for rows, _ in self.waiting]))
        for _, checkpoint in self.waiting:
            checkpoint.clear()
        self.waiting, self.saved = [], time.monotonic()
