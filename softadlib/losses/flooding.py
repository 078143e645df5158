"""Criteria: drop-in replacements for `nn.CrossEntropyLoss` over `softadlib.functional`."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from softadlib import functional as F
from softadlib._validation import UserError, choose, real
from softadlib.losses.base import Base, per_sample, samples, warn_if_distributed


class CalibrationWarning(UserWarning):
    """θ ≥ ln 2 (nats) with cross-entropy: the criterion's minimiser predicts the wrong class."""


def _warn_uncalibrated(theta: float, base: object, name: str) -> None:
    if theta < F.LN2 or not isinstance(base, nn.CrossEntropyLoss):
        return
    if smoothing := base.label_smoothing:
        why = (
            f"cross-entropy smoothed by {smoothing:g} and theta >= ln 2 = {F.LN2:.4f} the minimiser "
            "predicts the wrong class of two; of more it does so from "
            f"loss_limits.cross_entropy_levels(classes, {smoothing:g}).right_below"
        )
    else:
        why = (
            f"cross-entropy and theta >= ln 2 = {F.LN2:.4f} the most likely class is pushed to "
            "probability exp(-theta) <= 1/2, so the minimiser predicts the wrong class"
        )
    message = f"{name}(theta={theta:g}): with {why}; use a smaller theta"
    warnings.warn(message, CalibrationWarning, stacklevel=3)


class _OverBase(nn.Module):
    """A base loss that gives one value per sample, and what is made of them."""

    def __init__(self, base: Base | None = None, *, reduction: str = "mean"):
        super().__init__()
        choose("reduction", reduction, F.REDUCTIONS)
        self.base, self.reduction = per_sample(base), reduction

    def extra_repr(self) -> str:
        return "" if self.reduction == "mean" else f"reduction={self.reduction!r}"


class Criterion(_OverBase):
    """A scalar criterion over a base loss that gives one value per sample.

    `base` is any callable (input, target) → per-sample losses of any shape; default cross-entropy. A
    torch loss with another `reduction` is copied and set to "none". Targets that cross-entropy or
    NLL ignore do not count, and their class `weight` weighs the samples: Σ w·f(ℓ)/Σ w, ℓ without w
    (`bases.samples`). A callable of one's own that ignores targets says so by its `ignore_index`;
    otherwise their zeros count as losses. `reduction` "sum" gives Σ w·f(ℓ), "none" w·f(ℓ) in the shape of the target.
    Means over samples are right over micro-batches and ranks of equal weight; otherwise take sums
    and divide by the weight of all. Subclasses write `reduce`.
    """

    whole = False
    """A function of the batch as a whole: parts of it do not add up."""

    if TYPE_CHECKING:  # of any module they know no more than that it can be called

        def __call__(self, input: Tensor, target: Tensor) -> Tensor: ...

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """(n, C) logits and (n,) targets → (), or whatever shapes `base` takes."""
        losses, weights = samples(self.base, input, target)
        value = self.reduce(losses.flatten(), None if weights is None else weights.flatten())
        if self.whole and not torch.compiler.is_compiling():
            self._warn_of_parts()
        return value.reshape(losses.shape) if self.reduction == "none" else value

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        """Per-sample losses (n,) and how much each counts (n,) → (), or (n,) for "none"."""
        raise NotImplementedError

    def _warn_of_parts(self) -> None:
        warn_if_distributed(
            type(self).__name__,
            "use FloodingParts for Flooding, and functional over `gather_losses` losses for others",
        )


class ERM(Criterion):
    """mean ℓ: empirical risk minimisation, the baseline.

    (n, C), (n,) → (), in the unit of ℓ, nats for cross-entropy. Raises ValueError for a base that is
    no callable or reduces, and for an unknown `reduction`, as all criteria do. Vapnik (1992).

    >>> ERM()(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))  # ln 2
    tensor(0.6931)
    """

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.erm(losses, weights=weights, reduction=self.reduction)


class _Thresholded(Criterion):
    def __init__(self, theta: float, *, base: Base | None = None, reduction: str = "mean"):
        super().__init__(base, reduction=reduction)
        self.theta = real("theta", theta)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"theta={self.theta:g}", super().extra_repr()]))


class Flooding(_Thresholded):
    """θ + |mean ℓ − θ|: descends above the flood level θ, ascends below, whole batch at once.

    (n, C), (n,) → (). θ in nats, any finite number (0 or less is ERM). Over micro-batches and ranks
    use `AccumulatedFlooding`; in a process group this warns (`DistributionWarning`). Raises ValueError for
    a θ that is no finite number. Ishida et al. (2020).

    >>> Flooding(theta=0.7)(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))  # 0.7 + (0.7 − ln 2)
    tensor(0.7069)
    """

    whole = True

    def __init__(self, theta: float, *, base: Base | None = None):
        super().__init__(theta, base=base)

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.flooding(losses, self.theta, weights=weights)


class IFlood(_Thresholded):
    """mean(θ + |ℓ − θ|): flooding sample by sample.

    (n, C), (n,) → (). θ in nats. Raises ValueError for a θ that is no finite number; warns
    (`CalibrationWarning`) when θ ≥ ln 2 with cross-entropy. Xie et al. (2022).

    >>> IFlood(theta=0.1, base=nn.L1Loss())(torch.tensor([0.0, 1.0]), torch.zeros(2))  # (0.2 + 1)/2
    tensor(0.6000)
    """

    def __init__(self, theta: float, *, base: Base | None = None, reduction: str = "mean"):
        super().__init__(theta, base=base, reduction=reduction)
        _warn_uncalibrated(self.theta, self.base, "IFlood")

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.iflood(losses, self.theta, weights=weights, reduction=self.reduction)


