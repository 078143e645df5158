"""The class probabilities that a criterion stands for: p from a network's logits, in closed form.

A criterion that is the mean of f(ℓ) over samples, ℓ = −ln q_y, is smallest at another softmax q than
the class probabilities p: at its minimum p_k ∝ q_k / f′(−ln q_k). Cross-entropy has f′ = 1 and q = p.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from softadlib._validation import UserError
from softadlib.functional.objectives import focal_weights, iflood_weights, softad_weights
from softadlib.functional.reduction import in_float32

LEAST_WEIGHT = 1e-6
"""Smallest weight of a class relative to the largest of its row; a smaller or negative one counts as that."""


def class_log_probabilities(logits: Tensor, weight: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ln p of `class_probabilities`, (…, C) → (…, C); finite for finite logits."""
    log_q = _log_softmax(logits)
    losses = -log_q
    weights = weight(losses.flatten()).view(losses.shape)
    least = LEAST_WEIGHT * weights.amax(-1, keepdim=True)
    least = least.clamp_min(torch.finfo(least.dtype).tiny)
    log_p = log_q - torch.maximum(weights, least).log()
    return log_p.log_softmax(-1)


def class_probabilities(logits: Tensor, weight: Callable[[Tensor], Tensor]) -> Tensor:
    r"""p_k ∝ q_k / w(−ln q_k) with q = softmax(logits), (…, C) → (…, C).

    The class probabilities at which mean f(ℓ), ℓ the cross-entropy, is smallest for these logits; w is
    f′, the weight of a sample's gradient. Where w falls to 0, as for SoftAD at −ln q_k = θ, p_k is 1.
    Beyond, where no p asks for such a q_k, all that is left goes to k too: a weight below
    1e-6 of the row's largest counts as that, so that logarithms of p stay finite.

    Args:
        logits: (…, C), floats. Half precision is computed, and returned, in float32.
        weight: losses (m,) in nats ↦ w (m,), positive where q is the softmax that some p asks for.

    Raises:
        ValueError: logits that are no float tensor with two classes at least.

    Example:
        >>> from softadlib.functional import softad_weights
        >>> logits = torch.tensor([[0.75, 0.25]]).log()
        >>> class_probabilities(logits, lambda losses: softad_weights(losses, 0.0))
        tensor([[0.8984, 0.1016]])

    Source: Williamson, Vernet & Reid (2016) for losses in general.
    """
    return class_log_probabilities(logits, weight).exp()


def _log_softmax(logits: Tensor) -> Tensor:
    """Return ln softmax(logits) in float32 at least, finite for finite logits."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"logits must be a float tensor of shape (n, C), got {kind}")
    if logits.ndim == 0 or logits.shape[-1] < 2:
        raise UserError(
            f"logits must have shape (n, C), a column for each of two classes or more, got {tuple(logits.shape)}"
        )
    log_q = in_float32(logits).log_softmax(-1)
    return log_q.clamp_min(torch.finfo(log_q.dtype).min)


def erm_log_probabilities(logits: Tensor, knob: object = None) -> Tensor:
    """Return ln softmax(logits): cross-entropy asks for the class probabilities themselves."""
    return _log_softmax(logits)


def softad_log_probabilities(
    logits: Tensor,
    theta: float | Tensor,
    sigma: float | Tensor = 1.0,
    eta: float = 1.0,
    scale: str = "code",
) -> Tensor:
    """Return ln p with p_k ∝ q_k / φ((−ln q_k − θ)/σ); η and the scale do not move it."""
    return class_log_probabilities(
        logits, lambda losses: softad_weights(losses, theta, sigma, "text")
    )


def softad_width_log_probabilities(
    logits: Tensor, sigma: float | Tensor, theta: float = 0.01
) -> Tensor:
    """Return `softad_log_probabilities` with its arguments in the other order."""
    return softad_log_probabilities(logits, theta, sigma)


def iflood_log_probabilities(logits: Tensor, theta: float | Tensor) -> Tensor:
    """Return ln p: p = q where no q_k exceeds e^−θ, else p_k = 1 for the class that does."""
    return class_log_probabilities(logits, lambda losses: iflood_weights(losses, theta))


def focal_log_probabilities(logits: Tensor, gamma: float | Tensor) -> Tensor:
    """Return ln p with p_k ∝ q_k / w(q_k), w the weight of the focal loss. Charoenphakdee et al. (2021)."""
    return class_log_probabilities(logits, lambda losses: focal_weights(losses, gamma))


def smoothing_log_probabilities(logits: Tensor, alpha: float | Tensor) -> Tensor:
    """Return ln p with p_k ∝ q_k − α/C: smoothed labels ask for q = (1 − α)p + α/C.

    A q_k of less than α/C gives p_k = 1e-6·q_k before the row is divided by its sum.
    """
    log_q = _log_softmax(logits)
    share = torch.as_tensor(alpha / log_q.shape[-1], dtype=log_q.dtype, device=log_q.device)
    left = 1 - (share.log() - log_q).exp()  # of q_k, once the uniform part is taken off
    log_p = log_q + left.clamp_min(LEAST_WEIGHT).log()
    return log_p.log_softmax(-1)
