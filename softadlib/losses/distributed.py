"""Criteria of the whole batch where it comes in parts: micro-batches, or one part per process."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from softadlib import functional as F
from softadlib.losses.base import Base, samples
from softadlib.losses.flooding import _Thresholded

if TYPE_CHECKING:  # absent where torch was built without it
    from torch.distributed import ProcessGroup


def _world(group: "ProcessGroup | None" = None) -> int:
    found = torch.distributed
    return found.get_world_size(group) if found.is_available() and found.is_initialized() else 1


class AccumulatedFlooding(_Thresholded):
    """Flooding of a batch that comes in micro-batches, in DDP processes, or both: sign(R − θ)·∇R.

    `forward` gives the sum of a part's losses and keeps it; `finish(parameters)`, once per batch,
    takes the mean loss R of every part of every process and turns the gradients of the sums into
    those of θ + |R − θ|, which it returns. Parts may differ in size. Gradients must be zero before
    the first part, and averaged over the processes, as DDP leaves them. (n, C), (n,) → (). θ in nats.
    Raises ValueError for a θ that is no finite number. Flooding is of Ishida et al. (2020).

    >>> model, flooding = nn.Linear(3, 2), FloodingParts(theta=0.1)
    >>> for x, y in [(torch.ones(4, 3), torch.zeros(4).long()), (torch.ones(2, 3), torch.tensor([1, 0]))]:
    ...     flooding(model(x), y).backward()
    >>> value = flooding.finish(model.parameters())  # then optimizer.step()
    """

    def __init__(self, theta: float, *, base: Base | None = None):
        super().__init__(theta, base=base)
        self._sums: Tensor | None = None

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The sum of the part's weighted losses, (n, C), (n,) → (); its gradient is not yet turned."""
        losses, weights = samples(self.base, input, target)
        losses = losses.flatten()
        weights = torch.ones_like(losses) if weights is None else weights.flatten()
        total = F.erm(losses, weights=weights, reduction="sum")
        sums = torch.stack([total.detach(), weights.sum().to(total)])
        self._sums = sums if self._sums is None else self._sums + sums
        return total

    @torch.no_grad()
    def finish(
        self, parameters: Iterable[nn.Parameter], group: "ProcessGroup | None" = None
    ) -> Tensor:
        """θ + |R − θ|, (); multiplies every gradient, in place. RuntimeError before any part.

        `group`: the process group that shares the batch, default all. Every process must call it.
        """
        if self._sums is None:
            raise RuntimeError("FloodingParts.finish needs the losses of at least one part first")
        sums, self._sums, world = self._sums, None, _world(group)
        if world > 1:
            torch.distributed.all_reduce(sums, group=group)
        risk = sums[0] / sums[1]
        # DDP has divided the sum over processes by their number
        factor = world * torch.sign(risk - self.theta) / sums[1]
        for p in parameters:
            if p.grad is not None:
                p.grad.mul_(factor.to(p.grad.device))
        return self.theta + (risk - self.theta).abs()


def gather_losses(losses: Tensor, group: "ProcessGroup | None" = None) -> Tensor:
    """The losses of all processes, (n,) → (N,), for `functional.cvar` and others of the whole batch.

    N = Σ n over the processes of `group`, default all, each of which must call it; n may differ. Only
    one's own carry a gradient, times the number of processes, since DDP divides by it: the average
    is then the gradient of the whole batch. One process: `losses` itself.

    >>> F.cvar(gathered(torch.tensor([1.0, 4.0, 2.0, 3.0])), 0.5)  # (4 + 3)/2
    tensor(3.5000)
    """
    world = _world(group)
    if world == 1:
        return losses
    losses = losses.flatten()
    own, n = losses.detach(), torch.tensor([len(losses)], device=losses.device)
    lengths = [torch.zeros_like(n) for _ in range(world)]
    torch.distributed.all_gather(lengths, n, group=group)
    counts = [int(length) for length in lengths]
    padded = torch.zeros(max(counts), dtype=own.dtype, device=own.device)
    padded[: len(own)] = own
    parts = [torch.zeros_like(padded) for _ in range(world)]
    torch.distributed.all_gather(parts, padded, group=group)
    parts = [part[:count] for part, count in zip(parts, counts)]
    parts[torch.distributed.get_rank(group)] = own + world * (losses - own)
    return torch.cat(parts)
