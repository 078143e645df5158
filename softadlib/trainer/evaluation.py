"""Evaluation: loss, accuracy and norm of networks, single losses, and the rows they are written in."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as nnF
from torch import Tensor

from softadlib.calibration import columns, expected_calibration_error, temperature_of
from softadlib.trainer.splits import PARTS

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, np.ndarray]
"""{measure: (R,)}, an entry per run; `epoch` (R,) is among them where it belongs to a table."""
MEASURES = ("loss_train", "loss_val", "loss_test", "acc_train", "acc_val", "acc_test", "model_norm")
LEVELS = np.linspace(0, 1, 101)
"""Levels of the quantiles of single losses, in the column `quantiles` of tables of losses."""
FITS = {"plain": 0.0, "prior": 1.0}
"""Fit of the temperature → weight of its prior, in nats: `calibration.fit_temperature`."""


def summed_measures(logits: Tensor, y: Tensor) -> Tensor:
    """Sum cross-entropy and hits over samples: (…, n, C), (…, n) → (…, 2), float64."""
    losses = nnF.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)
    hits = (logits.argmax(-1) == y).to(losses.dtype)
    return torch.stack([losses, hits], -2).double().sum(-1)


@torch.no_grad()
def evaluate(
    network: Callable[[Tensor], Tensor], index: Tensor, labels: Tensor, chunk: int
) -> Tensor:
    """Return mean cross-entropy (nats) and accuracy over samples, (…, 2), on their device.

    A network whose loss is not finite has diverged. Its accuracy is an accident of argmax over NaN,
    and becomes NaN too.

    Args:
        network: index (…, b) ↦ logits (…, b, C) of those samples.
        index: samples (…, n), at least one.
        labels: (N,) of all samples.
        chunk: samples per call. Sums are in float64, so it does not move the result.
    """
    chunks = torch.split(index, chunk, dim=-1)
    total = sum(summed_measures(network(part), labels[part]) for part in chunks)
    loss, accuracy = (torch.as_tensor(total) / index.shape[-1]).unbind(-1)
    return torch.stack([loss, torch.where(loss.isfinite(), accuracy, torch.nan)], -1)


def loss_summary(
    logits: Sequence[Tensor],
    labels: Sequence[Tensor],
    calibrated: bool,
    log_probabilities: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, np.ndarray]:
    """Summarise the losses of single samples of one network: {column: (3, …)}, a row per part.

    Args:
        logits: (n, C) of train, val and test.
        labels: (n,) of the same.
        calibrated: add the temperatures fitted on val, and what they do to every part.
        log_probabilities: logits (n, C) ↦ ln p, whose loss and calibration error are added to these.
    """
    z, y = ([values.cpu() for values in parts] for parts in (logits, labels))
    z = [values.double() for values in z]
    losses = [nnF.cross_entropy(*pair, reduction="none").numpy() for pair in zip(z, y)]
    quantiles = np.array([np.quantile(values, LEVELS) for values in losses])
    with np.errstate(over="ignore"):  # of a run about to diverge
        columns = {
            "samples": np.array([len(values) for values in losses]),
            "loss": np.array([values.mean() for values in losses]),
            "quantiles": quantiles.astype(np.float32),
        }
    if not calibrated:
        return columns
    columns["ece"] = np.array([_calibration_error(*pair) for pair in zip(z, y)])
    validation = PARTS.index("val")
    for fit, prior in FITS.items():
        temperature = _temperature(z[validation], y[validation], prior)
        scaled = [values / temperature for values in z]
        columns[f"{fit}_temperature"] = np.full(len(PARTS), temperature)
        means = [float(nnF.cross_entropy(*pair)) for pair in zip(scaled, y)]
        columns[f"{fit}_loss"] = np.array(means)
        columns[f"{fit}_ece"] = np.array([_calibration_error(*pair) for pair in zip(scaled, y)])
    if log_probabilities is not None:
        closed_form = closed_form_measures(logits, labels, log_probabilities)
        columns |= {f"linked_{name}": values for name, values in closed_form.items()}
    return columns


def closed_form_measures(
    logits: Sequence[Tensor],
    labels: Sequence[Tensor],
    log_probabilities: Callable[[Tensor], Tensor],
) -> dict[str, np.ndarray]:
    """Return loss and calibration error of the class probabilities in closed form, a value per part."""
    log_p = [log_probabilities(z.cpu().double()) for z in logits]
    pairs = list(zip(log_p, (y.cpu() for y in labels)))
    return {
        "loss": np.array([float(nnF.nll_loss(*pair)) for pair in pairs]),
        "ece": np.array([_calibration_error(*pair) for pair in pairs]),
    }


def _temperature(logits: Tensor, labels: Tensor, prior: float) -> float:
    """Return the fitted temperature; NaN where there is none: NaN logits, or one class alone."""
    try:
        return temperature_of(*columns(logits, labels), prior)
    except ValueError:
        return np.nan


def _calibration_error(logits: Tensor, labels: Tensor) -> float:
    return expected_calibration_error(logits, labels) if logits.isfinite().all() else np.nan


def as_rows(measures: dict[str, Tensor]) -> Row:
    """Return measures (R,) as float64 arrays in the table's order; one transfer from the device."""
    table = torch.stack([measures[name].double() for name in MEASURES]).cpu()
    return {name: values.numpy() for name, values in zip(MEASURES, table)}


def model_norm(params: dict[str, Tensor]) -> Tensor:
    """Return the L2 norm of all parameters of one network, batch norm and biases included, ()."""
    return torch.stack([p.double().square().sum() for p in params.values()]).sum().sqrt()


def measures_table(keys: "pd.DataFrame", row: Mapping[str, np.ndarray]) -> "pd.DataFrame":
    """Return one row per run, of what was measured at one epoch; `keys` has the columns before it."""
    return keys.assign(epoch=row["epoch"], **{name: row[name] for name in MEASURES})
