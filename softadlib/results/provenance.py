"""Where numbers come from: protocol, seeds, versions, machine, time, what diverged."""

import dataclasses
import datetime
import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from softadlib import __version__, _workspace
from softadlib.results import selection
from softadlib.results.schema import RUN_KEY

KINDS: dict[str, dict[str, Any]] = {
    "provenance": {
        **dict.fromkeys(("profile", "dataset", "method", "fingerprint"), str),
        **{"runs": int, "protocol": dict, "seeds": list, "sessions": list, "diverged": list},
    },
    "protocol": {
        **dict.fromkeys(("trials", "epochs", "n_train", "n_val", "n_test"), int),
        **{"label_noise": list, "grids": dict, "dtype": str},
    },
    "session": {**dict.fromkeys(("finished", "device", "torch"), str), "seconds": (int, float)},
}
"""Types of the facts that reports read."""


def _check(part: str, facts: Any) -> None:
    """Raise KeyError for a fact that is missing, and ValueError for one of another type."""
    if not isinstance(facts, dict):
        raise ValueError(f"a {part} is {facts!r:.40}")
    for name, kind in KINDS[part].items():
        if not isinstance(facts[name], kind) or isinstance(facts[name], bool):
            raise ValueError(f"{name} is {facts[name]!r:.40}")


@dataclass(frozen=True)
class Session:
    """One call's part in a result: when, on what, with which versions, and how much it trained."""

    finished: str
    """UTC, ISO format."""
    seconds: float
    device: str
    torch: str
    other: Mapping[str, Any] = field(default_factory=dict)
    """Further facts by name: `runs_trained`, `jobs`, `gflops`, `commit` …"""

    @classmethod
    def now(cls, seconds: float, machine: Mapping[str, Any], **facts: Any) -> "Session":
        """Describe a call that ends now; `machine` names at least its device and torch.

        `load` is the load average of the last 15 minutes: above `cores`, other work was under way.
        """
        versions = dict(machine)
        device, torch = versions.pop("device"), versions.pop("torch")
        load = round(os.getloadavg()[2], 2) if hasattr(os, "getloadavg") else None
        host = {"cores": os.cpu_count(), "load": load}
        code = {"softadlib": __version__, "commit": commit()}
        finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(
            finished, round(seconds, 2), device, torch, {**facts, **versions, **host, **code}
        )

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> "Session":
        """Read what `to_json` made. Raises ValueError, KeyError."""
        _check("session", facts)
        other = dict(facts)
        required = {name: other.pop(name) for name in ("finished", "seconds", "device", "torch")}
        return cls(**required, other=other)

    def to_json(self) -> dict[str, Any]:
        """Return all facts in one dict."""
        facts = dict(vars(self))
        other = facts.pop("other")
        return {**facts, **other}


@dataclass(frozen=True)
class Provenance:
    """The content of `provenance.json`."""

    profile: str
    dataset: str
    method: str
    runs: int
    diverged: Sequence[Mapping[str, Any]]
    fingerprint: str
    protocol: Mapping[str, Any]
    """As `Protocol.to_dict` gave it when the result was finished."""
    seeds: Sequence[int]
    sessions: Sequence[Session]
    rows: int | None = None
    """None in results of early versions."""

    @classmethod
    def from_rows(
        cls,
        rows: pd.DataFrame,
        protocol: Mapping[str, Any],
        fingerprint: str,
        seeds: Sequence[int],
        sessions: Sequence[Session],
    ) -> "Provenance":
        """Describe all rows of one dataset × method."""
        ends = selection.final(rows)
        finite = np.isfinite(ends[["loss_train", "loss_val", "loss_test"]]).all(axis=1)
        diverged = [
            {"label_noise": noise, "trial": int(trial), "knob": None if math.isnan(knob) else knob}
            for noise, trial, knob in ends[~finite][RUN_KEY].itertuples(index=False)
        ]
        return cls(
            protocol["profile"],
            protocol["dataset"],
            ends["method"].iloc[0],
            len(ends),
            diverged,
            fingerprint,
            protocol,
            list(seeds),
            list(sessions),
            len(rows),
        )

    @classmethod
    def from_json(cls, text: str) -> "Provenance":
        """Read what `to_json` made. Raises ValueError, KeyError."""
        facts = json.loads(text)
        _check("provenance", facts)
        _check("protocol", facts["protocol"])
        if not facts["protocol"]["label_noise"] or not facts["sessions"]:
            raise ValueError("label_noise and sessions must not be empty")
        sessions = [Session.from_json(session) for session in facts["sessions"]]
        names = {f.name for f in dataclasses.fields(cls)}
        return cls(**{k: v for k, v in facts.items() if k in names} | {"sessions": sessions})

    def to_json(self) -> str:
        """Return the text of the file."""
        facts = {**vars(self), "sessions": [session.to_json() for session in self.sessions]}
        return json.dumps(facts, indent=1, allow_nan=False) + "\n"

    @property
    def seconds(self) -> float:
        """Wall-clock time of all sessions together."""
        return round(sum(session.seconds for session in self.sessions), 1)

    @property
    def runs_without_session(self) -> int:
        """How many runs no session counts, at least; early versions stored none of a stopped call."""
        trained: int = sum(s.other.get("runs_trained", 0) for s in self.sessions)
        return max(self.runs - trained, 0)


def commit() -> str | None:
    """Return the repository's commit, `+` where files differ from it; None outside one."""
    command = ["git", "-C", str(_workspace.home())]
    command += ["describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
