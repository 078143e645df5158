"""The class probabilities that a criterion stands for: p from a network's logits, in closed form.

A criterion that is the mean of f(ℓ) over samples, ℓ = −ln q_y, is smallest at another softmax q than
the class probabilities p: at its minimum p_k ∝ q_k / f′(−ln q_k). Cross-entropy has f′ = 1 and q = p.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from softadlib._validation import UserError, real
from softadlib.functional.reduction import Number, check_number, in_float32, kind_of

LEAST_SLOPE = 1e-6
"""Least f′ of a class relative to the largest in its row; smaller or negative ones are raised to it."""


def class_probabilities(
    logits: Tensor, derivative: Callable[[Tensor], Tensor], smoothing: Number = 0.0
) -> Tensor:
    r"""p_k ∝ q_k / f′(−ln q_k) with q = softmax(logits), (…, C) → (…, C).

    The class probabilities for which these logits minimise the mean of f(ℓ), ℓ the cross-entropy.
    Where f′ falls to 0, as SoftAD's does at −ln q_k = θ, p_k is 1. Where f′ < 0 and θ < ln 2, no
    distribution has this q_k as its minimiser; p_k is set to 1. An f′ below 1e-6 of the largest in its
    row is raised to that, so that ln p is finite: the loss of a wrong sample grows by at most 13.8 nats.

    With label smoothing α, ℓ_k = −(1 − α) ln q_k − α mean_j ln q_j, and q_k is replaced by
    max(q_k − α/C, 1e-6·q_k).

    Args:
        logits: (…, C), floats. Of half precision p is computed, and returned, in float32.
        derivative: losses (m,) in nats ↦ f′ (m,), up to a factor.
        smoothing: α of the targets, at least 0 and below 1.

    Raises:
        ValueError: logits that are no float tensor with two classes or more, and another α.

    Example:
        >>> from softadlib.functional import softad_derivative
        >>> logits = torch.tensor([[0.75, 0.25]]).log()
        >>> class_probabilities(logits, lambda losses: softad_derivative(losses, theta=0.0))
        tensor([[0.8980, 0.1020]])

    Source: Williamson, Vernet & Reid (2016) for any loss; Charoenphakdee et al. (2021) for focal loss.
    """
    return class_log_probabilities(logits, derivative, smoothing).exp()


def temperature_asked(
    derivative: Callable[[Tensor], Tensor], p: float = 0.9, smoothing: float = 0.0
) -> float:
    r"""T for which the mean of f(ℓ) asks for the logits that cross-entropy asks for, divided by T.

    Two classes, one of which has probability p: the minimiser q of f has p ∝ q / f′(−ln q), that of
    cross-entropy has q = p. T = logit p / logit q, so T > 1 asks for less confidence. T depends little on
    p where f is near a temperature: it lies in [1.9745, 2) for SoftAD with θ = 0 and σ = 1. It is ∞ where
    f′(ln 2) ≤ 0, because no q > ½ is a minimiser then.

    Args:
        derivative: losses (m,) in nats ↦ f′ (m,), up to a factor.
        p: probability of the likelier class, above ½ and below 1.
        smoothing: α of the targets, at least 0 and below 1.

    Raises:
        ValueError: for other numbers.

    Example:
        >>> from softadlib.functional import softad_derivative
        >>> round(temperature_asked(lambda losses: softad_derivative(losses, theta=0.0)), 4)
        1.9797
    """
    odds = math.log(p / (1 - real("p", p, above=0.5, below=1)))
    if derivative(torch.tensor([math.log(2)], dtype=torch.float64)).item() <= 0:
        return math.inf
    low, high = 0.0, 700.0  # logit q, bisected to the last digit: e⁷⁰⁰ is the end of float64
    for _ in range(64):
        middle = (low + high) / 2
        both = torch.tensor([middle, 0.0], dtype=torch.float64)
        log_p = class_log_probabilities(both, derivative, smoothing)
        if (log_p[0] - log_p[1]).item() < odds:
            low = middle
        else:
            high = middle
    return odds / high


def class_log_probabilities(
    logits: Tensor, derivative: Callable[[Tensor], Tensor], smoothing: Number = 0.0
) -> Tensor:
    """ln p of `class_probabilities`, with the same arguments; finite where the logits are.

    >>> logits = torch.tensor([[0.9, 0.1]]).log()
    >>> class_log_probabilities(logits, torch.ones_like, smoothing=0.2).exp()  # (0.9 − 0.1)/0.8
    tensor([[1.0000e+00, 1.2500e-07]])
    """
    check_number("smoothing", smoothing, low=0, below=1)
    log_q = _log_softmax(logits)
    losses, log_r = -log_q, log_q
    if isinstance(smoothing, Tensor) or smoothing:
        losses = (1 - smoothing) * losses + smoothing * losses.mean(-1, keepdim=True)
        log_r = log_q + _log_share_left(log_q, smoothing)
    slopes = derivative(losses.flatten()).view(losses.shape)
    least = LEAST_SLOPE * slopes.amax(-1, keepdim=True)
    least = least.clamp_min(torch.finfo(least.dtype).tiny)
    return (log_r - torch.maximum(slopes, least).log()).log_softmax(-1)


def _log_softmax(logits: Tensor) -> Tensor:
    """Return ln softmax(logits) in float32 at least, and so large that a sum over the classes is finite."""
    is_float = isinstance(logits, Tensor) and logits.is_floating_point()
    if not is_float or logits.ndim == 0 or logits.shape[-1] < 2:
        raise UserError(
            f"logits must be a float tensor (n, C), a column for each class, got {kind_of(logits)}; for "
            "one logit z of two classes pass the columns 0 and z"
        )
    log_q = in_float32(logits).log_softmax(-1)
    return log_q.clamp_min(torch.finfo(log_q.dtype).min / (2 * log_q.shape[-1]))


def _log_share_left(log_q: Tensor, smoothing: Number) -> Tensor:
    """Return ln(1 − α/(C q_k)): the share of q_k that is left without the uniform part of the targets."""
    uniform = torch.as_tensor(smoothing / log_q.shape[-1], dtype=log_q.dtype, device=log_q.device)
    return (1 - (uniform.log() - log_q).exp()).clamp_min(LEAST_SLOPE).log()
