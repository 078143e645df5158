"""Where the rows of a study come from: its protocol, and the sessions that trained it."""

import os
import uuid
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from softadlib import __version__
from softadlib.trainer.device import machine, pick_device
from softadlib.workbook.studies.sweep import RENAMED


class Session(BaseModel):
    """What one command did for a study: when, on what, with which versions, and how much it trained."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str
    finished: str
    """UTC, ISO format."""
    seconds: float
    device: str
    torch: str
    runs_trained: int = 0
    runs_replayed: int = 0
    jobs: int = 1
    """Processes on a CPU."""
    commit: str | None = None
    began: str | None = None
    """UTC, ISO format; None in older files."""

    @classmethod
    def begin(cls, jobs: int, commit: str | None) -> "Session":
        """Return the session of a command that has trained nothing yet."""
        about = machine(pick_device("cpu")) | {"softadlib": __version__, "commit": commit}
        counts = {"seconds": 0.0, "jobs": jobs, "cores": os.cpu_count()}
        times = {"began": datetime.now(UTC).isoformat(), "finished": ""}
        return cls.model_validate({"id": uuid.uuid4().hex[:16], **times, **about, **counts}).now()

    def now(self, **changes: Any) -> "Session":
        """Return it as it stands now, with other values of these fields; of one that `begin` made."""
        now = datetime.now(UTC)
        seconds = (now - datetime.fromisoformat(self.began or "")).total_seconds()
        # The load of the last 15 minutes: above `cores`, other work was under way.
        load = round(os.getloadavg()[2], 2) if hasattr(os, "getloadavg") else None
        taken = {
            "finished": now.isoformat(timespec="milliseconds"),
            "seconds": round(seconds, 2),
            "load": load,
        }
        return self.model_copy(update=taken | changes)

    @property
    def runs(self) -> int:
        """Number of trainings, replays included."""
        return self.runs_trained + self.runs_replayed


class Provenance(BaseModel):
    """Where the rows of a study come from."""

    model_config = ConfigDict(frozen=True)

    profile: str
    dataset: str
    method: str
    fingerprint: str
    protocol: dict[str, Any]
    """The fields that there were when it was trained, as `Protocol.to_dict` gives them."""
    seeds: list[int]
    """One per trial."""
    sessions: list[Session]

    @field_validator("protocol")
    @classmethod
    def _names_of_today(cls, protocol: dict[str, Any]) -> dict[str, Any]:
        return {RENAMED.get(name, name): value for name, value in protocol.items()}

    @property
    def seconds(self) -> float:
        """Wall-clock time of all sessions together."""
        return round(sum(session.seconds for session in self.sessions), 1)

    @property
    def grid(self) -> list[float]:
        """Values of the method's hyperparameter; empty for a method without one."""
        return list(self.protocol["grids"].get(self.method, ()))
