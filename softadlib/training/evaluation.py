"""What is measured at an epoch, and the columns it is written in."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as nnF
from torch import Tensor

from softadlib.results.schema import MEASURES


def sums(logits: Tensor, y: Tensor) -> Tensor:
    """Summed cross-entropy and hits of logits (…, n, classes) and labels (…, n): (…, 2), widest float."""
    losses = nnF.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)
    hits = (logits.argmax(-1) == y).to(losses.dtype)
    return torch.stack([losses, hits], -2).to(_wide(y.device)).sum(-1)


def _lost(loss: Tensor, accuracy: Tensor) -> Tensor:
    """NaN where the loss is not finite: that network has diverged, its hits are an accident."""
    return torch.where(loss.isfinite(), accuracy, torch.nan)


@torch.no_grad()
def evaluate(forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, chunk: int) -> Tensor:
    """Mean cross-entropy (nats) and accuracy of logits = forward(x), (2,) float64 on the CPU.

    Sums chunks of `chunk` samples in float64, so the chunk size does not matter. A network whose
    loss is not finite has diverged; its accuracy, an accident of argmax over NaN, becomes NaN too.
    """
    total = torch.zeros(2, dtype=_wide(x.device), device=x.device)
    for inputs, targets in zip(x.split(chunk), y.split(chunk)):
        total += sums(forward(inputs), targets)
    loss, accuracy = total.cpu().double() / len(y)
    return torch.stack([loss, _lost(loss, accuracy)])


def as_rows(found: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Measures of many runs, {name: (R,)} on any device → float64 arrays in the table's order."""
    table = torch.stack([found[name] for name in MEASURES]).cpu().double()
    rows = dict(zip(MEASURES, table))
    for part in ("train", "val", "test"):
        rows[f"acc_{part}"] = _lost(rows[f"loss_{part}"], rows[f"acc_{part}"])
    return {name: values.numpy() for name, values in rows.items()}


def model_norm(params: dict[str, Tensor]) -> Tensor:
    """L2 norm of all parameters of one network, batch norm's and biases included, (), widest float."""
    wide = _wide(next(iter(params.values())).device)
    return torch.stack([p.to(wide).square().sum() for p in params.values()]).sum().sqrt()


def _wide(device: torch.device) -> torch.dtype:
    """The widest float of a device: Apple's MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