class SoftAD(_Thresholded):
    """η·θ + σ²·mean ρ((ℓ−θ)/σ), ρ(x) = √(1+x²) − 1: soft ascent-descent around θ.

    (n, C), (n,) → (). θ, σ in nats, σ > 0; η has no unit. `scale="text"` puts σ in place of σ².
    Raises ValueError for values out of range and an unknown scale; warns (`CalibrationWarning`) when
    θ ≥ ln 2 with cross-entropy. NaN for a loss of ∞. Holland & Nakatani (2024).

    >>> criterion = SoftAD(theta=0.25, base=nn.L1Loss())
    >>> criterion(torch.tensor([1.0, 0.25]), torch.zeros(2))  # 0.25 + (ρ(0.75) + 0)/2, ρ(0.75) = 0.25
    tensor(0.3750)
    >>> SoftAD(theta=0.1)(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))  # ℓ = ln 2
    tensor(0.2627)
    """

    def __init__(
        self,
        theta: float,
        sigma: float = 1.0,
        eta: float = 1.0,
        *,
        scale: str = "code",
        base: Base | None = None,
        reduction: str = "mean",
    ):
        super().__init__(theta, base=base, reduction=reduction)
        self.sigma = real("sigma", sigma, above=0)
        self.eta = real("eta", eta)
        choose("scale", scale, F.SCALES)
        self.scale = scale
        _warn_uncalibrated(self.theta, self.base, "SoftAD")

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.softad(
            losses,
            self.theta,
            self.sigma,
            self.eta,
            self.scale,
            weights=weights,
            reduction=self.reduction,
        )

    def extra_repr(self) -> str:
        own = f"sigma={self.sigma:g}, eta={self.eta:g}, scale={self.scale!r}"
        theta, *rest = super().extra_repr().split(", ")
        return ", ".join([theta, own, *rest])


class AdaFlood(_OverBase):
    """mean(θ_i + |ℓ_i − θ_i|): flooding with a level of its own for every sample, found by its index.

    (n, C), (n,), (n,) indices → (). `theta`: levels in nats, a vector whose i-th entry is sample i's,
    or a mapping index → level; `functional.flood_levels` makes them of the losses of auxiliary
    models. Raises IndexError for an index without a level, never taking 0, and ValueError for levels
    that are no finite vector. Bae et al. (2024).

    >>> criterion = AdaFlood({7: 0.1, 3: 0.4})
    >>> criterion(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([3, 7]))
    tensor(0.6931)
    """

    ids: Tensor
    theta: Tensor

    if TYPE_CHECKING:

        def __call__(self, input: Tensor, target: Tensor, index: Tensor) -> Tensor: ...

    def __init__(
        self,
        theta: Tensor | np.ndarray | Mapping[int, float],
        *,
        base: Base | None = None,
        reduction: str = "mean",
    ):
        super().__init__(base, reduction=reduction)
        ids, levels = _levels_by_index(theta)
        self.register_buffer("ids", ids)
        self.register_buffer("theta", levels)

    def forward(self, input: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """Logits, targets and the samples' indices (n,), in whatever order → ()."""
        losses, weights = samples(self.base, input, target)
        if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
            kind = index.dtype if isinstance(index, Tensor) else type(index).__name__
            raise ValueError(f"index must be a tensor of whole numbers, one per sample, got {kind}")
        if index.shape != losses.shape:
            raise ValueError(
                f"index must have shape {tuple(losses.shape)}, one per loss, got {tuple(index.shape)}"
            )
        index = index.to(self.ids)
        place = torch.searchsorted(self.ids, index).clamp(max=len(self.ids) - 1)
        known = self.ids[place] == index
        if torch.compiler.is_compiling():
            torch._assert_async(known.all(), "an index has no flood level")
        elif len(strange := index[~known]):
            raise IndexError(
                f"index {strange[0].item()} has no flood level; {len(self.ids)} samples have one"
            )
        dtype = torch.promote_types(losses.dtype, torch.float32)
        levels = self.theta[place].to(losses.device, dtype)
        return F.adaflood(losses, levels, weights=weights, reduction=self.reduction)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"{len(self.ids)} levels", super().extra_repr()]))


def _levels_by_index(theta: Tensor | np.ndarray | Mapping[int, float]) -> tuple[Tensor, Tensor]:
    """Indices (N,), ascending, and their levels (N,); ValueError for what cannot be levels."""
    wanted = "theta must be a vector of finite levels or a mapping from index to level"
    try:
        keys = sorted(theta) if isinstance(theta, Mapping) else None
        levels = torch.as_tensor(theta if keys is None else [float(theta[i]) for i in keys])
        ids = torch.as_tensor(range(len(levels)) if keys is None else keys)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{wanted}, got {theta!r}") from error
    if not levels.is_floating_point() or levels.ndim != 1 or not len(levels):
        raise UserError(f"{wanted}, got {levels.dtype} of shape {tuple(levels.shape)}")
    if ids.dtype != torch.int64:
        raise UserError(f"{wanted}, got indices of {ids.dtype}")
    if not levels.isfinite().all():
        raise UserError(f"{wanted}, got {levels[~levels.isfinite()][0].item()}")
    return ids, levels.detach().clone()
