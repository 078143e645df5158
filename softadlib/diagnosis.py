"""Is a trained network too sure, and what helps: `diagnose`, from logits alone."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as nnF
from numpy.typing import ArrayLike
from torch import Tensor

from softadlib.calibration import columns, expected_calibration_error, fit_temperature

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Diagnosis", "diagnose"]
THRESHOLD = math.sqrt(2)
"""SoftAD acts as a temperature of two, and a factor of two helps where the best factor is above its square root."""
EVIDENCE = (
    "right in 53 of 55 settings of the 20 data sets on which this was found, "
    "and in 56 of 60 of ten others, 10 to 15 trials each"
)
"""What the threshold rests on: page `temperature`."""
RESAMPLES = 200
"""Resamples of the bootstrap."""
LEAST_SAMPLES = 20
"""With fewer samples nothing is said of SoftAD: resamples of so few are too much alike."""
FEW = 2_000
"""Up to this many samples the temperature gets an interval; with more it is narrower than what depends on it."""
BINS = 10
"""Bins of the confidence in a picture."""
LEAST_SHARE = 0.01
"""A bin with fewer of the samples is left out: its accuracy would be that of a handful."""


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found. `print` it for three sentences, call `plot()` for a picture."""

    samples: int
    """Validation samples that count."""
    accuracy: float
    """On validation data; a temperature does not change it."""
    loss: float
    """Mean cross-entropy in nats on validation data."""
    temperature: float
    """The number that logits should be divided by: above 1 the network is too sure."""
    temperature_interval: tuple[float, float] | None
    """95 % interval of the temperature, by bootstrap; None for more than 2,000 samples."""
    loss_after: float
    """Mean cross-entropy after division by the temperature, on the data it was fitted on."""
    calibration_error: float
    """Expected calibration error, from 0 to 1."""
    calibration_error_after: float
    """The same after division by the temperature."""
    gap: float | None
    """Validation loss − training loss; None without training logits."""
    gap_from_confidence: float | None
    """(training accuracy − validation accuracy) · log-odds of the confidence e^(−training loss).

    This is the whole gap of two classes where every prediction has this confidence, and the least
    gap with more classes.
    """
    reliability: dict[str, np.ndarray] = field(repr=False)
    """Confidence and accuracy per bin, before and after: what `plot` draws."""

    @property
    def softad_helps(self) -> bool | None:
        """Whether the temperature is above √2; None where the samples are too few to tell."""
        if self.samples < LEAST_SAMPLES:
            return None
        if self.temperature_interval is None:
            return self.temperature > THRESHOLD
        low, high = self.temperature_interval
        return None if low < THRESHOLD < high else self.temperature > THRESHOLD

    def __str__(self) -> str:
        return f"{self._confidence()}\n{self._division()}\n{self._softad()}"

    def _confidence(self) -> str:
        """Say whether the network is too sure, and by what factor."""
        state = "too sure" if self.temperature > 1 else "not sure enough"
        if abs(self.temperature - 1) < 0.05:
            state = "about as sure as it should be"
        interval = ""
        if self.temperature_interval is not None:
            low, high = self.temperature_interval
            interval = f", 95 % interval {low:.2f} to {high:.2f}"
        return (
            f"The network is {state}: on {self.samples:,} validation samples its logits fit best when "
            f"divided by {self.temperature:.2f}{interval}."
        )

    def _division(self) -> str:
        """Say what one division gives."""
        return (
            f"Dividing them lowers the validation loss from {self.loss:.3f} to {self.loss_after:.3f} and moves "
            f"the calibration error from {self.calibration_error:.3f} to {self.calibration_error_after:.3f}; "
            f"the accuracy stays {self.accuracy:.3f}."
        )

    def _softad(self) -> str:
        """Say when SoftAD is worth a try."""
        law = f"Training with SoftAD acts as a division by 2, and helps if that number is above 1.41 ({EVIDENCE})"
        if self.samples < LEAST_SAMPLES:
            return f"{law}; it takes {LEAST_SAMPLES} samples at least to tell."
        if self.softad_helps is None:
            return f"{law}; 1.41 lies in the interval, so these samples are too few to tell."
        if self.softad_helps:
            return (
                f"{law}: divide, or if you cannot touch the logits later, try SoftAD(theta=0.01)."
            )
        return f"{law}: it is not worth a try here."

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw accuracy against confidence, before and after the division; return the axes."""
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots(figsize=(5, 4), layout="constrained")[1]
        ax.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for name, color, mark in (("before", "black", "o"), ("after", "#D81B60", "v")):
            confidence, accuracy = self.reliability[name]
            ax.plot(confidence, accuracy, marker=mark, color=color, label=name)
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
        ax.set_title(f"logits divided by {self.temperature:.2f}")
        ax.legend(frameon=False)
        return ax


def diagnose(
    val_logits: ArrayLike | Tensor,
    val_targets: ArrayLike | Tensor,
    train_logits: ArrayLike | Tensor | None = None,
    train_targets: ArrayLike | Tensor | None = None,
    *,
    ignore_index: int = -100,
) -> Diagnosis:
    r"""Tell whether a network is too sure, what one temperature gives, and whether SoftAD is worth a try.

    The answer to "the validation loss rises while the accuracy rises, too". The temperature T
    minimises Σ CE(logits/T, targets) with the weak prior of `fit_temperature`. SoftAD trains a network as if its
    logits were divided by two afterwards, so that it lowers the validation loss where T > √2.

    Args:
        val_logits: (n, K), (n, K, d₁, …) of pixels, or (n,) of two classes; of data not trained on.
        val_targets: (n,) or (n, d₁, …) class indices.
        train_logits: the same of training data, for the gap; may be left out.
        train_targets: their class indices.
        ignore_index: targets that are left out.

    Returns:
        A `Diagnosis`.

    Raises:
        ValueError: what `fit_temperature` refuses: NaN, targets of one class alone, probabilities.

    Example:
        >>> logits = [[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [4.0, 0.0]] * 100
        >>> found = diagnose(logits, [0, 1, 0, 1] * 100)  # right in three of four
        >>> round(found.temperature, 1), round(found.loss, 2), round(found.loss_after, 2)
        (3.6, 1.02, 0.56)
        >>> found.softad_helps
        True

    Guo et al. (2017) for the temperature; the threshold √2 is this project's, page `temperature`.
    """
    logits, targets = columns(val_logits, val_targets, ignore_index)
    temperature = fit_temperature(logits, targets)
    after = logits / temperature
    accuracy, loss = _measure(logits, targets)
    gap = predicted = None
    if train_logits is not None and train_targets is not None:
        seen, labels = columns(train_logits, train_targets, ignore_index)
        train_accuracy, train_loss = _measure(seen, labels)
        gap = loss - train_loss
        predicted = gap_from_confidence(train_accuracy - accuracy, train_loss)
    return Diagnosis(
        samples=len(targets),
        accuracy=accuracy,
        loss=loss,
        temperature=temperature,
        temperature_interval=_interval(logits, targets) if len(targets) <= FEW else None,
        loss_after=_measure(after, targets)[1],
        calibration_error=expected_calibration_error(logits, targets),
        calibration_error_after=expected_calibration_error(after, targets),
        gap=gap,
        gap_from_confidence=predicted,
        reliability={
            "before": _reliability(logits, targets),
            "after": _reliability(after, targets),
        },
    )


def gap_from_confidence(accuracy_gap: float, train_loss: float) -> float:
    """Return accuracy gap · ln(c/(1 − c)) with c = e^(−training loss): the loss gap at constant confidence."""
    if accuracy_gap == 0:
        return 0.0
    if train_loss == 0:
        return math.copysign(math.inf, accuracy_gap)
    return -accuracy_gap * math.log(math.expm1(train_loss))


def _measure(logits: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy."""
    hits = logits.argmax(1) == targets
    losses = nnF.cross_entropy(logits.double(), targets)
    return float(hits.double().mean()), float(losses)


def _interval(logits: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return the 2.5 and 97.5 % quantiles of the temperature over resamples of the samples."""
    generator = torch.Generator().manual_seed(0)
    temperatures: list[float] = []
    while len(temperatures) < RESAMPLES:
        chosen = torch.randint(len(targets), (len(targets),), generator=generator)
        y = targets[chosen]
        # A resample of one class has no temperature: of such data, as of so few, another one is drawn.
        if y.min() < y.max():
            temperatures.append(fit_temperature(logits[chosen], y))
    low, high = np.quantile(temperatures, [0.025, 0.975])
    return float(low), float(high)


def _reliability(logits: Tensor, targets: Tensor) -> np.ndarray:
    """Return mean confidence and accuracy of the bins of equal width that hold enough samples, (2, bins)."""
    confidence, predicted = logits.double().softmax(1).max(1)
    hits = (predicted == targets).double()
    place = (confidence * BINS).long().clamp(max=BINS - 1)
    sums = torch.zeros(3, BINS, dtype=torch.float64)
    sums.index_add_(1, place, torch.stack([confidence, hits, torch.ones_like(hits)]))
    filled = sums[2] >= LEAST_SHARE * len(targets)
    return (sums[:2, filled] / sums[2, filled]).numpy()
