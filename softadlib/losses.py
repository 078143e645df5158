"""Criteria: drop-in replacements for `nn.CrossEntropyLoss` over `softadlib.functional`."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from . import functional as F


class CalibrationWarning(UserWarning):
    """θ is so high that the criterion's minimiser predicts the wrong class."""


def _number(
    name: str,
    value: float,
    *,
    positive: bool = False,
    low: float = -math.inf,
    below: float = math.inf,
) -> float:
    try:
        number = math.nan if isinstance(value, Tensor) and value.requires_grad else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if (
        isinstance(value, (bool, np.bool_, str))
        or not math.isfinite(number)
        or (positive and number <= 0)
    ):
        wanted = "a positive number" if positive else "a finite number"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    if not low <= number < below:
        wanted = f"at least {low:g}" + (f" and below {below:g}" if below < math.inf else "")
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    return number


def _warn_uncalibrated(theta: float, base: object, name: str) -> None:
    if theta >= F.LN2 and isinstance(base, nn.CrossEntropyLoss):
        warnings.warn(
            f"{name}(theta={theta:g}): with cross-entropy and theta >= ln 2 = {F.LN2:.4f} the most "
            "likely class is pushed to probability exp(-theta) <= 1/2, so the minimiser predicts the "
            "wrong class; use a smaller theta",
            CalibrationWarning,
            stacklevel=3,
        )


class Criterion(nn.Module):
    """A scalar criterion over a base loss that gives one value per sample.

    `base` is any callable (input, target) → per-sample losses; default cross-entropy. A torch loss
    with another `reduction` is copied and set to "none". Subclasses write `reduce`. Targets that the
    base ignores count as samples of loss 0: mask them out before, if there are any.
    """

    def __init__(self, base: Callable[[Tensor, Tensor], Tensor] | None = None):
        super().__init__()
        base = nn.CrossEntropyLoss(reduction="none") if base is None else base
        if not callable(base) or isinstance(base, type):
            raise ValueError(f"base must be a callable (input, target) → losses, got {base!r}")
        if getattr(base, "reduction", "none") != "none":
            base = copy.deepcopy(base)  # a shallow copy would share the user's buffers
            base.reduction = "none"
        self.base = base

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """(n, C) logits and (n,) targets → (), or whatever shapes `base` takes."""
        return self.reduce(self._losses(input, target).flatten())

    def _losses(self, input: Tensor, target: Tensor) -> Tensor:
        losses = self.base(input, target)
        if not isinstance(losses, Tensor) or losses.ndim == 0:
            raise ValueError(
                f"base {self.base!r} must give one loss per sample, shape (n,); "
                "it gave a single value: use reduction='none'"
            )
        return losses

    def reduce(self, losses: Tensor) -> Tensor:
        """Per-sample losses (n,) → ()."""
        raise NotImplementedError


class ERM(Criterion):
    """mean ℓ: empirical risk minimisation, the baseline. (n, C), (n,) → ()."""

    def reduce(self, losses: Tensor) -> Tensor:
        return F.erm(losses)


class _Thresholded(Criterion):
    def __init__(self, theta: float, *, base: Callable[[Tensor, Tensor], Tensor] | None = None):
        super().__init__(base)
        self.theta = _number("theta", theta)

    def extra_repr(self) -> str:
        return f"theta={self.theta:g}"


class Flooding(_Thresholded):
    """θ + |mean ℓ − θ|: descends above the flood level θ, ascends below, whole batch at once.

    (n, C), (n,) → (). θ in nats. Ishida et al. (2020).
    """

    def reduce(self, losses: Tensor) -> Tensor:
        return F.flooding(losses, self.theta)


class IFlood(_Thresholded):
    """mean(θ + |ℓ − θ|): flooding sample by sample. (n, C), (n,) → (). Xie et al. (2022)."""

    def __init__(self, theta: float, *, base: Callable[[Tensor, Tensor], Tensor] | None = None):
        super().__init__(theta, base=base)
        _warn_uncalibrated(self.theta, self.base, "IFlood")

    def reduce(self, losses: Tensor) -> Tensor:
        return F.iflood(losses, self.theta)


