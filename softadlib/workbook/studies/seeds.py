"""The seeds of trials. All methods share a trial's seed: its data, initial weights and order of samples."""

import numpy as np

BASE_SEED = 17264272852322
"""The authors' code of 10 October 2024 draws its trials' seeds from it."""
SEEDS_BELOW = 2**20


def trial_seeds(n: int, base_seed: int = BASE_SEED) -> tuple[int, ...]:
    """Return the authors' trial seeds; the first n of one fixed sequence."""
    return tuple(np.random.default_rng(base_seed).integers(1, SEEDS_BELOW, size=n).tolist())
