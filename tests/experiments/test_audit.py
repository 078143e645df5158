"""Claims on rows made by hand: what holds, what fails, what cannot be said."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from softadlib._validation import UserError
from softadlib.experiments.audit import claims as audit
from softadlib.experiments.audit import figures as audit_figures
from softadlib.experiments.audit.claims import CLAIMS, MATCHED, Claim
from softadlib.results.schema import MEASURES

GAP = CLAIMS["smallest gap"]


def row(method, trial, knob=math.nan, dataset="gaussian", noise=0.0, **measures):
    known = dict.fromkeys(MEASURES, 0.0) | {"acc_val": 1.0} | measures
    facts = {"dataset": dataset, "method": method, "trial": trial, "label_noise": noise}
    return {**facts, "knob": knob, "epoch": 5, **known}


def table(softad, erm, measure="model_norm", **facts):
    """One SoftAD and one ERM run a trial."""
    lines = [row("softad", t, 0.1, **{measure: v}, **facts) for t, v in enumerate(softad)]
    lines += [row("erm", t, **{measure: v}, **facts) for t, v in enumerate(erm)]
    return pd.DataFrame(lines)


NONE = pd.DataFrame(columns=["dataset", "label_noise", "trial", "knob", "control"])
NORM = CLAIMS["smallest norm"]


def verdicts(rows, claim=NORM):
    return audit.verdicts(audit.comparisons(rows, NONE, {claim.name: claim}))


def test_differences_are_paired_and_signed():
    rows = table([1.0, 2.0, 3.0, 4.0], [2.0, 3.5, 3.0, 3.0])
    (line,) = audit.compare(audit.contenders(rows, NONE, "largest"), NORM).to_dict("records")
    assert line["mean"] == pytest.approx((-1 - 1.5 + 0 + 1) / 4)
    assert (line["above"], line["equal"], line["below"], line["n"]) == (1, 1, 2, 4)
    assert line["against"] == "erm"
    assert line["as claimed"]
    # s of −1, −1.5, 0, 1 is 1.1087; t(.975, 3) = 3.18245
    half = 3.18245 * 1.10868 / 2
    assert (line["low"], line["high"]) == pytest.approx((-0.375 - half, -0.375 + half), abs=1e-4)
    assert line["finds"] == "open"


def test_gap_is_test_minus_train():
    rows = table([0.0], [0.0])
    rows.loc[rows["method"] == "softad", ["loss_test", "loss_train"]] = [0.5, 0.2]
    rows.loc[rows["method"] == "erm", ["loss_test", "loss_train"]] = [0.4, 0.3]
    (line,) = audit.compare(audit.contenders(rows, NONE, "largest"), GAP).to_dict("records")
    assert line["mean"] == pytest.approx(0.2)
    assert not line["as claimed"]
    assert (line["low"], line["high"]) == (-math.inf, math.inf)


def test_exact_p_by_hand():
    """Eight differences of one sign: 2 of 2⁸ assignments are as far."""
    rows = table(np.arange(8.0), np.arange(8.0) + 1 + np.arange(8) / 10)
    (line,) = audit.compare(audit.contenders(rows, NONE, "largest"), NORM).to_dict("records")
    assert line["p sign"] == pytest.approx(2 / 256)
    assert line["p perm"] == pytest.approx(2 / 256)
    assert line["finds"] == "yes"


def test_each_tie_rule_takes_its_own_knob_and_its_own_control():
    """Both θ tie on validation: the largest is .6 under one rule, .1 under the other."""
    lines = [row("softad", t, v, model_norm=10 * v) for t in range(6) for v in (0.1, 0.6)]
    lines += [row("flooding", t, 0.3) for t in range(6)]
    rows = pd.DataFrame(lines)
    controls = pd.DataFrame(
        [row("erm", t, v, model_norm=20 * v) | {"control": c, "factor": v}
         for t in range(6) for v in (0.1, 0.6) for c in ("lr", "loss")]
    )  # fmt: skip
    for ties, theta in (("largest", 0.6), ("smallest", 0.1)):
        chosen = audit.contenders(rows, controls, ties)
        beside = chosen[chosen["method"] == MATCHED]
        assert beside["model_norm"].tolist() == pytest.approx([20 * theta] * 6)
        (line,) = audit.compare(chosen, CLAIMS["larger θ"]).to_dict("records")
        assert line["mean"] == pytest.approx(theta - 0.3)
        (line,) = audit.compare(chosen, CLAIMS["smaller norm at a matched step"]).to_dict("records")
        assert line["mean"] == pytest.approx(-10 * theta)
        assert line["against"] == MATCHED


def test_diverged_trials_are_left_out_and_n_says_so():
    rows = table([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    rows.loc[(rows["method"] == "softad") & (rows["trial"] == 1), "acc_val"] = math.nan
    (line,) = audit.compare(audit.contenders(rows, NONE, "largest"), NORM).to_dict("records")
    assert line["n"] == 2


def test_the_sentences_turn_round_with_the_rows():
    ours, erm = np.arange(8.0), np.arange(8.0) + 1 + np.arange(8) / 10
    (line,) = audit.readings(verdicts(table(ours, erm)))
    assert line == (
        "**Holds** at 0% flipped labels, n = 8: smallest norm (largest 1 of 1, smallest 1 of 1)."
    )
    (line,) = audit.readings(verdicts(table(erm, ours)))
    assert line.startswith("**Fails** at 0% flipped labels, n = 8: smallest norm (largest 0 of 1")
    (line,) = audit.readings(verdicts(table(ours[:3], erm[:3])))
    assert line.startswith("**Not decidable** at 0% flipped labels, n = 3: ")


def test_holm_by_hand():
    assert audit.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert audit.holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert len(audit.holm([])) == 0


def found(*lines):
    columns = ["p perm", "as claimed", "finds", "n"]
    return pd.DataFrame(lines, columns=columns)


def test_verdicts_of_a_family():
    yes, no = (0.002, True, "yes", 10), (0.002, False, "no", 10)
    weak_no, unsure = (0.04, False, "no", 10), (0.5, True, "open", 10)
    assert audit.verdict(found(yes, yes)) == "holds"
    assert audit.verdict(found(yes, no)) == "fails"
    assert audit.verdict(found(yes, unsure)) == "not shown"
    assert audit.verdict(found(unsure, weak_no)) == "not shown"  # Holm: 0.04 is above 0.05 / 2 …
    assert audit.verdict(found(weak_no)) == "fails"  # … but alone it is enough
    assert audit.verdict(found(*[(0.25, True, "open", 3)] * 4)) == "not decidable"
    assert audit.verdict(found()) == "no rows"


def test_a_few_trials_cannot_decide_whatever_they_show():
    """Five trials, all as claimed by far: the least two-sided p there is is 2/2⁵."""
    rows = table([0.0] * 5, [100.0 + t for t in range(5)])
    line = verdicts(rows).iloc[0]
    assert line["verdict"] == "not decidable"
    assert line["as claimed"] == "1 of 1"
    assert line["n"] == 5
    rows = table([0.0] * 6, [100.0 + t for t in range(6)])
    assert verdicts(rows).iloc[0]["verdict"] == "holds"


def test_a_set_with_trials_enough_is_named_beside_one_with_too_few():
    many = table([0.0] * 8, [1.0 + t for t in range(8)])
    few = table([0.0] * 3, [1.0 + t for t in range(3)], dataset="spiral")
    line, decided = audit.readings(verdicts(pd.concat([many, few], ignore_index=True)))
    assert line.startswith("**Not decidable** at 0% flipped labels, n = 3: ")
    found = "1 found and 0 contradicted of 1"
    assert decided == (
        "Comparisons with n ≥ 6 at 0% flipped labels, on gaussian alone: "
        f"smallest norm (largest {found}, smallest {found})."
    )
    (line,) = audit.readings(verdicts(many))
    assert "n = 8: " in line


def test_verdicts_by_noise_and_rule_and_one_dataset_against_it():
    good = table([0.0] * 8, [1.0 + t for t in range(8)])
    bad = table([9.0 + t for t in range(8)], [1.0] * 8, dataset="spiral")
    noisy = table([0.0] * 8, [1.0 + t for t in range(8)], noise=0.05)
    lines = verdicts(pd.concat([good, bad, noisy], ignore_index=True))
    assert len(lines) == 4
    by = lines.set_index(["ties", "label_noise"])["verdict"]
    assert by.loc[:, 0.0].tolist() == ["fails"] * 2
    assert by.loc[:, 0.05].tolist() == ["holds"] * 2
    assert lines["n"].tolist() == [8] * 4


def test_a_claim_without_rows_has_no_line_and_tables_stay_empty():
    rows = table([0.0], [1.0])
    assert audit.compare(rows, Claim("x", "model_norm", True, ("sam",))).empty
    assert verdicts(rows, CLAIMS["larger θ"]).empty


def test_scaling_by_hand():
    rows = pd.DataFrame([row("erm", 0, model_norm=5.0), row("softad", 0, 0.1)])
    controls = pd.DataFrame(
        [row("erm", 0, 0.1, model_norm=v) | {"control": c, "factor": 0.25}
         for c, v in (("lr", 3.0), ("loss", 5.5))]
    )  # fmt: skip
    (line,) = audit.scaling(rows, controls).to_dict("records")
    assert line["loss × c − ERM"] == pytest.approx(0.5)
    assert line["lr × c − ERM"] == pytest.approx(2.0)
    assert line["loss × c − lr × c"] == pytest.approx(2.5)
    assert (line["c"], line["n"]) == (0.25, 1)


def test_overhead_reads_a_benchmark_or_says_what_is_missing():
    steps = [{"method": m, "step_s": 0.001, "over_erm": r, "gradients": 1}
             for m, r in (("softad", 1.1), ("asam", 3.0), ("erm", 1.0))]  # fmt: skip
    assert audit.overhead({"methods": steps})["over_erm"].to_dict() == {"erm": 1.0, "softad": 1.1}
    with pytest.raises(UserError, match="softad bench"):
        audit.overhead({"methods": []})


def test_pictures_show_every_comparison_and_hollow_what_is_open():
    lines = []
    for dataset, noise, low, high in [("spiral", 0.0, -2, -1), ("digits", 0.0, -1, 2),
                                      ("spiral", 0.05, 1, 3)]:  # fmt: skip
        facts = {"dataset": dataset, "label_noise": noise, "against": "erm"}
        lines.append({**facts, "mean": (low + high) / 2, "low": low, "high": high})
        lines[-1]["finds"] = "open" if low < 0 < high else "yes"
    both = pd.DataFrame([*lines, *lines])
    tables = {"largest": both.iloc[:3], "smallest": both.iloc[3:]}
    fig = audit_figures.intervals(tables, "gap", "nats", [*audit.OTHERS, MATCHED])
    shown = [ax for ax in fig.axes if ax.axison]
    assert [ax.get_title() for ax in shown] == ["spiral", "spiral, 5% flipped", "digits"]
    for ax, filled in zip(shown, (True, True, False)):
        marks = [line for line in ax.lines if line.get_marker() in ("o", "s")]
        assert len(marks) == 2
        assert all((m.get_markerfacecolor() != "white") == filled for m in marks)
    plt.close(fig)


def test_weights_are_drawn_as_means_over_trials():
    lines = [{"dataset": "gaussian", "label_noise": 0.0, "trial": t, "epoch": e, "control": "watched",
              "weight": 0.1 * (t + 1), "ascent": 0.5, "ascent_weight": 0.2}
             for t in range(2) for e in (1, 2)]  # fmt: skip
    fig = audit_figures.weights({"largest": pd.DataFrame(lines), "smallest": pd.DataFrame(lines)})
    assert fig.axes[0].lines[0].get_ydata() == pytest.approx([0.15, 0.15])
    assert len(fig.axes) == 3
    plt.close(fig)
