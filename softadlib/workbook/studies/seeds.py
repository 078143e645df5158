"""The seeds of trials. All methods share a trial's seed: its data, initial weights and order of samples."""

import numpy as np


def trial_seeds(n: int) -> tuple[int, ...]:
    """Return the authors' trial seeds; the first n of one fixed sequence."""
    return tuple(np.random.default_rng(17264272852322).integers(1, 2**20, size=n).tolist())
