"""Strategies of choosing θ side by side: final rows in, a line per case, trial and strategy out."""

from typing import Any

import numpy as np
import pandas as pd

from softadlib._validation import UserError
from softadlib.analysis.statistics import Mean, paired
from softadlib.results.selection import CASE, final, select

BAYES_RISK = {
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
HELD_OUT_NOISE = 0.05
"""The label noise that had no part in choosing rule 1; rule 2 was chosen with all of them in sight."""
DROP_SLACK = 0.0069
"""0.01·ln 2, what rule 1 added to θ for a tolerated drop of a point of accuracy."""
STRATEGIES = {
    "erm": "the ordinary run",
    "erm + temperature": "the ordinary run, its logits divided by a temperature fitted on validation",
    "suggested": "suggest_theta (rule 2); the ordinary run where it suggests no θ",
    "former rule": "suggest_theta as it was (rule 1), which took every mistake for noise",
    "former lower end": "rule 1 gave a range of θ; its lower end",
    "constant 0.01": "the grid's value nearest 0.01, always",
    "constant 0.1": "the grid's value nearest 0.1, always",
    "grid, lowest loss": "grid, by validation loss",
    "grid, smallest tie": "grid, by validation accuracy, ties to the smallest",
    "grid, largest tie": "grid, by validation accuracy, ties to the largest (the paper's)",
    "oracle": "R* + 0.0069; R*, the lowest cross-entropy that the data allow, is known of synthetic data alone",
}
OPTIONAL = {"oracle", "suggested", "erm + temperature"}
"""Strategies that not every dataset has been trained with."""
MEASURES = ["acc_test", "loss_test", "gap", "model_norm"]


def oracle(dataset: str, label_noise: float) -> float | None:
    """Return θ = R* + 0.0069 to four digits, as in profile `choosing-oracle`; None where R* is unknown."""
    risk = BAYES_RISK.get((dataset, label_noise))
    return None if risk is None else round(risk + DROP_SLACK, 4)


def follow_advice(softad: pd.DataFrame, grid: pd.DataFrame, advice: pd.DataFrame) -> pd.DataFrame:
    """Return rows of SoftAD at the suggested θ, those of the ordinary run where none was suggested.

    A study trains at the smallest θ then. `advice`: what `results.reader.suggestions` gives.
    """
    softad, erm = final(softad), final(grid[grid["method"] == "erm"])
    refused = advice.loc[advice["theta"].isna(), [*CASE, "trial"]]
    advised = softad.merge(refused, how="left", on=[*CASE, "trial"], indicator=True)
    advised = advised[advised.pop("_merge") == "left_only"]
    return pd.concat([advised, erm.merge(refused, on=[*CASE, "trial"])], ignore_index=True)


def scale_ordinary(grid: pd.DataFrame, losses: pd.DataFrame) -> pd.DataFrame:
    """Return final rows of ERM with the training and test losses that its temperature leaves.

    `losses`: what `results.sample_losses.read` gives; the temperature is the one with a prior. Runs
    without losses are left out.
    """
    ends, key = final(grid[grid["method"] == "erm"]), [*CASE, "trial"]
    scaled = losses[(losses["method"] == "erm") & losses["prior_loss"].notna()]
    for part in ("train", "test"):
        of_part = scaled.loc[scaled["part"] == part, [*key, "prior_loss"]]
        ends = ends.drop(columns=f"loss_{part}").merge(of_part, on=key)
        ends = ends.rename(columns={"prior_loss": f"loss_{part}"})
    return ends


def compare_strategies(
    grid: pd.DataFrame,
    suggested: pd.DataFrame,
    former: pd.DataFrame,
    lower_end: pd.DataFrame,
    scaled: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return one line per dataset, label noise, trial and strategy: θ, MEASURES, `trainings`.

    `grid` holds ERM and SoftAD over a grid and at the oracles' values, which no other strategy may
    take; `suggested` is of `follow_advice`, `former` and `lower_end` SoftAD by rule 1, `scaled` of
    `scale_ordinary`. Trials that
    lack a strategy, other than `OPTIONAL` ones, are left out. Raises UserError where none is left.
    """
    ends = final(grid.reset_index(drop=True))
    softad = ends[ends["method"] == "softad"]
    of_case = [oracle(*case) for case in softad[CASE].itertuples(index=False)]
    is_oracle = softad["knob"].isin({oracle(*case) for case in BAYES_RISK})
    swept = softad[~is_oracle]
    trials = swept.groupby([*CASE, "trial"])
    keys = [swept[name] for name in (*CASE, "trial")]
    rows = {
        "erm": ends[ends["method"] == "erm"],
        "suggested": suggested,
        "former rule": final(former[former["method"] == "softad"]),
        "former lower end": final(lower_end[lower_end["method"] == "softad"]),
        "grid, lowest loss": swept.loc[trials["loss_val"].idxmin()],
        "grid, smallest tie": select(swept, "smallest"),
        "grid, largest tie": select(swept, "largest"),
        "oracle": softad[softad["knob"] == pd.Series(of_case, index=softad.index, dtype=float)],
    }
    if scaled is not None:
        rows["erm + temperature"] = scaled
    for constant in (0.01, 0.1):
        nearest = (swept["knob"] - constant).abs().groupby(keys).idxmin()
        rows[f"constant {constant:g}"] = swept.loc[nearest]
    lines = pd.concat([part.assign(strategy=name) for name, part in rows.items()])
    lines = lines.join(trials.size().rename("trainings"), on=[*CASE, "trial"])
    few = {"erm": 1, "erm + temperature": 1, "former rule": 2, "former lower end": 2, "oracle": 1}
    few |= {"constant 0.01": 1, "constant 0.1": 1}
    lines["trainings"] = lines["strategy"].map(few).fillna(lines["trainings"])
    advised = lines["strategy"] == "suggested"
    lines.loc[advised, "trainings"] = 1 + (lines.loc[advised, "method"] == "softad")
    lines["gap"] = lines["loss_test"] - lines["loss_train"]
    lines = _complete_trials(lines.rename(columns={"knob": "theta"}))
    if lines.empty:
        raise UserError("no trial has every strategy; train choosing, choosing-auto, choosing-low")
    order = {name: rank for rank, name in enumerate(STRATEGIES)}
    lines = lines.sort_values([*CASE, "trial"]).sort_values(
        "strategy", key=lambda names: names.map(order), kind="stable"
    )
    columns = [*CASE, "trial", "strategy", "theta", *MEASURES, "trainings"]
    return lines[columns].reset_index(drop=True)


def _complete_trials(lines: pd.DataFrame) -> pd.DataFrame:
    """Keep the lines of trials that have every strategy that is not optional."""
    required = set(STRATEGIES) - OPTIONAL
    complete = lines.groupby([*CASE, "trial"])["strategy"].transform(lambda s: required <= set(s))
    return lines[complete.astype(bool)]


def differences(lines: pd.DataFrame, first: str, second: str, measure: str) -> pd.DataFrame:
    """Return `measure` of `first` minus that of `second`: a row per trial, a column per case with both."""
    wide = lines.pivot_table(index="trial", columns=[*CASE, "strategy"], values=measure)
    parts = (wide.xs(name, axis=1, level="strategy") for name in (first, second))
    return next(parts).sub(next(parts)).dropna(axis=1, how="all")


def compared(lines: pd.DataFrame, first: str, second: str, level: float = 0.95) -> pd.DataFrame:
    """Return paired differences of test accuracy (points) and test loss (nats), Student's intervals, n.

    A row per case, then means over the synthetic cases of one trial, over the trials that have all
    of them: cases of a trial share its inputs and weights, so they are no trials of their own.
    """
    each = {m: differences(lines, first, second, m) for m in ("acc_test", "loss_test")}
    cases = list(each["acc_test"].columns)
    pools = {(case[0], case[1]): [case] for case in cases}
    synthetic = [case for case in cases if case in BAYES_RISK]
    held_out = [case for case in synthetic if case[1] == HELD_OUT_NOISE]
    if len(synthetic) > 1:
        pools["mean, synthetic", np.nan] = synthetic
    if len(held_out) > 1:
        pools["mean, 5 % flipped", np.nan] = held_out
    rows = []
    for pool in pools.values():
        points = _mean_difference(100 * each["acc_test"][pool], level)
        nats = _mean_difference(each["loss_test"][pool], level)
        rows.append(_row("points", points) | _row("nats", nats) | {"n": nats.n, "cases": len(pool)})
    return pd.DataFrame(rows, index=pd.MultiIndex.from_tuples(pools, names=CASE))


def _mean_difference(wide: pd.DataFrame, level: float) -> Mean:
    """Return the interval of the trials' means over the columns."""
    means = wide.mean(axis=1, skipna=False).dropna()
    return paired(means, np.zeros(len(means)), level)


def _row(unit: str, mean: Mean) -> dict[str, float]:
    return {unit: mean.mean, f"{unit} low": mean.low, f"{unit} high": mean.high}


def verdicts(lines: pd.DataFrame, margin: float = 0.5, level: float = 0.95) -> pd.DataFrame:
    """Say what the suggestion keeps and saves, against strategies that need no grid and one that does.

    A row per pair, of the mean over the synthetic cases. `accuracy`: "kept" where the lower limit of
    the difference is above −`margin` points, "lost" where the upper is below that; `loss`: "lower"
    or "higher" where the interval excludes 0; "open" where n is too small to say.
    """
    rows = {}
    for other in ("erm", "former rule", "constant 0.01", "constant 0.1", "grid, largest tie"):
        row = compared(lines, "suggested", other, level).xs("mean, synthetic").iloc[0]
        accuracy = "kept" if row["points low"] > -margin else "open"
        accuracy = "lost" if row["points high"] < -margin else accuracy
        loss = "lower" if row["nats high"] < 0 else "higher" if row["nats low"] > 0 else "open"
        rows[other] = row.to_dict() | {"accuracy": accuracy, "loss": loss}
    return pd.DataFrame.from_dict(rows, orient="index")


def headline(lines: pd.DataFrame, level: float = 0.95) -> str:
    """Say how both rules stand against the constant 0.1 where labels are flipped at 5 %."""
    sentences = []
    for strategy, rule in (("former rule", "former rule"), ("suggested", "current rule")):
        table = compared(lines, strategy, "constant 0.1", level)
        if "mean, 5 % flipped" not in table.index.get_level_values("dataset"):
            continue
        row = table.xs("mean, 5 % flipped").iloc[0]
        words = "has neither shown a higher nor a lower test loss than"
        if row["nats low"] > 0:
            words = "has higher test loss than"
        elif row["nats high"] < 0:
            words = "has lower test loss than"
        sentences.append(
            f"the {rule} {words} the constant 0.1: "
            f"{row['nats']:+.3f} nats [{row['nats low']:+.3f}, {row['nats high']:+.3f}], "
            f"n = {row['n']:.0f} trials, Student's {100 * level:g} % interval."
        )
    return "With 5 % of the labels flipped, " + " In the same trials, ".join(sentences)


def six_problems(rows: list[dict[str, Any]], level: float = 0.95) -> pd.DataFrame:
    """Read SoftAD at the suggested θ of `tests/benchmarks/suggested_theta.py`, a row per problem.

    `points`: test accuracy less that of the ordinary run; `nats`: test loss less that of the
    ordinary run, `nats to scaled` less that of the ordinary run after temperature scaling.
    """
    lines = {}
    for problem, part in pd.DataFrame(rows).groupby("problem", sort=False):
        row: dict[str, Any] = {"θ": part["theta"].median(), "ERM (%)": part["erm_acc"].mean()}
        row |= _row("points", paired(part["softad_acc"], part["erm_acc"], level))
        row |= _row("nats", paired(part["softad_loss"], part["erm_loss"], level))
        row |= _row("nats to scaled", paired(part["softad_loss"], part["scaled_loss"], level))
        lines[problem] = row | {"n": len(part)}
    return pd.DataFrame.from_dict(lines, orient="index")


def six_problems_in_words(table: pd.DataFrame, margin: float) -> str:
    """Sum up `six_problems`: whether accuracy is kept to within `margin` points, told or not told."""
    told = table.index.str.endswith(", told")
    sentences = []
    for part, words in ((table[~told], "told of no noise"), (table[told], "told the flip rate")):
        if len(part):
            sentences.append(
                f"In {(part['points'] >= -margin).sum()} of {len(part)} problems {words}, accuracy falls by at "
                f"most {margin:g} points on average (the largest fall is {-part['points'].min():.2f}). "
                f"Temperature scaling alone has the lower test loss in "
                f"{(part['nats to scaled low'] > 0).sum()} of them, by the interval."
            )
    return " ".join(sentences)
