"""What a criterion does to the losses of single samples: collected as they pass, for logs and pictures.

Lightning, transformers and matplotlib are imported where they are used.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from softadlib._validation import UserError, whole
from softadlib.losses.base import Criterion, PerSampleCriterion

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the losses in each row."""
COLUMNS = (
    "samples",
    "loss",
    "share_in_ascent",
    "mean_weight",
    *(f"q{100 * q:02.0f}" for q in LEVELS),
)


class LossMonitor:
    """Collects the per-sample losses of a criterion while it trains, a row for every `every` batches.

    No second forward pass is made, and nothing waits for the device until a row is read. Batches
    without gradients are left out, as are the later passes of SAM. A row holds, over its batches:

    - `loss`: the mean of the base, plain cross-entropy, as ERM would report it;
    - `share_in_ascent`: the share of samples whose loss the criterion pushes up;
    - `mean_weight`: the mean of n·∂value/∂ℓ, which is 1 for ERM;
    - `q05` … `q95`: quantiles of the losses; `samples`, `batches` and `theta` (of the last batch).

    Shape:
        losses (n,) of each batch → one row of numbers.

    Args:
        criterion: any criterion of softadlib.
        every: batches in a row, at least 1; as many losses are kept. `len(loader)` gives epochs.

    Raises:
        ValueError: for what is no criterion of softadlib, and where a row is asked for before a batch.

    Losses around θ and their weights φ: Holland & Nakatani (2024), Sec. 3.

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

    def __init__(self, criterion: PerSampleCriterion, every: int = 100):
        criterion = getattr(criterion, "_orig_mod", criterion)  # of torch.compile
        if not isinstance(criterion, PerSampleCriterion):
            raise UserError(
                f"LossMonitor takes a criterion of softadlib, got {type(criterion).__name__}; "
                "ERM(base=loss) wraps any loss"
            )
        self.criterion, self.every = criterion, whole("every", every, 1)
        self._batches: list[tuple[Tensor, Tensor | None, float | Tensor | None]] = []
        self._rows: list[tuple[int, Any, Tensor]] = []
        self._seen = 0
        self.losses: Tensor | None = None
        """Losses of the single samples of the last row, (n,); NaN where a target does not count."""
        self._handle = criterion.register_losses_hook(self._record)

    def _record(self, losses: Tensor, counts: Tensor | None, theta: float | Tensor | None) -> None:
        self._batches.append((losses, counts, theta))
        if len(self._batches) == self.every:
            self._close()

    def _close(self) -> None:
        """Make a row of the batches so far, on their device."""
        batches, self._batches = self._batches, []
        self._seen += len(batches)
        if len({type(c) for _, c, _ in batches}) > 1:  # only some batches have ignored targets
            batches = [(v, torch.ones_like(v) if c is None else c, t) for v, c, t in batches]
        losses = torch.cat([v for v, _, _ in batches]).float()
        counts = None if batches[0][1] is None else torch.cat([c for _, c, _ in batches]).float()  # type: ignore[misc]
        weights = self._weights(batches)
        if counts is None:
            share, loss, mean = (weights < 0).float().mean(), losses.mean(), weights.mean()
            samples = torch.full_like(loss, len(losses))
        else:
            counted = counts > 0
            samples, total = counted.sum(), counts.sum()
            loss = (torch.where(counted, losses, 0) * counts).sum() / total
            mean = (torch.where(counted, weights, 0) * counts).sum() / total
            share = (counted & (weights < 0)).sum() / samples
            losses = torch.where(counted, losses, torch.nan)
        share = torch.where(mean.isnan(), mean, share)  # unknown, as the weights are
        row = torch.stack([samples, loss, share, mean, *_quantiles(losses, samples)])
        self.losses = losses
        theta = batches[-1][2]
        self._rows.append((self._seen, theta.mean() if isinstance(theta, Tensor) else theta, row))

    def _weights(
        self, batches: list[tuple[Tensor, Tensor | None, float | Tensor | None]]
    ) -> Tensor:
        """Return n·∂value/∂ℓ of every sample, NaN for AccumulatedFlooding, whose parts do not know it."""
        criterion = self.criterion
        if not isinstance(criterion, Criterion):  # AdaFlood: a level for each loss
            return torch.cat([(v - torch.as_tensor(t)).sign() for v, _, t in batches]).float()
        if criterion.decomposes:  # batches with the same θ at once
            batches = [(v, None, t) for v, _, t in batches]
            if len({t for _, _, t in batches}) == 1:
                batches = [(torch.cat([v for v, _, _ in batches]), None, batches[0][2])]
        found = []
        now = criterion.__dict__.get("theta")
        for losses, counts, theta in batches:
            leaf = losses.clone().requires_grad_()
            try:
                if now is not None:
                    criterion.__dict__["theta"] = theta
                with torch.enable_grad():
                    value = criterion.reduce(leaf, counts)
                (slope,) = torch.autograd.grad(value.sum(), leaf)
            except NotImplementedError:
                slope = torch.full_like(losses, torch.nan)
            finally:
                if now is not None:
                    criterion.__dict__["theta"] = now
            if criterion.reduction == "mean":
                slope = slope * (len(losses) if counts is None else counts.sum() / counts)
            found.append(slope)
        return torch.cat(found).float()

    def summary(self) -> dict[str, float]:
        """Return the last row, as numbers for any logger; batches since then make a row first."""
        if self._batches:
            self._close()
        if not self._rows:
            raise UserError(
                "LossMonitor has seen no batch: train with the criterion it was given, and call summary "
                "after a step"
            )
        return self._read(self._rows[-1])

    @property
    def history(self) -> list[dict[str, float]]:
        """All rows so far, oldest first; `pandas.DataFrame(monitor.history)` is a table."""
        return [self._read(row) for row in self._rows]

    @staticmethod
    def _read(row: tuple[int, Any, Tensor]) -> dict[str, float]:
        batches, theta, values = row
        named: dict[str, float] = {"batches": batches, **dict(zip(COLUMNS, values.tolist()))}
        named["samples"] = int(named["samples"])
        return named if theta is None else {**named, "theta": float(theta)}

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the losses around θ over training, and the share in ascent; return the axes."""
        self.summary()  # closes a row, and raises where there is none
        rows = self.history
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots(figsize=(6, 4), layout="constrained")[1]
        x = [row["batches"] for row in rows]
        column = {
            name: [row.get(name, float("nan")) for row in rows] for name in (*COLUMNS, "theta")
        }
        marker = "o" if len(rows) == 1 else None
        ax.fill_between(x, column["q05"], column["q95"], color="C0", alpha=0.15, label="5 to 95 %")
        ax.fill_between(x, column["q25"], column["q75"], color="C0", alpha=0.3, label="25 to 75 %")
        ax.plot(x, column["q50"], color="C0", marker=marker, label="median")
        ax.plot(x, column["loss"], color="C1", marker=marker, label="mean")
        if "theta" in rows[0]:
            ax.plot(x, column["theta"], "--", color="0.3", label="θ")
        ax.set_xlabel("batch")
        ax.set_ylabel("loss of a sample")
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize=8)
        share = ax.twinx()
        share.plot(x, column["share_in_ascent"], ":", color="C3", marker=marker)
        share.set_ylim(0, 1)
        share.set_ylabel("share in ascent (dotted)", color="C3")
        return ax

    def save(self, path: str | Path) -> None:
        """Draw `plot` into a file, whose ending says the format."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        self.plot(figure.add_subplot())
        figure.savefig(path)

    def remove(self) -> None:
        """Collect nothing more; rows stay."""
        self._handle.remove()


def _quantiles(losses: Tensor, samples: Tensor) -> list[Tensor]:
    """Return the quantiles of `LEVELS` of the first `samples` of the sorted losses, NaN standing last."""
    # numpy sorts twenty times as fast as torch on a CPU; elsewhere nothing waits
    on_cpu = losses.device.type == "cpu"
    ranked = torch.from_numpy(np.sort(losses.numpy())) if on_cpu else losses.sort().values
    # by kernels alone: a tensor made of numbers is a copy, which waits for the device
    last = (samples - 1).clamp(min=0).to(losses.dtype)
    place = torch.stack([last * q for q in LEVELS])
    low = place.floor().long()
    up = ranked[(low + 1).clamp(max=len(ranked) - 1)]
    share = place - low
    return list(torch.where(share > 0, torch.lerp(ranked[low], up, share), ranked[low]))


def lightning_callback(monitor: LossMonitor, path: str | Path | None = None) -> Any:
    """Return a Lightning callback that logs a row each epoch, and draws into `path` at the end.

    >>> import lightning
    >>> from softadlib import SoftAD
    >>> isinstance(lightning_callback(LossMonitor(SoftAD(0.1))), lightning.Callback)
    True
    """
    import lightning

    class Callback(lightning.Callback):  # type: ignore[misc,unused-ignore]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            pl_module.log_dict({f"losses/{k}": float(v) for k, v in monitor.summary().items()})

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            if path is not None and trainer.is_global_zero:
                monitor.save(path)

    return Callback()


def trainer_callback(monitor: LossMonitor, path: str | Path | None = None) -> Any:
    """Return a callback of Hugging Face's Trainer that adds a row to each log, and draws at the end.

    >>> import transformers
    >>> from softadlib import SoftAD
    >>> callback = trainer_callback(LossMonitor(SoftAD(0.1)))
    >>> isinstance(callback, transformers.TrainerCallback)
    True
    """
    import transformers

    class Callback(transformers.TrainerCallback):  # type: ignore[misc,unused-ignore]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs is not None and "loss" in logs:
                row = {f"losses/{k}": v for k, v in monitor.summary().items()}
                logs.update(row)
                state.log_history[-1].update(row)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if path is not None and state.is_world_process_zero:
                monitor.save(path)

    return Callback()
