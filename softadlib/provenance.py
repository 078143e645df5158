"""Where numbers come from: protocol, seeds, versions, machine, time, what diverged."""

import datetime
import math
import os
import platform
import subprocess
from typing import Any

import numpy as np
import pandas as pd
import torch

from . import __version__, selection, store
from .protocol import Protocol


def machine(device: torch.device) -> dict[str, str]:
    """What a result was made on and with, on the machine that is asked."""
    return {
        "device": device_name(device),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


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
            for q, t, v in lost[store.RUN].itertuples(index=False)
        ],
        "fingerprint": protocol.fingerprint(),
        "protocol": protocol.to_dict(),
        "seeds": list(protocol.seeds),
        "sessions": sessions,
    }


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's architecture and the instructions torch uses on it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"


def commit() -> str | None:
    """The repository's commit, `+` where files differ from it; None outside one."""
    command = ["git", "-C", str(store.home()), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return found.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
