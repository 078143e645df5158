"""The ways of choosing θ side by side: final rows in, one line per case, trial and arm out."""

import numpy as np
import pandas as pd
from scipy import stats

from softadlib._validation import UserError
from softadlib.analysis.statistics import Estimate, bootstrap, paired
from softadlib.results.selection import final, select

RISK = {
    ("gaussian", 0.0): 0.0344,
    ("gaussian", 0.05): 0.2197,
    ("gaussian", 0.1): 0.340,
    ("sinusoid", 0.0): 0.0,
    ("sinusoid", 0.05): 0.1985,
    ("sinusoid", 0.1): 0.3251,
    ("spiral", 0.0): 0.234,
    ("spiral", 0.05): 0.351,
    ("spiral", 0.1): 0.435,
}
"""R* in nats by dataset and label noise, by quadrature: no network has a smaller cross-entropy."""
APART = 0.05
"""The label noise that had no part in choosing the rule of `suggest_theta`."""
SLACK = 0.0069
"""ψ(1)·0.01, what a tolerated drop of a point adds to θ where every margin is 1."""
ARMS = {
    "A": "oracle, R* + 0.0069",
    "B": "suggested",
    "C": "grid, accuracy, largest tie",
    "D": "grid, accuracy, smallest tie",
    "E": "grid, least loss",
    "F": "ERM",
    "G": "suggested, lower end",
    "H": "always the grid's value nearest 0.1",
}
CASE = ["dataset", "label_noise"]
MEASURES = ["acc_test", "loss_test", "gap", "model_norm"]


def oracle(dataset: str, label_noise: float) -> float | None:
    """θ = R* + 0.0069 to four digits, as profile `choosing-oracle` has it; None where R* is not known."""
    risk = RISK.get((dataset, label_noise))
    return None if risk is None else round(risk + SLACK, 4)


def arms(grid: pd.DataFrame, auto: pd.DataFrame, low: pd.DataFrame) -> pd.DataFrame:
    """One line per dataset, label noise, trial and arm: θ, MEASURES, `regret`, `trainings`.

    `grid` holds ERM and SoftAD over a grid and at the oracles' values, which no other arm may take;
    `auto`, `low` SoftAD at the suggested θ and at its lower end. `regret`: test accuracy of the best
    value of the grid, chosen on the test part, minus the arm's. Trials that lack an arm other than
    the oracle are left out. Raises UserError where none is left.
    """
    grid, auto, low = (rows.reset_index(drop=True) for rows in (grid, auto, low))
    ends = final(grid)
    ends = ends[ends["method"].isin(["erm", "softad"])]
    known = {oracle(*case) for case in RISK}
    soft, own = ends["method"] == "softad", ends["knob"].isin(known)
    swept = ends[soft & ~own]
    by = [swept[name] for name in (*CASE, "trial")]
    theirs = [oracle(*case) for case in ends[CASE].itertuples(index=False)]
    chosen = {
        "A": ends[soft & (ends["knob"] == pd.Series(theirs, index=ends.index, dtype=float))],
        "B": final(auto[auto["method"] == "softad"]),
        "C": select(swept, "largest"),
        "D": select(swept, "smallest"),
        "E": swept.loc[swept.groupby([*CASE, "trial"])["loss_val"].idxmin()],
        "F": ends[ends["method"] == "erm"],
        "G": final(low[low["method"] == "softad"]),
        "H": swept.loc[(swept["knob"] - 0.1).abs().groupby(by).idxmin()],
    }
    size = swept.groupby([*CASE, "trial"]).size().rename("size")
    best = swept.groupby([*CASE, "trial"])["acc_test"].max().rename("best")
    lines = pd.concat([rows.assign(arm=arm) for arm, rows in chosen.items()], ignore_index=True)
    lines = lines.join(best, on=[*CASE, "trial"]).join(size, on=[*CASE, "trial"])
    lines["gap"] = lines["loss_test"] - lines["loss_train"]
    lines["regret"] = lines.pop("best") - lines["acc_test"]
    lines["trainings"] = (
        lines["arm"].map({"A": 1, "B": 2, "F": 1, "G": 2, "H": 1}).fillna(lines["size"])
    )
    lines = _complete(lines.rename(columns={"knob": "theta"}))
    if lines.empty:
        raise UserError(
            "no trial has every arm; first: softad train choosing, choosing-auto, choosing-low"
        )
    columns = [*CASE, "trial", "arm", "theta", *MEASURES, "regret", "trainings"]
    return lines[columns].sort_values([*CASE, "trial", "arm"], ignore_index=True)


