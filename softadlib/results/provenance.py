"""Where numbers come from: protocol, seeds, versions, machine, time, what diverged."""

import datetime
import math
import os
import subprocess
from typing import Any

import numpy as np
import pandas as pd

from softadlib import __version__, _workspace
from softadlib.results import selection
from softadlib.results.schema import RUN_KEY
from softadlib.training.protocol import Protocol


def session(made_with: dict[str, str], **facts: Any) -> dict[str, Any]:
    """One call's part in a result: when, on what, with which versions, and `facts`.

    `load` is the machine's load average of the last 15 minutes: above `cores` others were at work.
    """
    return {
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **facts,
        **made_with,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[2], 2) if hasattr(os, "getloadavg") else None,
        "softadlib": __version__,
        "commit": commit(),
    }


def describe(
    protocol: Protocol, method: str, rows: pd.DataFrame, sessions: list[dict[str, Any]]
) -> dict[str, Any]:
    """The content of `provenance.json` for all `rows` of one method."""
    ends = selection.final(rows)
    lost = ends[~np.isfinite(ends[["loss_train", "loss_val", "loss_test"]]).all(axis=1)]
    return {
        "profile": protocol.profile,
        "dataset": protocol.dataset,
        "method": method,
        "runs": len(ends),
        "rows": len(rows),
        "diverged": [
            {"label_noise": q, "trial": int(t), "knob": None if math.isnan(v) else v}
            for q, t, v in lost[RUN_KEY].itertuples(index=False)
        ],
        "fingerprint": protocol.fingerprint(),
        "protocol": protocol.to_dict(),
        "seeds": list(protocol.seeds),
        "sessions": sessions,
    }


def commit() -> str | None:
    """The repository's commit, `+` where files differ from it; None outside one."""
    command = [
        "git",
        "-C",
        str(_workspace.home()),
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty=+",
    ]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return found.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
