"""What is left of a method's gain over plain training after one temperature for both."""

import pandas as pd

from softadlib.workbook.analysis.relative import BEST, LAST
from softadlib.workbook.analysis.statistics import mean_interval
from softadlib.workbook.studies import results

__all__ = ["BEST", "LAST", "gains"]
PLACE = ["side", "dataset", "label_noise", "method"]


def gains(profile: str) -> pd.DataFrame:
    """Return how far each method's test loss is below ERM's, as it is and after one temperature for both.

    In each trial the value with the lowest validation loss is selected, once as it is and once after the
    temperature that the run's validation data ask for.

    Args:
        profile: a folder of `outputs/`, with `best_epoch`.

    Returns:
        A row per side (last epoch, stopped early), data set, label noise and method but ERM: `raw` and
        `left`, means over trials in nats; `low` and `high`, Student's 95 % interval of `left`; and n.
    """
    chosen = {
        "raw": _selected(profile, "loss"),
        "left": _selected(profile, "prior_loss"),
    }
    lines = []
    for place in chosen["left"][PLACE].drop_duplicates().itertuples(index=False, name=None):
        side, dataset, noise, method = place
        if method == "erm":
            continue
        line = {"side": side, "dataset": dataset, "label_noise": noise, "method": method}
        for name, rows in chosen.items():
            trials = rows.set_index([*PLACE, "trial"])["chosen"]
            gain = trials[side, dataset, noise, "erm"] - trials[place]
            mean, low, high, n = mean_interval(gain.dropna())
            line[name] = mean
        lines.append({**line, "low": low, "high": high, "n": n})
    return pd.DataFrame(lines)


def _selected(profile: str, kind: str) -> pd.DataFrame:
    """Return the run of each trial whose validation loss of a kind is lowest, and its test loss of that kind."""
    rows = results.read(profile)
    case = ["dataset", "method", "label_noise", "trial"]
    tables = []
    for side, ends in ((LAST, results.final(rows)), (BEST, results.best(rows))):
        measured = ends.dropna(subset=f"{kind}_val")
        lowest = measured.loc[measured.groupby(case)[f"{kind}_val"].idxmin()]
        tables.append(lowest.assign(side=side, chosen=lowest[f"{kind}_test"]))
    return pd.concat(tables, ignore_index=True)[[*PLACE, "trial", "chosen"]]
