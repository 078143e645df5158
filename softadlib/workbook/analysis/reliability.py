"""Reliability of classifiers of two classes, from the quantiles of their losses."""

import numpy as np
import pandas as pd

from softadlib.functional import LN2


def reliability(quantiles: np.ndarray, bins: int = 10) -> pd.DataFrame:
    """Return confidence, accuracy and share of samples per bin of the confidence, of two classes.

    A loss ℓ is a probability p = e^−ℓ of the right class: the prediction is right where ℓ < ln 2,
    and its confidence is max(p, 1 − p).

    Args:
        quantiles: losses at equally spaced levels, (q,) or (runs, q); each stands for as many samples.
        bins: bins of equal width between 0.5 and 1; empty ones are left out.
    """
    losses = np.asarray(quantiles, dtype=float)
    losses = (losses[..., 1:] + losses[..., :-1]).ravel() / 2  # one loss between two levels
    p = np.exp(-losses)
    confidence = np.maximum(p, 1 - p)
    place = np.minimum(((confidence - 0.5) * 2 * bins).astype(int), bins - 1)
    table = pd.DataFrame({"bin": place, "confidence": confidence, "accuracy": losses < LN2})
    groups = table.groupby("bin")
    return groups.mean().assign(share=groups.size() / len(table))
