"""θ without a grid: from the validation logits of one ordinary training run.

The logits tell how over-confident the run is; they cannot tell label noise from a network's own
mistakes. So noise is what the caller says it is, and θ is otherwise a convention that is lowered,
or withheld, where SoftAD is predicted to cost more than it saves.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softadlib._validation import real
from softadlib.functional import LN2
from softadlib.losses.threshold.bayes import Values, as_tensor, bayes_error
from softadlib.losses.threshold.calibration import Calibration, calibrate, check_validation, scaled
from softadlib.losses.threshold.minimiser import excess_loss

RULE = 2
"""Raised by hand whenever the same logits would give another θ: stored suggestions are made anew."""
FLOOR = 0.01
"""The smallest θ that is suggested."""
TWO_CLASSES, MORE_CLASSES = 0.1, 0.01
"""θ where nothing is known of the labels."""
CAP = 0.9 * LN2
"""The largest θ that is suggested: from ln 2 on, the wrong one of two classes wins."""
SMALL = 50
"""Validation samples below which the suggestion warns of their number."""


@dataclass(frozen=True)
class Suggestion:
    """θ, what is predicted of it, and why; `str` gives the reasons a line each.

    All losses are mean validation cross-entropies in nats.
    """

    theta: float | None
    """None where no θ from `theta_low` up pays, or where the network only guesses."""
    theta_low: float
    """The smallest θ that is ever suggested."""
    theta_high: float
    """The largest θ at which SoftAD is predicted to cost no more than the ordinary run; 0: none."""
    temperature: float
    """T: what divides the ordinary run's logits in temperature scaling."""
    loss: float
    """Of the ordinary run."""
    scaled_loss: float
    """Of the ordinary run after temperature scaling, leave-one-out."""
    predicted_loss: float
    """Of SoftAD at θ, or at `theta_low` where θ is None."""
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.reasons)


def suggest_theta(
    logits: Values,
    targets: Values,
    *,
    flip_rate: float | None = None,
    soft_labels: Values | None = None,
    prior: float = 1.0,
) -> Suggestion:
    r"""Suggest θ = min(wanted, break-even) from an ordinary run's validation logits.

    *Wanted* is −ln(1 − β), the loss of a sample whose label is the likelier one, where the labels
    are wrong at a rate β: `flip_rate`, or the Bayes error of `soft_labels`. Without either it is a
    convention: 0.1 for two classes, 0.01 for more, where higher levels cost accuracy.

    *Break-even* is the largest θ at which SoftAD is predicted to cost no more than the ordinary run:
    `excess_loss`(p, θ) ≤ `loss` − max(`scaled_loss`, entropy), p and entropy of scaled logits.
    Where it lies below 0.01, or the network guesses, θ is None: keep the ordinary run, and divide
    its logits by `temperature`.

    Args:
        logits: (n, K) after training, array or tensor.
        targets: (n,) class indices.
        flip_rate: share of labels that are flipped, in [0, 1 − 1/K).
        soft_labels: (m, K) or, for two classes, (m,); of these samples or of others.
        prior: of `fit_temperature`.

    Returns:
        A `Suggestion`.

    Raises:
        ValueError: shapes that disagree, NaN, one class, one sample, probabilities in place of
            logits, both `flip_rate` and `soft_labels`, soft labels that claim more mistakes than
            the network makes.

    Example:
        >>> logits = torch.tensor([[8.0, 0.0], [0.0, 8.0], [8.0, 0.0], [0.0, 8.0]]).repeat(25, 1)
        >>> targets = torch.tensor([0, 1, 0, 1]).repeat(25)
        >>> targets[:10] = 1 - targets[:10]
        >>> suggestion = suggest_theta(logits, targets)
        >>> suggestion.theta
        0.1
        >>> suggestion.scaled_loss < suggestion.predicted_loss < suggestion.loss
        True
    """
    z, y = check_validation(logits, targets)
    noise, noise_reason = _label_noise(z, y, flip_rate, soft_labels)
    return _decide(z, y, noise, noise_reason, calibrate(z, y, prior=prior))


def _decide(
    z: Tensor, y: Tensor, noise: float | None, noise_reason: str, fit: Calibration
) -> Suggestion:
    """Return the suggestion for logits `z` and targets `y` at a rate `noise` of wrong labels."""
    confidence, entropy = scaled(z, fit.temperature)
    # where the scaled probabilities are less sure than the losses are small, the former count
    saved = fit.before - max(fit.after, entropy)
    high = _break_even(confidence, saved)
    wanted = _wanted(noise, z.shape[1])
    guesses = _guesses(z, y, fit)
    theta = None if guesses or high < FLOOR else min(wanted, high)
    predicted = fit.after + excess_loss(confidence, theta or FLOOR)
    losses = f"predicted loss {predicted:.3g}, of the ordinary run {fit.before:.3g}"
    scaling = (
        f"temperature scaling alone: T = {fit.temperature:.3g}, loss {fit.before:.3g} before and "
        f"{fit.after:.3g} after (leave-one-out)"
    )
    warnings = _warnings(fit, len(y), guesses)
    reasons = (scaling, noise_reason, *warnings, _theta_reason(theta, wanted, guesses, losses))
    return Suggestion(
        theta, FLOOR, high, fit.temperature, fit.before, fit.after, predicted, reasons
    )