class SoftAD(_Thresholded):
    """η·θ + σ²·mean ρ((ℓ−θ)/σ), ρ(x) = √(1+x²) − 1: soft ascent-descent around θ.

    (n, C), (n,) → (). θ, σ in nats, σ > 0. `scale="text"` puts σ in place of σ².
    Raises ValueError for values out of range; warns (`CalibrationWarning`) when θ ≥ ln 2.
    Holland & Nakatani (2024).

    >>> import torch
    >>> criterion = SoftAD(theta=0.1)
    >>> criterion(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))
    tensor(0.2627)
    """

    def __init__(
        self,
        theta: float,
        sigma: float = 1.0,
        eta: float = 1.0,
        *,
        scale: str = "code",
        base: Callable[[Tensor, Tensor], Tensor] | None = None,
    ):
        super().__init__(theta, base=base)
        self.sigma = _number("sigma", sigma, positive=True)
        self.eta = _number("eta", eta)
        if scale not in F.SCALES:
            raise ValueError(f"scale {scale!r} unknown; choose from {', '.join(F.SCALES)}")
        self.scale = scale
        _warn_uncalibrated(self.theta, self.base, "SoftAD")

    def reduce(self, losses: Tensor) -> Tensor:
        return F.softad(losses, self.theta, self.sigma, self.eta, self.scale)

    def extra_repr(self) -> str:
        return f"theta={self.theta:g}, sigma={self.sigma:g}, eta={self.eta:g}, scale={self.scale!r}"


class AdaFlood(Criterion):
    """mean(θ_i + |ℓ_i − θ_i|): flooding with a level of its own for every sample, found by its index.

    (n, C), (n,), (n,) indices → (). `theta`: levels in nats, a vector whose i-th entry is sample i's,
    or a mapping index → level; `functional.flood_levels` makes them of the losses of auxiliary
    models. An index without a level is an IndexError, never a level of 0. Bae et al. (2024).

    >>> criterion = AdaFlood({7: 0.1, 3: 0.4})
    >>> criterion(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([3, 7]))
    tensor(0.6931)
    """

    def __init__(
        self,
        theta: Tensor | np.ndarray | Mapping[int, float],
        *,
        base: Callable[[Tensor, Tensor], Tensor] | None = None,
    ):
        super().__init__(base)
        ids, levels = _levels(theta)
        self.register_buffer("ids", ids)
        self.register_buffer("theta", levels)

    def forward(self, input: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """Logits, targets and the samples' indices (n,), in whatever order → ()."""
        losses = self._losses(input, target)
        if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
            kind = index.dtype if isinstance(index, Tensor) else type(index).__name__
            raise ValueError(f"index must be a tensor of whole numbers, one per sample, got {kind}")
        if index.shape != losses.shape:
            raise ValueError(
                f"index must have shape {tuple(losses.shape)}, one per loss, got {tuple(index.shape)}"
            )
        index = index.to(self.ids)
        place = torch.searchsorted(self.ids, index).clamp(max=len(self.ids) - 1)
        strange = index[self.ids[place] != index]
        if len(strange):
            raise IndexError(
                f"index {strange[0].item()} has no flood level; {len(self.ids)} samples have one"
            )
        dtype = torch.promote_types(losses.dtype, torch.float32)
        return F.adaflood(losses, self.theta[place].to(losses.device, dtype))

    def extra_repr(self) -> str:
        return f"{len(self.ids)} levels"


def _levels(theta: Tensor | np.ndarray | Mapping[int, float]) -> tuple[Tensor, Tensor]:
    """Indices (N,), ascending, and their levels (N,); ValueError for what cannot be levels."""
    wanted = "theta must be a vector of finite levels or a mapping from index to level"
    try:
        ids = sorted(theta) if isinstance(theta, Mapping) else None
        levels = torch.as_tensor(theta if ids is None else [float(theta[i]) for i in ids])
        ids = torch.as_tensor(range(len(levels)) if ids is None else ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{wanted}, got {theta!r}") from error
    if not levels.is_floating_point() or levels.ndim != 1 or not len(levels):
        raise ValueError(f"{wanted}, got {levels.dtype} of shape {tuple(levels.shape)}")
    if ids.dtype != torch.int64:
        raise ValueError(f"{wanted}, got indices of {ids.dtype}")
    if not levels.isfinite().all():
        raise ValueError(f"{wanted}, got {levels[~levels.isfinite()][0].item()}")
    return ids, levels.detach().clone()
