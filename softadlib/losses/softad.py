"""SoftAD and the criteria it is compared with: drop-in replacements for `nn.CrossEntropyLoss`."""

from torch import Tensor

from softadlib import functional as F
from softadlib._validation import choose, real
from softadlib.functional.objectives import MIN_SIGMA
from softadlib.functional.reduction import Weights
from softadlib.losses.base import Base
from softadlib.losses.criterion import Criterion
from softadlib.losses.thresholded import Thresholded


class ERM(Criterion):
    """mean ℓ: empirical risk minimisation, the baseline. Equal to torch's loss with its options.

    Args:
        base: per-sample loss, see `Criterion`. Default: `nn.CrossEntropyLoss()`.
        reduction: "mean", "sum" or "none", of the weighted losses.

    Shape:
        input (n, C), target (n,) → (), in the unit of ℓ, nats for cross-entropy.

    Raises:
        ValueError: as `Criterion`.

    Vapnik (1992).

    Example:
        >>> import torch
        >>> ERM()(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))  # ln 2
        tensor(0.6931)
    """

    def reduce(self, losses: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
        return F.erm(losses, sample_weight=weights, reduction=reduction)


class Focal(Criterion):
    """mean((1 − p)^γ·ℓ), p = e^−ℓ: samples that are right already count less. Never ascends.

    Where the base smooths labels, or weighs inside the loss, p is not the model's probability.

    Args:
        gamma: at least 0 and without a unit; 0 is ERM.
        base: per-sample loss of at least 0, see `Criterion`. Default: `nn.CrossEntropyLoss()`.
        reduction: "mean", "sum" or "none", of the weighted values.

    Shape:
        input (n, C), target (n,) → ().

    Raises:
        ValueError: for a γ below 0, and as `Criterion`.

    Lin et al. (2017).

    Example:
        >>> import torch
        >>> Focal(gamma=2)(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))  # ¼·ln 2
        tensor(0.1733)
    """

    settings = ("gamma",)

    def __init__(self, gamma: float = 2.0, *, base: Base | None = None, reduction: str = "mean"):
        super().__init__(base, reduction=reduction)
        self.gamma = real("gamma", gamma, low=0)

    def reduce(self, losses: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
        return F.focal(losses, self.gamma, sample_weight=weights, reduction=reduction)


class Flooding(Thresholded):
    """θ + |mean ℓ − θ|: descends above the flood level θ, ascends below, the whole batch at once.

    Values of parts of a batch do not add up: over micro-batches and processes add up gradients of the
    mean loss, and turn their sign once, as the page `notebooks/recipes.ipynb` does in eight lines.

    Args:
        theta: flood level in nats, any finite number. If no loss is below 0, a level of 0 or less
            gives ERM. It cannot be learned; assign `criterion.theta`.
        base: per-sample loss, see `Criterion`. Default: `nn.CrossEntropyLoss()`.

    Shape:
        input (n, C), target (n,) → ().

    Raises:
        ValueError: for a θ that is no finite number, and as `Criterion`.
        InertWarning: θ below the smallest loss of smoothed targets.

    Ishida et al. (2020).

    Example:
        >>> import torch
        >>> Flooding(theta=0.7)(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))  # 0.7 + (0.7 − ln 2)
        tensor(0.7069)
    """

    additive = False

    def __init__(self, theta: float, *, base: Base | None = None):
        super().__init__(theta, base=base)

    def reduce(self, losses: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
        self._check_reduction(reduction)
        return F.flooding(losses, self.theta, sample_weight=weights)


class IFlood(Thresholded):
    """mean(θ + |ℓ − θ|): flooding sample by sample.

    Args:
        theta: level in nats, any finite number. It cannot be learned.
        base: per-sample loss, see `Criterion`. Default: `nn.CrossEntropyLoss()`.
        reduction: "mean", "sum" or "none", of the weighted values.

    Shape:
        input (n, C), target (n,) → ().

    Raises:
        ValueError: for a θ that is no finite number, and as `Criterion`.
        CalibrationWarning: θ ≥ ln 2 with one of torch's cross-entropies; with label smoothing θ from
            `cross_entropy_levels(…).calibrated_below` on. Binary ones with weights inside raise none.
        InertWarning: θ below the smallest loss of smoothed targets.

    Xie et al. (2022).

    Example:
        >>> import torch
        >>> IFlood(theta=0.1, base=torch.nn.L1Loss())(torch.tensor([0.0, 1.0]), torch.zeros(2))  # (0.2 + 1)/2
        tensor(0.6000)
    """

    def reduce(self, losses: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
        return F.iflood(losses, self.theta, sample_weight=weights, reduction=reduction)


class SoftAD(Thresholded):
    """η·θ + σ²·mean ρ((ℓ−θ)/σ), ρ(x) = √(1+x²) − 1: soft ascent-descent around θ.

    The gradient of a sample has the weight σφ((ℓ−θ)/σ), φ(x) = x/√(1+x²): samples above θ descend,
    samples below ascend, those near θ hardly move. It trains a network to the logits of cross-entropy
    divided by `criterion.temperature()`, about two for σ = 1 and a small θ. At the minimum the softmax is less
    confident than the true probabilities; `criterion.probabilities(logits)` undoes that. Use
    `probabilities` where the validation cross-entropy is lower with them, else the softmax.

    Args:
        theta: level in nats. Try 0.01, stay below ln 2 ≈ 0.69. It cannot be learned; assign
            `criterion.theta` in the loop to move it.
        sigma: width in nats of the region around θ in which steps are short, at least 1e-12.
        eta: factor of θ in the value. It never changes a gradient in the weights.
        scale: "code" has σ² before the mean and weights σφ, as the paper's code; "text" has σ and
            weights φ, as its text. They are equal at σ = 1.
        base: per-sample loss, see `Criterion`. Default: `nn.CrossEntropyLoss()`.
        reduction: "mean", "sum" or "none", of the weighted values.

    Shape:
        input (n, C), target (n,) → (). A loss of ∞ gives NaN.

    Raises:
        ValueError: for numbers out of range, an unknown scale, and as `Criterion`.
        CalibrationWarning: θ ≥ ln 2 with one of torch's cross-entropies; with label smoothing θ from
            `cross_entropy_levels(…).calibrated_below` on. Binary ones with weights inside raise none.
        InertWarning: θ below the smallest loss of smoothed targets.

    Holland & Nakatani (2024).

    Example:
        >>> import torch
        >>> criterion = SoftAD(theta=0.25, base=torch.nn.L1Loss())
        >>> criterion(torch.tensor([1.0, 0.25]), torch.zeros(2))  # 0.25 + (ρ(0.75) + 0)/2, ρ(0.75) = 0.25
        tensor(0.3750)
        >>> SoftAD(theta=0.1)(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))  # ℓ = ln 2
        tensor(0.2627)
    """

    settings = ("theta", "sigma", "eta", "scale")

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
        self.sigma = real("sigma", sigma, low=MIN_SIGMA)
        self.eta = real("eta", eta)
        choose("scale", scale, F.SCALES)
        self.scale = scale

    def reduce(self, losses: Tensor, weights: Weights = None, reduction: str = "mean") -> Tensor:
        return F.softad(
            losses,
            self.theta,
            self.sigma,
            self.eta,
            self.scale,
            sample_weight=weights,
            reduction=reduction,
        )
