import math

import numpy as np
import pandas as pd
import pytest

from softadlib._validation import UserError
from softadlib.trainer.evaluation import MEASURES
from softadlib.workbook.analysis import published, tables


def rows_of(entries):
    """Final rows given as (dataset, method, trial, knob, train loss, test loss, val acc, test acc)."""
    names = ("dataset", "method", "trial", "knob", "loss_train", "loss_test", "acc_val", "acc_test")
    frame = pd.DataFrame([dict(zip(names, e)) for e in entries])
    for column in ("label_noise", "epoch", *MEASURES):
        if column not in frame:
            frame[column] = 50.0 if column == "model_norm" else 0.0
    return frame.assign(gap=frame["loss_test"] - frame["loss_train"])


ROWS = rows_of(
    [
        ("gaussian", "softad", 0, 0.1, 0.10, 0.12, 1.00, 0.96),
        ("gaussian", "softad", 0, 0.5, 0.50, 0.51, 1.00, 0.95),
        ("gaussian", "softad", 1, 0.1, 0.11, 0.14, 1.00, 0.98),
        ("gaussian", "softad", 1, 0.5, 0.52, 0.53, 1.00, 0.97),
        ("gaussian", "softad", 2, 0.1, 0.12, 0.16, 1.00, 0.97),
        ("gaussian", "softad", 2, 0.5, 0.54, 0.55, 0.90, 0.94),
        ("gaussian", "erm", 0, math.nan, 0.00, 0.08, 0.98, 0.97),
        ("gaussian", "erm", 1, math.nan, 0.01, 0.11, 0.99, 0.98),
        ("gaussian", "erm", 2, math.nan, 0.02, 0.14, 0.97, 0.99),
    ]
)


def test_the_four_printed_tables():
    assert [len(published.printed(table)) for table in (1, 2, 3, 4)] == [28, 21, 12, 8]
    assert published.printed(1).loc[("gaussian", "softad"), "mean"] == 0.004
    assert published.printed(2).loc[("svhn", "sam")].tolist() == [0.28, 0.20]
    both = published.printed(1, 3)["mean"]
    assert both["fashionmnist", "erm"] == 0.801, "Table 1 comes first"
    assert both["fashionmnist", "iflood"] == 0.273


def test_datasets_stand_in_the_papers_order_and_methods_in_the_registrys():
    assert tables.in_order(["zoo", "svhn", "spiral", "digits", "spiral"]) == [
        "spiral", "svhn", "digits", "zoo",
    ]  # fmt: skip
    lines = pd.DataFrame({"dataset": ["zoo", "spiral"] * 2, "method": ["sam", "sam", "erm", "erm"]})
    assert tables.ordered(lines)["method"].tolist() == ["erm", "sam"] * 2
    assert tables.ordered(lines)["dataset"].tolist() == ["spiral"] * 2 + ["zoo"] * 2


def test_a_page_draws_the_datasets_that_have_all_methods_it_compares():
    alone = ROWS[ROWS["method"] == "erm"].assign(dataset="spiral")
    rows = pd.concat([ROWS, alone])
    assert tables.require(rows, "erm", "softad")["dataset"].unique().tolist() == ["gaussian"]
    assert set(tables.require(rows, "erm")["dataset"]) == {"gaussian", "spiral"}
    with pytest.raises(UserError, match="compares ERM and SAM; no data set has results of both"):
        tables.require(rows, "erm", "sam")
    with pytest.raises(UserError, match="at least 2 data sets"):
        tables.require(rows, "erm", "softad", sets=2)


def test_gaps_by_hand():
    erm, softad = tables.by_rule(ROWS, "gap").to_dict("records")
    assert erm["largest"] == erm["smallest"] == erm["loss"] == pytest.approx(0.10)
    # 0.08, 0.10, 0.12: s = 0.02, t(.975, 2) = 4.302653
    ends = 0.10 - 4.302653 * 0.02 / 3**0.5, 0.10 + 4.302653 * 0.02 / 3**0.5
    assert (erm["largest_low"], erm["largest_high"]) == pytest.approx(ends, abs=1e-6)
    assert (erm["paper_1"], erm["n"], softad["paper_1"]) == (0.080, 3, 0.004)
    assert softad["largest"] == pytest.approx((0.01 + 0.01 + 0.04) / 3)
    assert softad["smallest"] == pytest.approx((0.02 + 0.03 + 0.04) / 3)


