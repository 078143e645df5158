"""Test loss, gap and calibration before and after temperature scaling, and reliability of two classes.

Every method is treated alike: one temperature a run, fitted on its validation part.
"""

import numpy as np
import pandas as pd

from softadlib import results
from softadlib.analysis import tables
from softadlib.functional import LN2

SCALINGS = {"": "as trained", "plain_": "plain fit", "prior_": "fit with prior"}
"""Prefix of the columns of `results.read_losses` → its name."""
CELLS = {
    "knob": tables.Cell("value", 2),
    "temperature": tables.Cell("T", 2),
    "loss": tables.Cell("test loss"),
    "gap": tables.Cell("gap"),
    "ece": tables.Cell("ECE, %", 1, 100),
}
DIFFERENCES = {
    "loss": tables.Cell("its test loss − ERM's", signed=True),
    "gap": tables.Cell("its gap − ERM's", signed=True),
}
"""How `tables.render` writes the columns of `scaled` and of `against_erm`."""


def runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line per run and scaling: temperature, test loss, gap, ECE on the test part."""
    key = ["dataset", "method", "label_noise", "trial", "knob"]
    ends = results.final(rows)
    parts = {part: ends[ends["part"] == part].set_index(key) for part in ("train", "test")}
    frames = []
    for prefix, name in SCALINGS.items():
        test, train = (parts[part][f"{prefix}loss"] for part in ("test", "train"))
        lines = pd.DataFrame({"loss": test, "gap": test - train})
        lines["ece"] = parts["test"][f"{prefix}ece"]
        lines["temperature"] = parts["test"][f"{prefix}temperature"] if prefix else 1.0
        frames.append(lines.reset_index().assign(scaling=name))
    return pd.concat(frames, ignore_index=True).dropna(subset=["loss"])


def scaled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return medians over trials per dataset, method and scaling: value, T, test loss, gap, ECE; and n.

    Medians, because a plain fit without a minimum gives single runs a loss of hundreds of nats.
    """
    groups = runs(rows).groupby(["dataset", "method", "scaling"])
    table = groups[list(CELLS)].median().assign(n=groups.size())
    order = {name: i for i, name in enumerate(SCALINGS.values())}
    table = table.reset_index().sort_values("scaling", key=lambda c: c.map(order))
    return tables.ordered(table).set_index(["dataset", "method", "scaling"])


def against_erm(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `tables.differences` from ERM: test loss and gap per dataset, scaling and method."""
    return tables.differences(tables.ordered(runs(rows)), ["dataset", "scaling"], ("loss", "gap"))


def reliability(quantiles: np.ndarray, bins: int = 10) -> pd.DataFrame:
    """Return confidence, accuracy and share of samples per bin of the confidence, of two classes.

    A loss ℓ is a probability p = e^−ℓ of the right class: the prediction is right where ℓ < ln 2,
    and its confidence is max(p, 1 − p).

    Args:
        quantiles: losses at equally spaced levels, (q,) or (runs, q); each stands for as many samples.
        bins: bins of equal width between 0.5 and 1; empty ones are left out.
    """
    losses = np.asarray(quantiles, dtype=float)
    losses = (losses[..., 1:] + losses[..., :-1]).ravel() / 2  # one loss between two levels
    p = np.exp(-losses)
    confidence = np.maximum(p, 1 - p)
    place = np.minimum(((confidence - 0.5) * 2 * bins).astype(int), bins - 1)
    table = pd.DataFrame({"bin": place, "confidence": confidence, "accuracy": losses < LN2})
    groups = table.groupby("bin")
    return groups.mean().assign(share=groups.size() / len(table))
