"""A check of seconds that a GPU computes what the CPU does, made once before `device: auto` takes it."""

import contextlib
import json
import warnings

import numpy as np
import pandas as pd
import torch

from softadlib._workspace import home, write
from softadlib.training.device import available_devices, device_name
from softadlib.training.protocol import Protocol
from softadlib.training.trainer import train_runs

TOLERANCE = 1e-6
"""Relative difference allowed after a few steps in float64."""


def checked_device(name: str) -> str:
    """Return the device to train on: `name`, or for auto cuda where it is there and passes.

    The result is remembered in `outputs/.checked-devices.json`. A GPU that fails is left out with a
    warning.
    """
    if name != "auto":
        return name
    if "cuda" not in available_devices():
        return "cpu"
    key = f"{device_name(torch.device('cuda'))}, torch {torch.__version__}"
    file = home() / "outputs" / ".checked-devices.json"
    known = {}
    with contextlib.suppress(OSError, ValueError):  # not there, or damaged: it is checked again
        known = json.loads(file.read_text())
    if key not in known:
        known[key] = largest_difference()
        write(file, json.dumps(known, indent=1) + "\n")
    if known[key] <= TOLERANCE:
        return "cuda"
    warnings.warn(
        f"device auto takes the CPU: {key} differs from it by {known[key]:.1e} in a check in float64; "
        f"device: cuda takes it all the same; delete {file} to check it again",
        stacklevel=2,
    )
    return "cpu"


def largest_difference(device: str = "cuda") -> float:
    """Train ERM, SoftAD and SAM for two epochs on both devices; return the largest relative difference."""
    protocol = Protocol(
        profile="check",
        dataset="gaussian",
        epochs=2,
        trials=2,
        n_test=100,
        dtype="float64",
        grids={"softad": [0.1, 0.3], "sam": [0.05]},
    )
    worst = 0.0
    for method in protocol.methods:
        runs = protocol.runs(method)
        tables: list[pd.DataFrame] = []
        for place in ("cpu", device):
            rows, _ = train_runs(protocol.replace(device=place), runs, {protocol.epochs})
            tables.append(rows.loc[:, "loss_train":"model_norm"])
        expected, found = (table.to_numpy() for table in tables)
        apart = np.abs(found / expected - 1)
        worst = max(worst, float(np.where(np.isfinite(apart), apart, np.inf).max()))
    return worst