def _complete(lines: pd.DataFrame) -> pd.DataFrame:
    there = lines.groupby([*CASE, "trial"])["arm"].transform(lambda a: set(ARMS) <= {*a, "A"})
    return lines[there.astype(bool)]


def differences(lines: pd.DataFrame, one: str, other: str, measure: str) -> pd.DataFrame:
    """`measure` of arm `one` minus that of `other`, a row per trial and a column per case with both."""
    wide = lines.pivot_table(index="trial", columns=[*CASE, "arm"], values=measure)
    first, second = (wide.xs(arm, axis=1, level="arm") for arm in (one, other))
    return (first - second).dropna(axis=1, how="all")


def compared(lines: pd.DataFrame, one: str, other: str, level: float = 0.95) -> pd.DataFrame:
    """Paired differences of test accuracy (points) and test loss (nats) with their intervals, by case.

    Last come means over the synthetic cases of one trial, over trials that have all of them: cases
    of a trial share its inputs and weights, so they are no trials of their own. The rule was chosen
    on all but the cases of label noise `APART`.
    """
    rows = {}
    each = {m: differences(lines, one, other, m) for m in ("acc_test", "loss_test")}
    cases = list(each["acc_test"].columns)
    means = {
        "synthetic cases": [case for case in cases if case in RISK],
        "those kept apart": [case for case in cases if case in RISK and case[1] == APART],
    }
    pools = {(case[0], case[1]): [case] for case in cases}
    pools |= {(words, np.nan): some for words, some in means.items() if len(some) > 1}
    for key, some in pools.items():
        row: dict[str, float] = {}
        for measure, (unit, scale) in {
            "acc_test": ("points", 100),
            "loss_test": ("nats", 1),
        }.items():
            d = scale * each[measure][some].mean(axis=1, skipna=False).dropna()
            found = paired(d, np.zeros(len(d)), level)
            row |= {unit: found.mean, f"{unit} low": found.low, f"{unit} high": found.high}
        rows[key] = row | {"n": found.n}
    index = pd.MultiIndex.from_tuples(rows, names=CASE)
    return pd.DataFrame(rows.values(), index=index)


def verdicts(lines: pd.DataFrame, margin: float = 0.5, level: float = 0.95) -> pd.DataFrame:
    """What the success of B asks for and what would refute it, by case, each with its n.

    `accuracy kept`: the lower limit of B − C is above −`margin` points. `accuracy lost`: its upper
    limit is below that; neither, and n was too small to say. `loss lower`: the upper limit of B − C
    is below 0 nats. `worse than D`: the upper limit of B − D in accuracy is below 0.
    """
    c, d = (compared(lines, "B", other, level) for other in "CD")
    return pd.DataFrame(
        {
            "accuracy kept": c["points low"] > -margin,
            "accuracy lost": c["points high"] < -margin,
            "loss lower": c["nats high"] < 0,
            "worse than D": d["points high"] < 0,
            "n": c["n"],
        }
    )


def rank_correlation(lines: pd.DataFrame, seed: int = 0, level: float = 0.95) -> Estimate:
    """Spearman's ρ of the suggested θ with R*, over trials and synthetic cases.

    The interval resamples trials, each with all its cases; trials that lack one are left out.
    """
    own = lines[(lines["arm"] == "B") & lines["dataset"].isin([d for d, _ in RISK])]
    wide = own.pivot_table(index="trial", columns=CASE, values="theta").dropna()
    risk = np.array([RISK[case] for case in wide.columns])
    return bootstrap(
        wide.to_numpy(),
        lambda theta: stats.spearmanr(theta.ravel(), np.tile(risk, len(theta))).statistic,
        seed,
        level,
        repeats=1999,
    )
