"""Criteria of the whole batch where it comes in parts: micro-batches, or one part per process."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from softadlib import functional as F
from softadlib._validation import UserError
from softadlib.functional.reduction import Weights
from softadlib.losses.criterion import Thresholded, world_size
from softadlib.losses.notices import warn
from softadlib.losses.per_sample import Base
from softadlib.losses.softad import Flooding

if TYPE_CHECKING:  # absent where torch was built without it
    from torch.distributed import ProcessGroup

MANY = 1000
"""Warn at this many parts: no batch has so many, so the loop does not call `scale_gradients`."""


class AccumulatedFlooding(Thresholded):
    """Flooding of a batch that comes in micro-batches, in DDP processes, or both: sign(R − θ)·∇R.

    Call `backward()` on what it gives for each part, divided by the number of parts or not. Then call
    `scale_gradients(parameters)` once per batch, before the optimizer's step. Parts may differ in
    size. Gradients must be zero before the first part, and averaged over the processes, as DDP
    leaves them. They must hold nothing else: call `backward()` on a penalty or another loss after
    `scale_gradients`, which would scale it, too, and turn its sign. A part counts when its
    `backward()` runs, so validation does not count. Call `reset()` to give up a batch after some of
    its parts. `torch.compile` breaks the graph here.

    Args:
        theta: flood level in nats, any finite number. It cannot be learned.
        base: per-sample loss, see `Criterion`. Default: `nn.CrossEntropyLoss()`.

    Shape:
        input (n, C), target (n,) → (), the sum of the part's weighted losses.

    Raises:
        ValueError: for a θ that is no finite number, and as `Criterion`.

    Ishida et al. (2020).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model, flooding = nn.Linear(3, 2), AccumulatedFlooding(theta=0.1)
        >>> for x, y in [(torch.ones(4, 3), torch.zeros(4).long()), (torch.ones(2, 3), torch.tensor([1, 0]))]:
        ...     flooding(model(x), y).backward()
        >>> value = flooding.scale_gradients(model.parameters())  # then optimizer.step()
    """

    decomposes = False  # a part does not know the sign of the whole
    no_closed_form = Flooding.no_closed_form

    def __init__(self, theta: float, *, base: Base | None = None):
        super().__init__(theta, base=base)
        self._parts: list[Tensor] = []
        """Of each part whose `backward()` ran: Σ w·ℓ, Σ w, and the factor before its gradient, (3,)."""

    def forward(self, input: Tensor, target: Tensor, weights: Weights = None) -> Tensor:
        """Return the sum of the part's weighted losses, (n, C), (n,) → (); its gradient is not yet scaled."""
        losses, counts = self._losses(input, target, weights)
        if self._losses_hooks:
            self._notify(losses, counts, self.theta)
        counts = torch.ones_like(losses) if counts is None else counts
        total = F.erm(losses.flatten(), weights=counts.flatten(), reduction="sum")
        if len(self._parts) == MANY:
            warn(f"{MANY} parts without scale_gradients, which a step needs before it")
        if total.requires_grad:
            sums = [total.detach(), counts.sum().to(total)]
            total.register_hook(lambda factor: self._parts.append(torch.stack([*sums, factor])))
        return total

    def sample_weights(self, losses: Tensor, counts: Weights = None) -> Tensor:
        """Return NaN: a part does not know the sign of the whole."""
        return torch.full_like(losses, torch.nan)

    def reset(self) -> None:
        """Forget the parts so far, as for a batch that is given up; zero the gradients too."""
        self._parts = []

    @torch.no_grad()
    def scale_gradients(
        self,
        parameters: nn.Parameter | Iterable[nn.Parameter],
        group: "ProcessGroup | None" = None,
        *,
        scaler: "torch.amp.GradScaler | None" = None,
    ) -> Tensor:
        """Turn the gradients of the sums into those of θ + |R − θ|, in place, and return that value.

        R is the mean loss of every part of every process. Every process must call this.

        Args:
            parameters: one parameter, or several; each is scaled once, however often it is given.
            group: the process group that shares the batch. Default: all processes.
            scaler: the GradScaler that scaled the parts; its scale stays, for `scaler.step` to remove.

        Raises:
            RuntimeError: before any part with gradients.
            ValueError: for parts that were scaled differently, or up without `scaler`.
        """
        if not self._parts:
            raise RuntimeError(
                "scale_gradients needs a part first: call the criterion and backward() its value"
            )
        parts = torch.stack(self._parts)
        self.reset()
        sums = parts[:, :2].sum(0)
        if world_size(group) > 1:
            torch.distributed.all_reduce(sums, group=group)
        total, samples = sums
        risk = total / samples
        # DDP has divided the sum over processes by their number.
        factor = world_size(group) * torch.sign(risk - self.theta) / samples
        factor = factor * _undone(parts[:, 2].tolist(), scaler)
        for p in {parameters} if isinstance(parameters, Tensor) else set(parameters):
            if p.grad is not None:
                p.grad.mul_(factor.to(p.grad.device))
        value: Tensor = self.theta + (risk - self.theta).abs()
        return value


def _undone(factors: list[float], scaler: "torch.amp.GradScaler | None") -> float:
    """Return what turns the factor of the parts' gradients into the scaler's scale, or 1."""
    scale = 1.0 if scaler is None else scaler.get_scale()
    if min(factors) != max(factors) or factors[0] == 0:
        raise UserError(
            f"the parts were multiplied by {min(factors):g} to {max(factors):g} before backward(); "
            "call backward() on the criterion's value itself"
        )
    if scaler is None and factors[0] > 1:
        raise UserError(
            f"the parts were multiplied by {factors[0]:g} before backward(), as by a GradScaler: call "
            "scale_gradients(parameters, scaler=scaler)"
        )
    return scale / factors[0]


def gather_losses(losses: Tensor, group: "ProcessGroup | None" = None) -> Tensor:
    """Return the losses of all processes, (n,) → (N,), for `functional.cvar` and its like.

    N = Σ n over the processes of `group`, default all, each of which must call it. n may differ. Only
    the losses of this process carry a gradient, times the number of processes, by which DDP divides:
    the average is then the gradient of the whole batch. One process gets `losses` back.

    >>> from softadlib import functional
    >>> functional.cvar(gather_losses(torch.tensor([1.0, 4.0, 2.0, 3.0])), 0.5)  # (4 + 3)/2
    tensor(3.5000)
    """
    world = world_size(group)
    if world == 1:
        return losses
    losses = losses.flatten()
    values, n = losses.detach(), torch.tensor([len(losses)], device=losses.device)
    lengths = [torch.zeros_like(n) for _ in range(world)]
    torch.distributed.all_gather(lengths, n, group=group)
    counts = [int(length) for length in lengths]
    padded = torch.zeros(max(counts), dtype=values.dtype, device=values.device)
    padded[: len(values)] = values
    parts = [torch.zeros_like(padded) for _ in range(world)]
    torch.distributed.all_gather(parts, padded, group=group)
    parts = [part[:count] for part, count in zip(parts, counts)]
    parts[torch.distributed.get_rank(group)] = values + world * (losses - values)
    return torch.cat(parts)
