import math

import numpy as np
import pandas as pd
import pytest

from softadlib.analysis import paper, tables
from softadlib.results.schema import MEASURES


def rows_of(entries):
    """Final rows given as (dataset, method, trial, knob, train loss, test loss, val acc, test acc)."""
    names = ("dataset", "method", "trial", "knob", "loss_train", "loss_test", "acc_val", "acc_test")
    frame = pd.DataFrame([dict(zip(names, e)) for e in entries])
    for column in ("label_noise", "epoch", *MEASURES):
        if column not in frame:
            frame[column] = 50.0 if column == "model_norm" else 0.0
    return frame


ROWS = rows_of(
    [
        ("gaussian", "erm", 0, math.nan, 0.00, 0.08, 0.98, 0.97),
        ("gaussian", "erm", 1, math.nan, 0.01, 0.11, 0.99, 0.98),
        ("gaussian", "erm", 2, math.nan, 0.02, 0.14, 0.97, 0.99),
        ("gaussian", "softad", 0, 0.1, 0.10, 0.12, 1.00, 0.96),
        ("gaussian", "softad", 0, 0.5, 0.50, 0.51, 1.00, 0.95),
        ("gaussian", "softad", 1, 0.1, 0.11, 0.14, 1.00, 0.98),
        ("gaussian", "softad", 1, 0.5, 0.52, 0.53, 1.00, 0.97),
        ("gaussian", "softad", 2, 0.1, 0.12, 0.16, 1.00, 0.97),
        ("gaussian", "softad", 2, 0.5, 0.54, 0.55, 0.90, 0.94),
    ]
)


def test_the_four_printed_tables():
    assert [len(paper.printed(table)) for table in (1, 2, 3, 4)] == [28, 21, 12, 8]
    assert paper.printed(1).loc[("gaussian", "softad"), "mean"] == 0.004
    assert paper.printed(2).loc[("svhn", "sam")].tolist() == [0.28, 0.20]
    assert paper.printed(1, 3).loc[("fashionmnist", "erm"), "mean"] == 0.801, "Table 1 comes first"
    assert paper.printed(1, 3).loc[("fashionmnist", "iflood"), "mean"] == 0.273


def test_datasets_stand_in_the_papers_order():
    assert paper.in_order(["zoo", "svhn", "spiral", "digits", "spiral"]) == [
        "spiral",
        "svhn",
        "digits",
        "zoo",
    ]


def test_summary_by_hand():
    erm, softad = tables.summary(ROWS, "largest").to_dict("records")
    assert erm["gap"] == pytest.approx((0.08 + 0.10 + 0.12) / 3)
    assert (erm["gap_low"], erm["gap_high"]) == pytest.approx((0.0503172, 0.1496828), abs=1e-6)
    assert (erm["n"], erm["edge"], erm["acc_test"]) == (3, 0, pytest.approx(0.98))
    assert softad["gap"] == pytest.approx((0.01 + 0.01 + 0.04) / 3)
    assert softad["knob"] == pytest.approx((0.5 + 0.5 + 0.1) / 3)
    assert softad["knob_sd"] == pytest.approx(np.std([0.5, 0.5, 0.1], ddof=1))
    assert (softad["edge"], softad["tied"]) == (3, pytest.approx(5 / 3))
    smallest = tables.summary(ROWS, "smallest").set_index("method").loc["softad"]
    assert smallest["gap"] == pytest.approx((0.02 + 0.03 + 0.04) / 3)
    assert smallest["knob"] == pytest.approx(0.1)


def test_the_mean_over_a_diverged_run_has_no_finite_interval():
    rows = ROWS.copy()
    rows.loc[0, ["loss_train", "loss_test"]] = math.inf, math.nan  # ERM's trial 0
    erm, softad = tables.summary(rows).to_dict("records")
    assert (erm["gap_low"], erm["gap_high"]) == (-math.inf, math.inf)
    assert math.isfinite(softad["gap_low"])


def test_methods_stand_in_the_registrys_order():
    rows = pd.concat([ROWS, ROWS[ROWS["method"] == "softad"].assign(method="flooding")])
    assert tables.summary(rows)["method"].tolist() == ["erm", "flooding", "softad"]


def test_loss_gap_shows_paper_ours_and_dashes():
    out = tables.loss_gap(ROWS, ["gaussian", "spiral"], ["erm", "iflood", "softad"])
    assert out.loc[("gaussian", "ERM"), ("paper", "Table 1")] == "0.080"
    ours = out["ties to the largest"].loc[("gaussian", "ERM")]
    assert ours.tolist() == ["0.100 [0.050, 0.150]", "0.110", "98.0", "3"]
    gaps = out["ties to the smallest"]["gap [95 %]"]
    assert gaps["gaussian", "SoftAD"].startswith("0.030 [")
    assert out.loc[("gaussian", "iFlood"), ("paper", "Table 1")] == tables.DASH
    assert set(out["ties to the largest"].loc[("spiral", "SoftAD")]) == {tables.DASH}
    assert out.loc[("spiral", "SoftAD"), ("paper", "Table 1")] == "0.087"
    images = tables.loss_gap(ROWS, ["fashionmnist"], ["iflood"])
    assert images.loc[("fashionmnist", "iFlood"), ("paper", "Table 3")] == "0.273"


