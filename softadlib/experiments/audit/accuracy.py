"""Two more claims of the paper's Sec. 4: accuracies are comparable, and SoftAD often converges faster."""

import numpy as np
import pandas as pd
from pandas.api.typing import SeriesGroupBy

from softadlib.analysis.readings import span
from softadlib.analysis.statistics import paired
from softadlib.experiments.audit.claims import OTHERS, paired_trials
from softadlib.results.selection import CASE, shared_trials


def compare_accuracy(chosen: pd.DataFrame, margin: float) -> pd.DataFrame:
    """Test accuracy of SoftAD minus that of each rival, in points: a line per case and rival.

    `mean` with Student's 95 % interval over trials. `finds`: "comparable" where the interval lies
    above −margin, "lower" where it lies below −margin, else "open".

    Args:
        chosen: the selected run of every method and trial, as `claims.contenders` gives them.
        margin: points of accuracy that may be lost.
    """
    lines = []
    for facts, softad, rival in paired_trials(chosen, "acc_test", OTHERS):
        mean = paired(100 * softad, 100 * rival)
        finds = "open"
        if mean.low > -margin:
            finds = "comparable"
        elif mean.high < -margin:
            finds = "lower"
        facts |= {"mean": mean.mean, "low": mean.low, "high": mean.high}
        lines.append({**facts, "finds": finds, "n": mean.n})
    return pd.DataFrame(lines)


def epochs_to_loss(rows: pd.DataFrame, chosen: pd.DataFrame, factor: float) -> pd.DataFrame:
    """Return the first measured epoch at which a selected run's test loss is low: a line per run.

    Low means at most `factor` times the lowest test loss that ERM has on its curve in the same
    trial. `epochs` is NaN for a run that never gets there. Trials are left out of which not every
    method has a curve, so that medians are over the same trials.
    """
    key = [*CASE, "method", "trial"]
    knobs = chosen[[*key, "knob"]].fillna({"knob": -1.0})
    curves = rows[rows["epoch"] > 0].fillna({"knob": -1.0})
    curves = curves.merge(knobs, on=[*key, "knob"])
    curves = shared_trials(curves[curves.groupby(key)["epoch"].transform("size") > 1])
    trial = [*CASE, "trial"]
    erm = curves[curves["method"] == "erm"]
    lowest = erm.groupby(trial, as_index=False)["loss_test"].min()
    curves = curves.merge(lowest.rename(columns={"loss_test": "lowest"}), on=trial)
    is_low = curves["loss_test"] <= factor * curves["lowest"]
    curves = curves.assign(epochs=curves["epoch"].where(is_low))
    return curves.groupby(key, as_index=False)["epochs"].min()


def _by_method(epochs: pd.DataFrame) -> SeriesGroupBy:
    """Group the epochs by case and method; a run that never gets there is later than all others."""
    late = epochs.assign(epochs=epochs["epochs"].fillna(np.inf))
    return late.groupby([*CASE, "method"])["epochs"]


def fastest(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return median epochs of every method, and how many of its runs got there: a line per case.

    A run that never gets there counts as later than all others.
    """
    groups = _by_method(epochs)
    reached = groups.agg(lambda e: f"{np.isfinite(e).sum()} of {len(e)}")
    table = pd.DataFrame({"median epoch": groups.median(), "reached": reached})
    return table.unstack("method")


def readings(accuracy: pd.DataFrame, epochs: pd.DataFrame, margin: float) -> list[str]:
    """Sum up both tables in sentences."""
    sentences = []
    if len(accuracy):
        points = "point" if margin == 1 else "points"
        counts = {word: (accuracy["finds"] == word).sum() for word in ("comparable", "lower")}
        sentences.append(
            f"*Comparable accuracy*, to within {margin:g} {points}: shown in {counts['comparable']} of "
            f"{len(accuracy)} comparisons, contradicted in {counts['lower']}, open in the others "
            f"(n = {span(sorted(accuracy['n']))}). The mean difference lies between "
            f"{accuracy['mean'].min():+.1f} and {accuracy['mean'].max():+.1f} points."
        )
    if len(epochs) and "softad" in set(epochs["method"]):
        groups = _by_method(epochs)
        median = groups.median().unstack("method")
        others = median.drop(columns="softad").min(axis=1)
        both = median["softad"].notna() & others.notna()
        first = (median["softad"] < others)[both].sum()
        if both.any():
            sentences.append(
                f"*Often converging faster*: SoftAD's median epoch is the smallest in {first} of "
                f"{both.sum()} cases (n = {span(sorted(groups.size()))} trials)."
            )
    return sentences
