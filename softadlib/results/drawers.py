"""What a protocol keeps beside its results for its own later use: found again by its fingerprint alone."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from softadlib._workspace import write


class Drawers:
    """Of one folder of results and one fingerprint: states, held-out losses, suggestions."""

    fingerprint: str

    @property
    def path(self) -> Path:
        """The folder."""
        raise NotImplementedError

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints of trainings under way."""
        return self.path / "checkpoints"

    def _held_out(self, label_noise: float, trial: int) -> Path:
        return self.path / "held-out" / f"{self.fingerprint}-{label_noise!r}-{trial}.npz"

    def read_held_out(self, label_noise: float, trial: int) -> np.ndarray | None:
        """Held-out losses of one trial's training samples; None where there are none, or a broken file."""
        try:
            with np.load(io.BytesIO(self._held_out(label_noise, trial).read_bytes())) as kept:
                return kept["losses"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None  # they can be found again, to the same bits

    def save_held_out(self, label_noise: float, trial: int, losses: np.ndarray) -> None:
        """Keep them for whoever trains on that trial."""
        content = io.BytesIO()
        np.savez(content, losses=losses)
        write(self._held_out(label_noise, trial), content.getvalue())

    def _suggested(self, label_noise: float, trial: int) -> Path:
        return self.path / "suggested" / f"{self.fingerprint}-{label_noise!r}-{trial}.json"

    def read_suggestion(self, label_noise: float, trial: int) -> dict[str, Any] | None:
        """What was suggested for one trial; None where there is nothing, or a broken file."""
        try:
            return dict(json.loads(self._suggested(label_noise, trial).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None  # it can be found again, to the same bits

    def save_suggestion(self, label_noise: float, trial: int, facts: dict[str, Any]) -> None:
        """Keep it beside the results."""
        content = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write(self._suggested(label_noise, trial), content)