def _wanted(noise: float | None, classes: int) -> float:
    """Return −ln(1 − `noise`), at least `FLOOR`; the convention for so many classes where it is None."""
    if noise is None:
        return TWO_CLASSES if classes == 2 else MORE_CLASSES
    return max(FLOOR, -math.log1p(-noise))


def _label_noise(
    z: Tensor, y: Tensor, flip_rate: float | None, soft_labels: Values | None
) -> tuple[float | None, str]:
    """Return the rate at which labels are wrong, None where nobody said, and where it comes from."""
    if flip_rate is not None and soft_labels is not None:
        raise ValueError("flip_rate and soft_labels both say how noisy the labels are; give one")
    classes = z.shape[1]
    if flip_rate is not None:
        rate = real("flip_rate", flip_rate, low=0, below=1 - 1 / classes)
        return rate, f"label noise: {rate:g} of the labels are flipped, as given"
    if soft_labels is None:
        return None, (
            "label noise: none assumed, since mistakes of a network do not tell it from few data; "
            f"θ starts from a convention for {classes} classes"
        )
    beta = bayes_error(soft_labels)
    shape = tuple(as_tensor("soft labels", soft_labels).shape)
    if (shape[1] if len(shape) == 2 else 2) != classes:
        raise ValueError(f"soft labels are of shape {shape}, logits of {classes} classes")
    # the rule of succession: no mistake among n is no proof of none
    error = (int((z.argmax(1) != y).sum()) + 1) / (len(y) + 2)
    if beta.low > error:
        raise ValueError(
            f"soft labels claim a Bayes error of {beta.value:.3g}, but the network errs on "
            f"{error:.3g}; calibrate them, or leave them out"
        )
    return beta.value, f"label noise: soft labels give a Bayes error of {beta.value:.3g}"


def _break_even(confidence: Tensor, saved: float) -> float:
    """Return the largest θ up to `CAP` whose `excess_loss` is at most `saved`, 0 where there is none."""
    if excess_loss(confidence, CAP) <= saved:
        return CAP
    if excess_loss(confidence, 0.0) > saved:
        return 0.0
    low, high = 0.0, CAP
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if excess_loss(confidence, middle) <= saved else (low, middle)
    return low


def _guesses(z: Tensor, y: Tensor, fit: Calibration) -> bool:
    """Tell whether neither accuracy nor scaled loss beats the class frequencies by two standard errors."""
    frequency = torch.bincount(y, minlength=z.shape[1]) / len(y)
    majority = float(frequency.max())
    accuracy = float((z.argmax(1) == y).double().mean())
    error = math.sqrt(majority * (1 - majority) / len(y))
    constant = float(torch.special.entr(frequency).sum())
    return accuracy < majority + 2 * error and fit.after + 2 * fit.error > constant


def _warnings(fit: Calibration, n: int, guesses: bool) -> list[str]:
    """Return reasons to trust the suggestion less."""
    warnings = []
    if guesses:
        warnings.append("the network guesses: it is no better than the classes' frequencies")
    if n < SMALL:
        warnings.append(f"only {n} validation samples: another {n} may say something else")
    elif abs(fit.before - fit.after) < 2 * fit.gain_error:
        warnings.append(
            f"what scaling gains, {fit.before - fit.after:.2g} ± {2 * fit.gain_error:.2g} nats, "
            f"{n} validation samples do not tell from nothing"
        )
    if fit.at_bound:
        warnings.append(f"T = {fit.temperature:.3g} is at its bound: the logits are of an odd size")
    return warnings


def _theta_reason(theta: float | None, wanted: float, guesses: bool, losses: str) -> str:
    """Say why θ is what it is."""
    if theta is None and guesses:
        return "no θ: a network that guesses says nothing of one; train it to learn first"
    too_much = "SoftAD would cost more than it saves"
    if theta is None:
        advice = "keep the ordinary run and divide its logits by T"
        return f"no θ: even at {FLOOR:g} {too_much} ({losses}); {advice}"
    why = f"at {wanted:.3g} {too_much}; " if theta < wanted else ""
    return f"θ = {theta:.3g}: {why}{losses}"
