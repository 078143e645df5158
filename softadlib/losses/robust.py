"""Robust criteria, with which SoftAD and flooding are compared: monotone functions of the losses.

Raising a loss never lowers them and no sample gets a negative weight: they never ascend.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softadlib import functional as F
from softadlib._validation import UserError, real
from softadlib.functional.reduction import Weights
from softadlib.losses.base import Base
from softadlib.losses.criterion import Criterion

if TYPE_CHECKING:  # absent where torch was built without it
    from torch.distributed import ProcessGroup


class BatchCriterion(Criterion):
    """A function of the whole batch.

    Class weights are refused: it is unclear whether they weigh samples before or after the maximum.
    """

    additive = False

    def __init__(self, base: Base | None = None):
        super().__init__(base)
        if self.base.class_weights is not None:
            raise UserError(
                f"{type(self).__name__} takes no class weights; leave out weight= of the base, and give "
                "criterion(logits, targets, sample_weight=…) to count a sample several times"
            )


class CVaR(BatchCriterion):
    """min over θ of θ + mean(ℓ − θ)₊/(1−β): the mean of the worst share 1 − β of the losses.

    Args:
        beta: share of the batch to leave out, in [0, 1); 0 is ERM.
        base: per-sample loss, see `Criterion`. Default: `nn.CrossEntropyLoss()`.

    Shape:
        input (n, C), target (n,) → (). Over processes use `gather_losses`.

    Raises:
        ValueError: for another β, for class weights, and as `Criterion`.

    Rockafellar & Uryasev (2000).

    Example:
        >>> import torch
        >>> CVaR(0.5, base=torch.nn.L1Loss())(torch.tensor([1.0, 4.0, 2.0, 3.0]), torch.zeros(4))  # (4 + 3)/2
        tensor(3.5000)
    """

    settings = ("beta",)

    def __init__(self, beta: float, *, base: Base | None = None):
        super().__init__(base)
        self.beta = real("beta", beta, low=0, below=1)

    def reduce(self, losses: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
        self._check_reduction(reduction)
        return F.cvar(losses, self.beta, sample_weight=weights)


class ChiSquareDRO(BatchCriterion):
    """min over θ of θ + √((1+2r)·mean(ℓ − θ)₊²): the worst mean over reweightings q of the batch.

    Args:
        radius: bound of ½·mean (nq − 1)², at least 0, without a unit; 0 is ERM.
        base: per-sample loss, see `Criterion`. Default: `nn.CrossEntropyLoss()`.

    Shape:
        input (n, C), target (n,) → (). A loss of ∞ gives NaN. Over processes use `gather_losses`.

    Raises:
        ValueError: for a radius below 0, for class weights, and as `Criterion`.

    Duchi & Namkoong (2019).

    Example:
        >>> import torch
        >>> ChiSquareDRO(0.125, base=torch.nn.L1Loss())(torch.tensor([1.0, 3.0]), torch.zeros(2))  # 2 + √(2·0.125)
        tensor(2.5000)
    """

    settings = ("radius",)

    def __init__(self, radius: float, *, base: Base | None = None):
        super().__init__(base)
        self.radius = real("radius", radius, low=0)

    def reduce(self, losses: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
        self._check_reduction(reduction)
        return F.chi2_dro(losses, self.radius, sample_weight=weights)


class Tilted(BatchCriterion):
    """ln(mean exp(tℓ))/t: towards the worst loss as t grows, the best as it falls; 0 is ERM.

    Args:
        t: tilt per nat, any finite number.
        base: per-sample loss, see `Criterion`. Default: `nn.CrossEntropyLoss()`.

    Shape:
        input (n, C), target (n,) → (). A loss of ∞ gives NaN. Over processes use `gather_losses`.

    Raises:
        ValueError: for a t that is no finite number, for class weights, and as `Criterion`.

    Li et al. (2021).

    Example:
        >>> import torch
        >>> Tilted(1, base=torch.nn.L1Loss())(torch.tensor([0.0, 3.0]).log1p(), torch.zeros(2))  # ln((1 + 4)/2)
        tensor(0.9163)
    """

    settings = ("t",)

    def __init__(self, t: float, *, base: Base | None = None):
        super().__init__(base)
        self.t = real("t", t)

    def reduce(self, losses: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
        self._check_reduction(reduction)
        return F.tilted(losses, self.t, sample_weight=weights)


def gather_losses(losses: Tensor, group: "ProcessGroup | None" = None) -> Tensor:
    """Return the losses of all processes, (n,) → (N,), for `functional.cvar` and its like.

    N = Σ n over the processes of `group`, default all, each of which must call it. n may differ. Only
    the losses of this process carry a gradient, times the number of processes, by which DDP divides:
    the average is then the gradient of the whole batch. One process gets `losses` back.

    Weights are not gathered along. Gather them by a call of their own, in the losses' order:
    `functional.cvar(gather_losses(losses), 0.5, sample_weight=gather_losses(weights))`.

    >>> from softadlib import functional
    >>> losses = torch.nn.L1Loss(reduction="none")(torch.tensor([1.0, 4.0, 2.0, 3.0]), torch.zeros(4))
    >>> functional.cvar(gather_losses(losses), 0.5)  # (4 + 3)/2; then call backward()
    tensor(3.5000)
    """
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return losses
    world = dist.get_world_size(group)
    losses = losses.flatten()
    values, n = losses.detach(), torch.tensor([len(losses)], device=losses.device)
    lengths = [torch.zeros_like(n) for _ in range(world)]
    dist.all_gather(lengths, n, group=group)
    counts = [int(length) for length in lengths]
    padded = torch.zeros(max(counts), dtype=values.dtype, device=values.device)
    padded[: len(values)] = values
    parts = [torch.zeros_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded, group=group)
    parts = [part[:count] for part, count in zip(parts, counts)]
    own = losses.clone()
    if own.requires_grad:
        own.register_hook(lambda grad: world * grad)
    parts[dist.get_rank(group)] = own
    return torch.cat(parts)
