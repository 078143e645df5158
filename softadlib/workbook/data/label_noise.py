"""Labels flipped on purpose, a fraction q of them: int(n·q) drawn without replacement."""

import numpy as np


def flip_two_classes(y: np.ndarray, label_noise: float, rng: np.random.Generator) -> np.ndarray:
    """Turn int(n·q) of the labels 0 and 1, (n,), into the other one, in place; return them.

    Without noise nothing is drawn, as in the authors' code: later draws depend on it.
    """
    count = int(len(y) * label_noise)
    if count:
        chosen = rng.choice(len(y), size=count, replace=False)
        y[chosen] = 1 - y[chosen]
    return y


def flip_any_classes(
    y: np.ndarray, label_noise: float, classes: int, rng: np.random.Generator
) -> np.ndarray:
    """Give int(n·q) of the labels 0 … `classes` − 1, (n,), another class each, uniformly; return them."""
    y = y.copy()
    chosen = rng.choice(len(y), int(len(y) * label_noise), replace=False)
    y[chosen] = (y[chosen] + rng.integers(1, classes, len(chosen))) % classes
    return y
