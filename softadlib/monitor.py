"""What a criterion does to the losses of single samples: collected as they pass, for logs and pictures.

Matplotlib is imported where it is used.
"""

import threading
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from softadlib import functional as F
from softadlib._validation import UserError, whole
from softadlib.losses.base import uncompiled
from softadlib.losses.criterion import Criterion

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LossMonitor"]
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the losses in each row."""
QUANTILES = tuple(f"q{100 * level:02.0f}" for level in LEVELS)
"""Their names: q05 … q95."""
_ONE_THREAD = threading.Lock()
"""Module-level, because a lock on the monitor could not be copied or pickled."""


class LossMonitor:
    """Collects the per-sample losses of a criterion while it trains, one row for every `every` batches.

    No second forward pass is made. Losses wait on their device until a row is full or read. Batches
    without gradients are left out, as are the later passes of SAM. A row holds, over its batches:

    - `loss`: the mean of the base, plain cross-entropy, as ERM would report it;
    - `share_in_ascent`: the share of samples whose loss the criterion pushes up. 0 says that every loss
      is above θ: nothing is flooded, and SoftAD differs from ERM by shorter steps near θ, `mean_weight`;
    - `mean_weight`: the mean of n·∂value/∂ℓ, which is 1 for ERM;
    - `q05` … `q95`: quantiles of the losses; `samples`; `batches`, of all rows so far; `theta`, of the last batch.

    Shape:
        losses (n,) of each batch → one row of numbers.

    Args:
        criterion: any criterion of softadlib.
        every: batches in a row, at least 1; as many losses are kept. `len(loader)` gives epochs.

    Raises:
        ValueError: for anything but a criterion of softadlib, and for a row before the first batch.

    Holland & Nakatani (2024), Sec. 3.

    Example:
        >>> from softadlib import SoftAD
        >>> criterion = SoftAD(theta=0.1)
        >>> monitor = LossMonitor(criterion)
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 9.0]], requires_grad=True)
        >>> criterion(logits, torch.tensor([0, 1])).backward()  # losses ln 2 and 0.0001
        >>> row = monitor.summary()
        >>> row["samples"], round(row["loss"], 3), row["share_in_ascent"]
        (2, 0.347, 0.5)
    """

    def __init__(self, criterion: Criterion, every: int = 100):
        criterion = uncompiled(criterion)
        if not isinstance(criterion, Criterion):
            raise UserError(
                f"LossMonitor takes a criterion of softadlib, got {type(criterion).__name__}; "
                "ERM(base=loss) wraps any loss"
            )
        self.criterion = criterion
        self.every = whole("every", every, 1)
        self.history: list[dict[str, float]] = []
        """All rows so far, oldest first; `pandas.DataFrame(monitor.history)` is a table."""
        self.losses: np.ndarray | None = None
        """Losses of the single samples of the last row that count, (n,)."""
        self._batches: list[Tensor] = []
        """Of each batch since the last row: losses, weights of their gradients, and of the samples; (3, n)."""
        self._seen = 0
        self._theta: float | Tensor | None = None
        self._handle = criterion.register_losses_hook(self._record)

    def _record(self, losses: Tensor, weights: Tensor | None, theta: float | Tensor | None) -> None:
        if isinstance(theta, Tensor):  # AdaFlood: a level for each loss
            of_gradients = F.iflood_derivative(losses, theta)
        else:
            of_gradients = self.criterion.gradient_weights(losses, weights)
        weights = torch.ones_like(losses) if weights is None else weights
        batch = torch.stack([losses.float(), of_gradients.float(), weights.float()])
        with _ONE_THREAD:
            self._batches.append(batch)
            self._theta = theta
            if len(self._batches) == self.every:
                self._close()

    def _close(self) -> None:
        """Make a row of the batches so far."""
        losses, of_gradients, weights = torch.cat(self._batches, 1).cpu().double().numpy()
        self._seen += len(self._batches)
        self._batches.clear()
        counted = weights > 0
        self.losses = losses[counted]
        row: dict[str, float] = {"batches": self._seen, "samples": len(self.losses)}
        row |= _row(self.losses, of_gradients[counted], weights[counted])
        if isinstance(self._theta, Tensor):
            row["theta"] = self._theta.mean().item()
        elif self._theta is not None:
            row["theta"] = self._theta
        self.history.append(row)

    def summary(self) -> dict[str, float]:
        """Return the last row, as numbers for any logger; batches since then make a row first."""
        with _ONE_THREAD:
            if self._batches:
                self._close()
        if not self.history:
            raise UserError(
                "LossMonitor has seen no batch: train with the criterion it was given, and call summary "
                "after a step"
            )
        return self.history[-1]

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the losses around θ over training, and the share in ascent; return the axes."""
        self.summary()  # closes a row, and raises where there is none
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots(figsize=(6, 4), layout="constrained")[1]
        x = [row["batches"] for row in self.history]
        column = {name: [row[name] for row in self.history] for name in self.history[0]}
        marker = "o" if len(x) == 1 else None
        ax.fill_between(x, column["q05"], column["q95"], color="C0", alpha=0.15, label="5 to 95 %")
        ax.fill_between(x, column["q25"], column["q75"], color="C0", alpha=0.3, label="25 to 75 %")
        ax.plot(x, column["q50"], color="C0", marker=marker, label="median")
        ax.plot(x, column["loss"], color="C1", marker=marker, label="mean")
        if "theta" in column:
            ax.plot(x, column["theta"], "--", color="0.3", label="θ")
        ax.set_xlabel("batch")
        ax.set_ylabel("loss of a sample")
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize=8)
        share = ax.twinx()
        share.plot(x, column["share_in_ascent"], ":", color="C3", marker=marker)
        share.set_ylim(0, 1)
        share.set_ylabel("share in ascent (dotted)", color="C3")
        return ax

    def remove(self) -> None:
        """Collect nothing more; rows stay."""
        self._handle.remove()


def _row(losses: np.ndarray, of_gradients: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Return the mean loss and weight, the share in ascent and the quantiles; NaN of no sample."""
    if not len(losses):
        return dict.fromkeys(("loss", "share_in_ascent", "mean_weight", *QUANTILES), float("nan"))
    row = {
        "loss": np.average(losses, weights=weights),
        "share_in_ascent": np.mean(of_gradients < 0),
        "mean_weight": np.average(of_gradients, weights=weights),
        **dict(zip(QUANTILES, np.quantile(losses, LEVELS))),
    }
    return {name: float(value) for name, value in row.items()}