def test_hyperparameters_show_mean_sd_edge_and_ties():
    out = tables.hyperparameters(ROWS, ["gaussian"], ["sam", "softad"])
    assert out.loc[("gaussian", "SAM"), ("paper", "Table 2")] == "0.36 (0.19)"
    ours = out["ties to the largest"].loc[("gaussian", "SoftAD")]
    assert ours.tolist() == ["0.37 (0.23)", "3", "1.7", "3"]


def test_flipped_labels_have_no_number_of_the_paper_beside_them():
    noisy = ROWS.assign(label_noise=0.05, loss_test=ROWS["loss_test"] + 1)
    out = tables.loss_gap(noisy, ["gaussian"], ["erm"])
    assert "paper" not in out
    assert out["ties to the largest"].loc[("gaussian", "ERM"), "test loss"] == "1.110"


def test_cells():
    frame = pd.DataFrame(
        {"gap": [-0.0001, math.nan], "gap_low": -1.0, "gap_high": 1.0, "n": [2, 1]}
    )
    frame = frame.assign(knob=[0.5, 0.25], knob_sd=[0.1, math.nan], acc_change=[-0.0001, 0.012])
    text = tables.render(frame)
    assert list(text) == ["gap [95 %]", "n", "knob", "its acc. − ERM's, points"]
    assert text.iloc[0].tolist() == ["0.000 [-1.000, 1.000]", "2", "0.50 (0.10)", "+0.0"]
    assert text.iloc[1].tolist() == [tables.DASH, "1", "0.25", "+1.2"]


def test_missing_commands_fill_the_dashes():
    assert paper.missing_commands(ROWS, "quick", ["gaussian"], ["erm", "sam", "softad"]) == [
        "softad run quick --dataset gaussian --method sam"
    ]
    found = paper.missing_commands(
        ROWS,
        "quick",
        ["gaussian", "spiral", "svhn"],
        ["erm"],
        offered={"spiral": ["erm", "softad"]},
        not_fetched=["svhn"],
    )
    assert found == [
        "softad run quick --dataset spiral",
        "softad data prepare svhn && softad run paper --dataset svhn",
    ]
    gaussian = ["gaussian"], ["erm", "sam", "softad", "flooding"]
    found = paper.missing_commands(ROWS, "beyond", *gaussian, offered={"gaussian": ["erm", "sam"]})
    assert found == ["softad run beyond --dataset gaussian --method sam"], "it has no others"


def test_verdicts_name_the_ends_and_their_price():
    largest, smallest = tables.gap_verdicts(ROWS, ["erm", "softad"]).to_dict("records")
    assert (largest["largest gap"], largest["smallest gap"], largest["n"]) == ("ERM", "SoftAD", 3)
    assert largest["acc_change"] == pytest.approx((0.95 + 0.97 + 0.97) / 3 - 0.98)
    assert smallest["loss_change"] == pytest.approx(0.14 - 0.11)


def test_theta_order_counts_trials():
    flood = ROWS[ROWS["method"] == "softad"].assign(
        method="flooding", acc_val=lambda d: 1.0 - d["knob"]
    )
    out = tables.theta_order(pd.concat([ROWS, flood])).set_index("ties")
    assert out.loc["largest", ["above", "equal", "below", "n"]].tolist() == [2, 1, 0, 3]
    assert out.loc["smallest", ["above", "equal", "below", "n"]].tolist() == [0, 3, 0, 3]
    assert out.loc["largest", ["softad_mean", "flooding_mean"]].tolist() == pytest.approx(
        [1.1 / 3, 0.1]
    )


def test_no_rows_give_dashes_not_errors():
    empty = ROWS.iloc[:0]
    assert len(tables.loss_gap(empty, ["gaussian"], ["erm"])) == 1
    assert tables.gap_verdicts(empty, ["erm", "softad"]).empty
    assert tables.theta_order(empty).empty


def test_trajectory_points_are_means_at_the_ends_and_between():
    curves = pd.concat(
        [ROWS[ROWS["method"] == "erm"].assign(epoch=e, loss_test=e / 10.0) for e in range(0, 13, 2)]
    )
    out = tables.trajectory_points(curves)
    assert out["loss_test"].columns.tolist() == [0, 4, 8, 12]
    assert out.loc["ERM", "loss_test"].tolist() == [0.0, 0.4, 0.8, 1.2]
    assert tables.trajectory_points(curves[curves["epoch"] == 12])[
        "loss_test"
    ].columns.tolist() == [12]


def test_effort_says_what_was_cut():
    line = {"dtype": "float32", "epochs": 10, "trials": 1}
    facts = pd.DataFrame(
        [
            {
                "dataset": "fashionmnist",
                "method": "erm",
                "grid": 1,
                "samples": "6000 + 2000 + all",
                **line,
            },
            {
                "dataset": "fashionmnist",
                "method": "sam",
                "grid": 6,
                "samples": "6000 + 2000 + all",
                **line,
            },
            {
                "dataset": "gaussian",
                "method": "erm",
                "grid": 1,
                "samples": "100 + 100 + 20000",
                **line,
            },
        ]
    )
    out = tables.effort(facts)
    assert out.index.tolist() == ["gaussian", "fashionmnist"]
    assert out.loc["fashionmnist"].tolist() == [1, 6, 10, "6000 + 2000 + all", "float32"]
    assert tables.effort(facts.iloc[:0]).empty
    facts.loc[1, "trials"] = 3
    assert tables.effort(facts).loc["fashionmnist", "trials"] == "1–3"
    assert tables.effort(facts).loc["gaussian", "trials"] == 1