def test_the_third_rule_is_the_lowest_validation_loss():
    rows = ROWS.assign(loss_val=ROWS["knob"].map({0.1: 0.3, 0.5: 0.2}).fillna(1.0))
    line = tables.by_rule(rows, "knob").iloc[0]
    assert (line["loss"], line["loss_sd"]) == (pytest.approx(0.5), pytest.approx(0))


def test_selected_values_by_hand():
    (line,) = tables.by_rule(ROWS, "knob").to_dict("records")
    assert line["method"] == "softad", "ERM has nothing to select"
    assert line["largest"] == pytest.approx((0.5 + 0.5 + 0.1) / 3)
    assert line["largest_sd"] == pytest.approx(np.std([0.5, 0.5, 0.1], ddof=1))
    assert (line["paper_2"], line["paper_2_sd"]) == (0.08, 0.08)
    text = tables.render(pd.DataFrame([line]), tables.rule_cells("knob")).iloc[0]
    assert text["paper, Table 2"] == "0.08 (0.08)"
    assert text["ties to the largest"] == "0.37 (0.23)"


@pytest.mark.parametrize("change", [{"label_noise": 0.05}, {"dataset": "digits"}])
def test_what_the_paper_has_not_has_no_number_of_the_paper(change):
    assert not any(c.startswith("paper") for c in tables.by_rule(ROWS.assign(**change), "gap"))


def test_the_mean_over_a_diverged_run_has_no_finite_interval():
    rows = ROWS.copy()
    erm = rows["method"] == "erm"
    rows.loc[erm & (rows["trial"] == 0), ["loss_test", "gap"]] = math.nan
    rows.loc[erm & (rows["trial"] == 1), ["loss_test", "gap"]] = math.inf
    line = tables.by_rule(rows, "gap").iloc[0]
    assert (line["largest_low"], line["largest_high"]) == (-math.inf, math.inf)
    none = tables.by_rule(ROWS.assign(loss_val=math.nan, acc_val=math.nan), "gap")
    assert none.empty, "every run diverged"


def test_along_theta_takes_the_ends_near_values_and_both_sides_of_ln_2():
    grid = (0.01, 0.09, 0.12, 0.33, 0.68, 0.7, 2.0)
    entries = [("spiral", "softad", t, v, 0.1, 0.1 + v, 0.9, 0.8) for v in grid for t in (0, 1)]
    table = tables.along_theta(rows_of(entries))
    assert table["theta"].tolist() == [0.01, 0.09, 0.33, 0.68, 0.70, 2.00]
    assert table["gap"].tolist() == pytest.approx([0.01, 0.09, 0.33, 0.68, 0.70, 2.00])
    assert set(table["n"]) == {2}
    below = tables.along_theta(rows_of(entries[4:6]))
    assert below["theta"].tolist() == [0.12], "a grid without a value above ln 2"


def made(dataset="fashionmnist", **facts):
    """A line of `results.provenances` with the paper's protocol, but for `facts`."""
    line = {"dataset": dataset, "method": "softad", "trials": 5, "grid": 10, "epochs": 500}
    line |= {"samples": "all + all + all", "label_noise": "0", "dtype": "float32", "runs": 10}
    line |= {"training": "model mlp1x1000, optimizer sgd, lr 0.1"}
    return line | {"device": "cpu", "torch": "2", "seconds": 1800} | facts


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ""),
        ({"trials": 3, "epochs": 40}, "3 of 5 trials, 40 of 500 epochs"),
        ({"grid": 2}, "2 of 10 values"),
        ({"training": "model linear, optimizer sgd, sigma 2"}, "model linear, sigma 2"),
        ({"samples": "6000 + all + all"}, "samples 6000 + all + all"),
        ({"dataset": "digits"}, ""),
    ],
)
def test_nothing_is_the_papers_protocol_that_is_not(facts, words):
    assert list(tables.shortfalls(pd.DataFrame([made(**facts)])).values()) == [words]


