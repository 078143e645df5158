"""Where the rows of a study come from: its protocol, and the sessions that trained it."""

from typing import Any

from pydantic import BaseModel, ConfigDict


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
    commit: str | None = None

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

    @property
    def seconds(self) -> float:
        """Wall-clock time of all sessions together."""
        return round(sum(session.seconds for session in self.sessions), 1)

    @property
    def grid(self) -> list[float]:
        """Values of the method's hyperparameter; empty for a method without one."""
        return list(self.protocol["grids"].get(self.method, ()))
