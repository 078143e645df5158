"""Claims on rows made by hand: what holds, what fails, what cannot be said."""

import numpy as np
import pandas as pd
import pytest

from softadlib._validation import MissingData
from softadlib.workbook.experiments import audit
from softadlib.workbook.experiments.audit import Claim

GAP = Claim("smaller gap", "gap")


def runs(measure="gap", dataset="gaussian", **values):
    """Selected runs: a method's values of one measure, trial by trial."""
    return pd.DataFrame(
        {"dataset": dataset, "label_noise": 0.0, "method": method, "trial": trial, measure: value}
        for method, given in values.items()
        for trial, value in enumerate(given)
    )


def test_a_comparison_by_hand():
    softad, erm = [0.1, 0.2, 0.15, 0.1, 0.3, 0.2], [0.3, 0.3, 0.35, 0.2, 0.45, 0.35]
    (line,) = audit.compare(runs(softad=softad, erm=erm), GAP).to_dict("records")
    differences = np.subtract(softad, erm)
    assert line["mean"] == pytest.approx(differences.mean())
    # t(.975, 5) = 2.570582 from a printed table
    half = 2.570582 * differences.std(ddof=1) / 6**0.5
    assert line["mean_low"] == pytest.approx(differences.mean() - half, abs=1e-6)
    assert line["p"] == pytest.approx(2 / 64), "of all signs two are as far: all six of one"
    assert line["p sign"] == pytest.approx(2 / 64)
    assert (line["above"], line["equal"], line["below"], line["n"]) == (0, 0, 6, 6)
    assert line["finds"] == "yes"


def test_the_contrary_and_the_open():
    low, high = np.arange(6) / 10, np.arange(6) / 10 + 0.5
    assert audit.compare(runs(softad=high, erm=low), GAP)["finds"].tolist() == ["no"]
    mixed = low + np.array([1, -1, 1, -1, 1, -1]) / 10
    assert audit.compare(runs(softad=mixed, erm=low), GAP)["finds"].tolist() == ["open"]
    above = Claim("larger θ", "gap", below=False)
    assert audit.compare(runs(softad=high, erm=low), above)["finds"].tolist() == ["yes"]


def test_five_trials_find_nothing_however_far_apart():
    (line,) = audit.compare(runs(softad=[0.0] * 5, erm=[9.0] * 5), GAP).to_dict("records")
    assert (line["finds"], line["p"]) == ("n < 6", pytest.approx(2 / 32))


def test_only_trials_of_both_count():
    rows = runs(softad=[0.1] * 7, erm=[0.2] * 7, sam=[0.2] * 3)
    table = audit.compare(rows, GAP).set_index("against")
    assert table["n"].to_dict() == {"erm": 7, "sam": 3}


def table_of(n):
    """Final rows with `gap`, n trials on gaussian and 3 on fashionmnist; SoftAD the smallest."""
    bases = {"erm": 0.3, "flooding": 0.2, "sam": 0.25, "iflood": 0.05, "softad": 0.1}
    lines = []
    for dataset, trials in (("gaussian", n), ("fashionmnist", 3)):
        for method, base in bases.items():
            for trial in range(trials):
                value = base + trial / 1000
                facts = {"dataset": dataset, "label_noise": 0.0, "method": method, "trial": trial}
                facts |= {"knob": np.nan if method == "erm" else 0.2, "epoch": 5, "gap": value}
                facts |= {"model_norm": value, "loss_test": value, "acc_val": 1.0, "loss_val": 1.0}
                lines.append(facts)
    return pd.DataFrame(lines)


def test_findings_are_counted_with_the_smallest_n_that_decides():
    table = audit.findings(audit.comparisons(table_of(7), ["largest"])).set_index("claim")
    counts = ["yes", "open", "no", "n < 6", "n"]
    assert table.loc["smaller gap", counts].tolist() == [3, 0, 0, 3, "7"]
    assert table.loc["smaller gap than iFlood", counts].tolist() == [0, 0, 1, 1, "7"]
    assert table.loc["larger θ", counts].tolist() == [0, 1, 0, 1, "7"], "both have 0.2"
    few = audit.findings(audit.comparisons(table_of(5), ["largest"])).set_index("claim")
    assert few.loc["smaller gap", counts].tolist() == [0, 0, 0, 6, "–"]


def test_a_claim_of_three_comparisons_is_corrected_for_three():
    """2 of 64 signs: p = 0.03 each, and 0.09 after Holm's correction; one alone stays at 0.03."""
    table = audit.findings(audit.comparisons(table_of(6), ["largest"])).set_index("claim")
    assert table.loc["smaller gap", ["yes", "yes by Holm"]].tolist() == [3, 0]
    alone = audit.comparisons(table_of(6), ["largest"]).query("against == 'erm'")
    alone = audit.findings(alone).set_index("claim")
    assert alone.loc["smaller gap", ["yes", "yes by Holm"]].tolist() == [1, 1]


def test_accuracy_is_comparable_lower_or_open():
    erm = np.array([0.90, 0.91, 0.92, 0.93, 0.94, 0.95])
    for shift, finds in ((-0.005, "comparable"), (-0.02, "lower")):
        rows = runs("acc_test", softad=erm + shift, erm=erm)
        (line,) = audit.compare_accuracy(rows, 1.0).to_dict("records")
        assert (line["finds"], line["mean"]) == (finds, pytest.approx(100 * shift))
    noisy = erm + np.array([0.05, -0.05, 0.05, -0.05, 0.05, -0.05])
    table = audit.compare_accuracy(runs("acc_test", softad=noisy, erm=erm), 1.0)
    assert table["finds"].item() == "open"
    few = audit.compare_accuracy(runs("acc_test", softad=erm[:5], erm=erm[:5]), 1.0)
    assert few["finds"].item() == audit.TOO_FEW


def test_methods_that_share_no_dataset_are_one_line():
    apart = [runs(erm=[1.0]), runs(dataset="spiral", softad=[1.0])]
    rows = pd.concat(apart).assign(
        knob=0.1, epoch=1, acc_val=1.0, loss_val=1.0, loss_test=1.0, model_norm=1.0
    )
    with pytest.raises(MissingData, match="no data set has results of both"):
        audit.comparisons(rows)