def test_every_shortened_grid_is_named_by_its_methods():
    """Of FashionMNIST the paper's grids have 10 values, SAM's has 6; one method has fewer trials."""
    cut = {"flooding": 3, "iflood": 3, "sam": 5}
    lines = [made(method=method, grid=grid) for method, grid in cut.items()]
    frame = pd.DataFrame([made(method="erm", grid=1, trials=3), *lines, made()])
    assert tables.shortfalls(frame) == {
        "fashionmnist": "3 of 5 trials, 3 of 10 values of Flooding, iFlood, 5 of 6 values of SAM"
    }


def test_a_method_beyond_the_paper_is_no_cut_and_a_dataset_beyond_it_has_no_column_of_cuts():
    frame = pd.DataFrame([made(), made(method="asam", grid=2)])
    assert tables.shortfalls(frame) == {"fashionmnist": ""}
    assert "less than the paper" not in tables.effort(pd.DataFrame([made(dataset="digits")]))


def test_a_profile_without_rows_ends_in_one_line():
    with pytest.raises(UserError, match=r"^profile 'none' has no results") as caught:
        tables.read("none")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="stored: gaussian, sinusoid, spiral, digits"):
        tables.read("smoke", label_noise=0.3)


def test_titles_of_datasets():
    assert tables.TITLES["fashionmnist"] == "FashionMNIST"
    assert tables.TITLES["my-table"] == "my-table"
    assert pd.Series(["cifar10", "gaussian"]).map(tables.TITLES).tolist() == [
        "CIFAR-10",
        "gaussian",
    ]


def test_shown_has_fixed_decimals_and_the_best_in_bold():
    table = pd.DataFrame(
        {"ERM": [0.08, 0.5], "SoftAD": [0.0304, math.nan], "n": [15, 3]}, index=["a & b", "c"]
    )
    page = tables.shown(table, best="min")
    words = repr(page).split()
    assert words == [
        "ERM",
        "SoftAD",
        "n",
        "a",
        "&",
        "b",
        "0.080",
        "0.030",
        "15",
        "c",
        "0.500",
        "–",
        "3",
    ]
    marked = tables.shown(table[["ERM", "SoftAD"]], best="min")._repr_html_()
    assert marked.count("<b>") == 2
    assert "<b>0.030</b>" in marked
    assert "<b>0.500</b>" in marked
    down = tables.shown(table[["ERM"]], digits={"ERM": 1}, best="max", along="rows")._repr_html_()
    assert down.count("<b>") == 1
    assert "<b>0.5</b>" in down


def test_a_table_without_a_row_is_shown_by_its_heads():
    assert "<th>runs</th>" in tables.shown(pd.DataFrame({"runs": []}))._repr_html_()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0.012, 0.01), ["0.012", "0.01"]),
        ((0.1, 2, 1234.5, 0, 1e-5), ["0.10", "2.00", "1234.50", "0.00", "0.00001"]),
        ((0.01 + 1.99 / 39, math.nan), ["0.061", "–"]),  # the second value of the paper's grid
        ((1.001, 1.002), ["1.001", "1.002"]),
        ((0.3, 0.1 + 0.2), ["0.30", "0.30"]),
    ],
)
def test_values_that_differ_are_shown_apart(values, words):
    frame = pd.DataFrame({"value_last": values})
    assert tables.render(frame)["value"].tolist() == words


def test_a_value_that_all_trials_select_is_that_value():
    frame = pd.DataFrame(
        {"knob": [0.012, 0.012, 0.0133, 0.3667], "knob_sd": [1e-18, math.nan, 0.0029, 0.23]}
    )
    assert tables.render(frame)["value"].tolist() == [
        "0.012 (0.00)", "0.012", "0.013 (0.003)", "0.37 (0.23)",
    ]  # fmt: skip
