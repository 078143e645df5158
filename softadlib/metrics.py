"""What is measured at an epoch, and the columns it is written in."""

from collections.abc import Callable

import torch
import torch.nn.functional as nnF
from torch import Tensor

MEASURES = (
    "loss_train",
    "loss_val",
    "loss_test",
    "acc_train",
    "acc_val",
    "acc_test",
    "model_norm",
)
COLUMNS = ("dataset", "method", "trial", "knob", "epoch", *MEASURES)
"""One row = one run at one epoch. `label_noise` joins them where it varies within a file."""


@torch.no_grad()
def evaluate(forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, chunk: int) -> Tensor:
    """Mean cross-entropy (nats) and accuracy of logits = forward(x), (2,) float64 on the CPU.

    Sums chunks of `chunk` samples in float64, so the chunk size does not matter. A network whose
    loss is not finite has diverged; its accuracy, an accident of argmax over NaN, becomes NaN too.
    """
    total = torch.zeros(2, dtype=torch.float64)
    for inputs, targets in zip(x.split(chunk), y.split(chunk)):
        logits = forward(inputs)
        losses = nnF.cross_entropy(logits, targets, reduction="none")
        hits = (logits.argmax(1) == targets).to(losses.dtype)
        total += torch.stack([losses, hits]).to(_wide(x.device)).sum(1).double().cpu()
    loss, accuracy = total / len(y)
    return torch.stack([loss, torch.where(loss.isfinite(), accuracy, torch.nan)])


def model_norm(params: dict[str, Tensor]) -> Tensor:
    """L2 norm of all parameters of one network, batch norm's and biases included, () float64."""
    wide = _wide(next(iter(params.values())).device)
    return torch.stack([p.to(wide).square().sum() for p in params.values()]).sum().sqrt().double()


def _wide(device: torch.device) -> torch.dtype:
    """The widest float of a device: Apple's MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
