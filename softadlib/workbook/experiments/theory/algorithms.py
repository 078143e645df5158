"""The algorithms of Propositions 3 and 4: clipped gradients with momentum, and projected subgradients."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from softadlib.workbook.experiments.theory.problems import Function, norms


class NormClipMomentum:
    """M ← bM + (1−b)Ḡ, w ← w − αM/‖M‖, where Ḡ = G·min(1, γ/‖G‖) and M₀ = 0: Prop. 3.

    b = 1 − T^(−1/2), α = T^(−3/4), and γ = G·T^(1/4) unless given, for T = `steps` and G = `moment`.
    Every step has length α, but for M = 0, where there is none.
    """

    def __init__(self, steps: int, moment: float, gamma: float | None = None):
        self.b = 1 - steps**-0.5
        self.alpha = steps**-0.75
        self.gamma = moment * steps**0.25 if gamma is None else gamma
        self.momentum: np.ndarray = np.zeros(())

    def clip(self, gradient: np.ndarray) -> np.ndarray:
        """Return Ḡ; a zero gradient is left as it is."""
        size = norms(gradient)
        return gradient * np.minimum(1, self.gamma / np.where(size > 0, size, self.gamma))

    def step(self, w: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the next point (…, d)."""
        self.momentum = self.b * self.momentum + (1 - self.b) * self.clip(gradient)
        size = norms(self.momentum)
        return np.asarray(w - self.alpha * self.momentum / np.where(size > 0, size, 1))


def subgradient_step(steps: int, drop: float, g2: float, l_star: float) -> float:
    """Return Prop. 4's step size α = √(Δ/(T·L*·G²)) of w ← Π[w − αG], Π the projection onto a convex set."""
    return math.sqrt(drop / (steps * l_star * g2))


def onto_ball(radius: float) -> Function:
    """Project to ‖w‖ ≤ radius, (…, d) → (…, d)."""
    return lambda w: w * np.minimum(1, radius / np.maximum(norms(w), radius))


def simulate(
    update: Callable[[np.ndarray, np.ndarray], np.ndarray],
    gradient: Callable[[np.ndarray, int], np.ndarray],
    start: Sequence[float] | np.ndarray,
    runs: int,
    steps: int,
) -> np.ndarray:
    """Return w_1 … w_{T+1} of `runs` runs from one start, (T + 1, runs, d); `gradient` takes (w, t)."""
    path = np.empty((steps + 1, runs, len(start)))
    path[0] = start
    for t in range(steps):
        path[t + 1] = update(path[t], gradient(path[t], t))
    return path
