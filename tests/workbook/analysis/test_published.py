"""The authors' printed numbers, and ours beside them, against numbers worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from softadlib.workbook.analysis import published, tables
from softadlib.workbook.studies import results


def run(dataset, method, trial, knob, acc_val, loss_test, *, epoch=500, noise=0.0):
    """One run's row at one epoch; its accuracy is 1 minus a tenth of its loss, its norm ten times it."""
    return {
        "dataset": dataset,
        "label_noise": noise,
        "method": method,
        "trial": trial,
        "knob": knob,
        "epoch": epoch,
        "acc_val": acc_val,
        "loss_val": 1 - acc_val,
        "loss_test": loss_test,
        "acc_test": 1 - loss_test / 10,
        "model_norm": 10 * loss_test,
    }


@pytest.fixture
def rows():
    return pd.DataFrame(
        [
            run("gaussian", "softad", 0, 0.2, 0.9, 0.5),
            run("gaussian", "softad", 0, 0.4, 0.9, 0.7),  # a tie: the largest is selected
            run("gaussian", "softad", 0, 0.6, 0.8, 9.0),
            run("gaussian", "softad", 1, 0.2, 0.95, 0.3),
            run("gaussian", "softad", 1, 0.4, 0.90, 9.0),
            run("gaussian", "softad", 1, 0.2, 0.95, 8.0, epoch=100),  # not the last epoch
            run("gaussian", "erm", 0, np.nan, 0.9, 0.1),
            run("gaussian", "erm", 0, np.nan, 0.9, 0.6, noise=0.05),
            run("gaussian", "iflood", 0, 0.2, 0.9, 0.6),  # the authors did not train it here
            run("fashionmnist", "erm", 0, np.nan, 0.9, 0.5, epoch=40),  # theirs are of 500 epochs
            run("sinusoid", "erm", 0, np.nan, 0.9, 0.5),
        ]
    )


class TestPrintedByAuthors:
    def test_holds_what_the_notebooks_print(self):
        printed = published.printed_by_authors()
        assert printed.groupby(["dataset", "label_noise", "n"]).size().to_dict() == {
            ("gaussian", 0.0, 15): 23,
            ("gaussian", 0.05, 15): 23,
            ("fashionmnist", 0.0, 3): 17,
            ("svhn", 0.0, 2): 5,
        }
        softad = printed.query("dataset == 'gaussian' and label_noise == 0 and method == 'softad'")
        assert softad.set_index("quantity")["mean"].round(3).to_dict() == {
            "knob": 0.595,
            "loss_train": 0.594,
            "loss_test": 0.598,
            "acc_train": 0.997,
            "acc_test": 0.981,
            "model_norm": 51.877,
        }
        assert softad["sd"].dropna().round(3).tolist() == [0.123]

    def test_three_gaps_are_the_papers_to_its_last_digit(self):
        """So Table 1's column of the Gaussian data is of these runs, but for ERM."""
        printed = published.printed_by_authors().query("dataset == 'gaussian' and label_noise == 0")
        means = printed.pivot(index="method", columns="quantity", values="mean")
        gap = means["loss_test"] - means["loss_train"]
        paper = published.printed(1)["mean"]["gaussian"]
        off = (gap - paper[gap.index]).abs()
        assert off[["flooding", "sam", "softad"]].max() < 6e-4
        assert off["erm"] == pytest.approx(0.0023, abs=1e-4)


class TestCurvesByAuthors:
    @pytest.mark.parametrize(("measure", "pixels"), [("loss_test", 0.02), ("model_norm", 0.3)])
    def test_end_at_the_printed_numbers(self, measure, pixels):
        """Within a pixel; SVHN's last point is a median over a loss that jumps."""
        curves = published.curves_by_authors()
        ends = curves[curves["epoch"] == 500].set_index(["dataset", "method"])[measure]
        printed = published.printed_by_authors().query(f"quantity == '{measure}' and epochs == 500")
        printed = printed[printed["label_noise"] == 0].set_index(["dataset", "method"])["mean"]
        assert len(ends) == 4
        assert (ends - printed[ends.index]).abs().max() < pixels

    def test_norms_grow(self):
        curves = published.curves_by_authors()
        for _, curve in curves.groupby(["dataset", "method"]):
            assert curve["epoch"].tolist() == list(range(20, 501, 10))
            assert curve["model_norm"].diff().min() > -0.5


class TestBesideAuthors:
    def test_means_by_hand(self, rows):
        table = tables.beside_authors(rows)
        softad = table[table["method"] == "softad"].set_index("quantity")
        assert softad["ours"].tolist() == pytest.approx([0.3, 0.5, 0.95, 5.0])
        spread = 2**-0.5  # the standard deviation of two values that are 1 apart
        expected = np.array([0.2, 0.4, 0.04, 4.0]) * spread
        assert softad["ours_sd"].tolist() == pytest.approx(expected.tolist())
        assert softad["ours_n"].tolist() == [2] * 4
        assert softad["authors"].round(3).tolist() == [0.595, 0.598, 0.981, 51.877]

    def test_lines_are_what_both_have_in_order(self, rows):
        table = tables.beside_authors(rows, ["loss_test", "knob"])
        assert table[["label_noise", "method", "quantity"]].to_numpy().tolist() == [
            [0.0, "erm", "loss_test"],
            [0.0, "softad", "loss_test"],
            [0.0, "softad", "knob"],
            [0.05, "erm", "loss_test"],
        ]
        assert table["dataset"].unique().tolist() == ["gaussian"]

    def test_stored_rows_of_the_paper(self):
        """Selected theta and flood level: theirs and ours are those of the same data and seeds."""
        table = tables.beside_authors(results.read("paper", "gaussian", final=True))
        knobs = table[table["quantity"] == "knob"].set_index("method")
        assert knobs["ours_n"].tolist() == [15] * 3
        assert knobs.loc["softad", "ours"] == pytest.approx(0.585, abs=5e-4)
        assert knobs.loc["softad", "ours_sd"] == pytest.approx(0.171, abs=5e-4)
