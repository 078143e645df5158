"""Monotone criteria: what SoftAD and flooding are held against.

Raising a loss never lowers them and no sample gets a negative weight: they never ascend.
"""

from torch import Tensor

from softadlib import functional as F
from softadlib._validation import real
from softadlib.losses.base import Base, classifies
from softadlib.losses.flooding import Criterion


class BatchCriterion(Criterion):
    """Ignored targets are left out; a class `weight` is refused, for it has no one meaning here."""

    whole = True

    def __init__(self, base: Base | None = None):
        super().__init__(base)
        if classifies(self.base) and self.base.weight is not None:
            name = type(self).__name__
            raise ValueError(f"{name} takes no class weights; leave out weight= of {self.base!r}")


class CVaR(BatchCriterion):
    """min over θ of θ + mean(ℓ − θ)₊/(1−β): the mean of the worst share 1 − β of the losses.

    (n, C), (n,) → (). `beta` in [0, 1), a share of the batch, 0 is ERM. Raises ValueError for another
    β and for class weights. Over processes use `gather_losses`. Rockafellar & Uryasev (2000).

    >>> import torch
    >>> CVaR(0.5, base=torch.nn.L1Loss())(torch.tensor([1.0, 4.0, 2.0, 3.0]), torch.zeros(4))  # (4 + 3)/2
    tensor(3.5000)
    """

    def __init__(self, beta: float, *, base: Base | None = None):
        super().__init__(base)
        self.beta = real("beta", beta, low=0, below=1)

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.cvar(losses, self.beta, weights=weights)

    def extra_repr(self) -> str:
        return f"beta={self.beta:g}"


class ChiSquareDRO(BatchCriterion):
    """min over θ of θ + √((1+2r)·mean(ℓ − θ)₊²): the worst mean over reweightings q of the batch.

    (n, C), (n,) → (). ½·mean (nq − 1)² ≤ `radius`, without a unit, 0 is ERM. Raises ValueError for a
    radius below 0 and for class weights. Over processes use `gather_losses`. Duchi & Namkoong (2019).

    >>> import torch
    >>> ChiSquareDRO(0.125, base=torch.nn.L1Loss())(torch.tensor([1.0, 3.0]), torch.zeros(2))  # 2 + √(2·0.125)
    tensor(2.5000)
    """

    def __init__(self, radius: float, *, base: Base | None = None):
        super().__init__(base)
        self.radius = real("radius", radius, low=0)

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.chi2_dro(losses, self.radius, weights=weights)

    def extra_repr(self) -> str:
        return f"radius={self.radius:g}"


class Tilted(BatchCriterion):
    """ln(mean exp(tℓ))/t: towards the worst loss as t grows, the best as it falls; 0 is ERM.

    (n, C), (n,) → (). `t` per nat. Raises ValueError for a t that is no finite number and for class
    weights. Over processes use `gather_losses`. Li et al. (2021).

    >>> import torch
    >>> Tilted(1, base=torch.nn.L1Loss())(torch.tensor([0.0, 3.0]).log1p(), torch.zeros(2))  # ln((1 + 4)/2)
    tensor(0.9163)
    """

    def __init__(self, t: float, *, base: Base | None = None):
        super().__init__(base)
        self.t = real("t", t)

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.tilted(losses, self.t, weights=weights)

    def extra_repr(self) -> str:
        return f"t={self.t:g}"
