"""A level θ that moves during training."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

from softadlib._validation import UserError, choose, real, whole
from softadlib.losses.base import Thresholded
from softadlib.losses.distributed import gather_losses

KINDS = {"warmup": ("steps",), "linear": ("steps", "end"), "quantile": ("q",)}


class ThetaSchedule:
    """Moves the θ of a criterion; call `step()` after every step of the optimizer.

    "warmup" goes 0 → θ, the criterion's own, in `steps` steps, and "linear" θ → `end`. "quantile"
    sets θ to the q-quantile of the losses of the last `window` batches, at most the criterion's θ as
    it was given: a share q of the samples ascends until losses grow beyond that. It reads the quantile,
    one synchronisation a step; the others need none. Where several processes train, the quantile is that
    of the losses of all, and every process must call `step()`. θ itself is in the criterion's `state_dict`.

    Args:
        criterion: Flooding, IFlood, SoftAD or AccumulatedFlooding.
        kind: "warmup", "linear" or "quantile".
        steps: of "warmup" and "linear", at least 1.
        end: θ at the end of "linear".
        q: of "quantile", between 0 and 1.
        window: batches that "quantile" looks back on, at least 1.

    Raises:
        ValueError: for a criterion without one θ, another kind, and numbers missing, out of range or of
            another kind.

    A θ that stays is that of Ishida et al. (2020) and Holland & Nakatani (2024).

    Example:
        >>> from softadlib import SoftAD
        >>> criterion = SoftAD(theta=0.1)
        >>> schedule = ThetaSchedule(criterion, "warmup", steps=4)
        >>> for _ in range(3):  # after each optimizer.step()
        ...     schedule.step()
        >>> round(criterion.theta, 3)
        0.075
    """

    def __init__(
        self,
        criterion: Thresholded,
        kind: str,
        *,
        steps: int | None = None,
        end: float | None = None,
        q: float | None = None,
        window: int = 20,
    ):
        criterion = getattr(criterion, "_orig_mod", criterion)  # of torch.compile
        if not isinstance(criterion, Thresholded):
            raise UserError(
                f"{type(criterion).__name__} has no theta to move; take SoftAD, IFlood or Flooding"
            )
        choose("kind", kind, KINDS)
        for name, value in {"steps": steps, "end": end, "q": q}.items():
            if value is not None and name not in KINDS[kind]:
                raise UserError(f"{kind!r} takes {' and '.join(KINDS[kind])}, and no {name}")
        self.criterion, self.kind, self.done = criterion, kind, 0
        self.start = self.end = criterion.theta
        self._recent: deque[Tensor] = deque(maxlen=whole("window", window, 1))
        if kind == "quantile":
            self.q = real("q", q, low=0, high=1)
            criterion.register_losses_hook(self._collect)
            return
        self.steps = whole("steps", steps, 1)
        if kind == "warmup":
            self.start = 0.0
            self._set(0.0)
        else:
            self.end = real("end", end)

    def _set(self, theta: float) -> None:
        self.criterion.__dict__["theta"] = theta  # on the way: no warnings

    def _collect(self, losses: Tensor, counts: Tensor | None, theta: Any) -> None:
        if counts is not None:
            losses = torch.where(counts > 0, losses, torch.nan)
        self._recent.append(losses)

    def step(self) -> None:
        """Move θ by one step; a quantile stays where no batch was seen."""
        self.done += 1
        if self.kind != "quantile":
            if self.done > self.steps:  # θ is the user's again
                return
            share = min(1.0, self.done / self.steps)
            self._set((1 - share) * self.start + share * self.end)
            if self.done == self.steps:
                self.criterion.theta = self.end  # checked and warned of as any
        elif self._recent:
            level = gather_losses(torch.cat([*self._recent]).float()).nanquantile(self.q).item()
            if level == level:
                self._set(min(level, self.end))

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule stands; the losses of a window are collected anew."""
        theta = self.criterion.theta
        return {"done": self.done, "start": self.start, "end": self.end, "theta": theta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a schedule of the same settings stood, with the θ that the criterion had then."""
        self.done, self.start, self.end = state["done"], state["start"], state["end"]
        self._set(state.get("theta", self.criterion.theta))
