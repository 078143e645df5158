"""The paper's claims where one thing of its protocol is changed at a time, and ERM tuned as hard as θ."""

import numpy as np
import pandas as pd

from softadlib._validation import MissingData, choose
from softadlib.methods import METHODS
from softadlib.workbook.analysis import tables
from softadlib.workbook.analysis.statistics import mean_interval, permutation_tests
from softadlib.workbook.experiments.audit import DECIDABLE, SIGNIFICANT, TOO_FEW
from softadlib.workbook.studies.parquet import outputs

SETTINGS = {
    "robust": "as the paper",
    "robust-lr-0.0001": "learning rate 0.0001",
    "robust-lr-0.0003": "learning rate 0.0003",
    "robust-lr-0.003": "learning rate 0.003",
    "robust-lr-0.01": "learning rate 0.01",
    "robust-batch-10": "batch 10",
    "robust-batch-100": "batch 100",
    "robust-decay-0.001": "weight decay 0.001",
    "robust-decay-0.01": "weight decay 0.01",
    "robust-decay-1": "weight decay 1",
    "robust-n-50": "50 training samples",
    "robust-n-400": "400 training samples",
    "robust-no-norm": "no batch norm",
}
"""Profile → what it changes."""
LEARNING_RATES = [name for name in SETTINGS if name == "robust" or "-lr-" in name]
"""The profiles that train ERM with decoupled weight decay of several sizes, too."""
CLAIMS = {
    "gap": "smaller gap",
    "model_norm": "smaller norm",
    "acc_test": "accuracy as good",
    "loss_test": "lower test loss",
}
"""Measure → what the paper says of it, beside ERM."""
CELL = ["setting", "dataset"]
RULES = ("accuracy", "loss")


def read(profiles: list[str] | None = None) -> pd.DataFrame:
    """Return the last epoch of every run, with `setting` and `gap`, of the profiles that have results.

    Raises MissingData where none has.
    """
    found = [name for name in profiles or SETTINGS if outputs(name).is_dir()]
    tables.require_some(found, "no setting is trained; softad train robust trains the first")
    rows = [tables.read(name, final=True).assign(setting=SETTINGS[name]) for name in found]
    return pd.concat(rows, ignore_index=True)


def beside_erm(rows: pd.DataFrame, margin: float = 1.0) -> pd.DataFrame:
    """Compare each method with ERM, trial by trial: a line per setting, dataset, method, knob and measure.

    Args:
        rows: what `read` returns.
        margin: percentage points of accuracy that count as comparable.

    Returns:
        `mean` of the differences with Student's 95 % interval, `n` trials, and `finds`: "yes" or "no" where
        p of the exact permutation test is at most 0.05, else "open". Accuracy is as good, "yes", where the
        interval lies above −margin, and "no" where it lies below. Runs that diverged are left out.
    """
    rows = rows[np.isfinite(rows[["loss_train", "loss_test"]]).all(axis=1)]
    key = [*CELL, "trial"]
    erm = rows.loc[rows["method"] == "erm", [*key, *CLAIMS]]
    pairs = rows[rows["method"] != "erm"].merge(erm, on=key, suffixes=("", "_erm"))
    lines = []
    differences = []
    for case, runs in pairs.groupby([*CELL, "method", "knob"], sort=False):
        for measure, claim in CLAIMS.items():
            difference = (runs[measure] - runs[f"{measure}_erm"]).to_numpy()
            mean, low, high, n = mean_interval(difference)
            facts = dict(zip([*CELL, "method", "knob"], case)) | {"claim": claim}
            ratio = runs[measure].mean() / runs[f"{measure}_erm"].mean()
            lines.append(facts | {"mean": mean, "low": low, "high": high, "n": n, "ratio": ratio})
            differences.append(difference)
    for line, p in zip(lines, permutation_tests(differences)):
        line["finds"] = "open" if p > SIGNIFICANT else "yes" if line["mean"] < 0 else "no"
        if line["claim"] == CLAIMS["acc_test"]:
            above, below = 100 * line["low"] > -margin, 100 * line["high"] < -margin
            line["finds"] = "yes" if above else "no" if below else "open"
        if line["n"] < DECIDABLE:
            line["finds"] = TOO_FEW
    return pd.DataFrame(lines)


def counts(compared: pd.DataFrame) -> pd.DataFrame:
    """Return "yes / open / no" of each claim over all cells (setting × dataset), a line per method and knob.

    `decay` is left out: it is there to tune ERM.
    """
    compared = compared[compared["method"] != "decay"]
    words = ("yes", "open", "no")
    cells = compared.groupby(["method", "knob", "claim"])["finds"].agg(
        lambda finds: " / ".join(str((finds == word).sum()) for word in words)
    )
    table = cells.unstack()[list(CLAIMS.values())]
    order = {name: i for i, name in enumerate(METHODS)}
    return table.sort_index(key=lambda level: level.map(order) if level.name == "method" else level)


def best(rows: pd.DataFrame, rule: str) -> pd.DataFrame:
    """Return one run for each dataset and trial: the highest validation accuracy, or the lowest loss.

    Equal accuracies go to the lower validation loss.

    Args:
        rows: the runs to choose from, of one method or several.
        rule: "accuracy" or "loss".
    """
    choose("rule", rule, RULES)
    rows = rows[np.isfinite(rows["loss_val"])].sort_values("loss_val", kind="stable")
    if rule == "accuracy":
        rows = rows.sort_values("acc_val", ascending=False, kind="stable")
    return rows.drop_duplicates(["dataset", "trial"]).sort_values(
        ["dataset", "trial"], ignore_index=True
    )


def tuned(rule: str) -> pd.DataFrame:
    """Compare ERM over learning rates and decays with SoftAD over θ, both selected by one rule.

    ERM has every learning rate of `LEARNING_RATES` with every decay; SoftAD the values of θ of profile
    `paper`. A line per dataset and measure: means of plain ERM and both, and p of the exact permutation
    test of SoftAD minus tuned ERM. Raises MissingData where a learning rate lacks the decays.
    """
    rows = read(LEARNING_RATES)
    trained = rows[rows["method"] == "decay"]
    if trained["setting"].nunique() < len(LEARNING_RATES):
        raise MissingData("weight decays are not trained at every learning rate")
    erm = best(rows[rows["method"].isin(["erm", "decay"])], rule)
    plain = rows[(rows["method"] == "erm") & (rows["setting"] == SETTINGS["robust"])]
    softad = tables.read("paper", label_noise=0.0, final=True)
    softad = best(softad[softad["method"] == "softad"], rule)
    key = ["dataset", "trial"]
    both = softad.merge(erm, on=key, suffixes=("", "_tuned")).merge(
        plain[[*key, *CLAIMS]], on=key, suffixes=("", "_plain")
    )
    lines = []
    differences = []
    for dataset in tables.in_order(both["dataset"]):
        of = both[both["dataset"] == dataset]
        for measure in CLAIMS:
            lines.append(
                {
                    "dataset": dataset,
                    "measure": measure,
                    "n": len(of),
                    "ERM": of[f"{measure}_plain"].mean(),
                    "ERM tuned": of[f"{measure}_tuned"].mean(),
                    "SoftAD": of[measure].mean(),
                }
            )
            differences.append((of[measure] - of[f"{measure}_tuned"]).to_numpy())
    p_values = permutation_tests(differences)
    return pd.DataFrame([line | {"p": p} for line, p in zip(lines, p_values)])
