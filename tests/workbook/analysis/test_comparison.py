"""The methods side by side: what a person would count, bold numbers, lines and marks."""

import math
import re
import warnings

import matplotlib.pyplot as plt
import pandas as pd

from softadlib.workbook.analysis import comparison, plots, tables


def test_methods_side_by_side_as_a_person_would_count_them():
    """ERM, and SoftAD at two values; two trials, each stopped early at its lower validation loss."""
    lines = []
    for method, knob, trial, epoch, val, test, accuracy in (
        ("erm", math.nan, 0, 1, 0.3, 0.4, 0.7),
        ("erm", math.nan, 0, 2, 0.5, 0.8, 0.9),
        ("erm", math.nan, 1, 1, 0.3, 0.6, 0.7),
        ("erm", math.nan, 1, 2, 0.7, 1.0, 0.9),
        ("softad", 0.003, 0, 1, 0.4, 0.5, 0.8),
        ("softad", 0.003, 0, 2, 0.2, 0.3, 0.8),
        ("softad", 0.003, 1, 1, 0.4, 0.5, 0.8),
        ("softad", 0.003, 1, 2, 0.2, 0.5, 0.8),
        ("softad", 0.5, 0, 1, 0.6, 0.7, 0.6),
        ("softad", 0.5, 0, 2, 0.6, 0.7, 0.6),
        ("softad", 0.5, 1, 1, 0.1, 0.2, 0.6),
        ("softad", 0.5, 1, 2, 0.6, 0.7, 0.6),
    ):
        facts = {"dataset": "mine", "method": method, "knob": knob, "trial": trial, "epoch": epoch}
        losses = {"loss_train": test, "loss_val": val, "loss_test": test}
        after = {
            "prior_loss_test": test / 2,
            "prior_temperature": (1.0, 4.0)[trial],  # a geometric mean of 2
            "acc_val": accuracy,
            "acc_test": accuracy,
        }
        lines.append({**facts, "label_noise": 0.0, **losses, **after})
    rows = pd.DataFrame(lines)
    table = comparison.side_by_side(rows)
    shown = tables.render(table)
    assert shown.to_dict("records") == [
        {
            "dataset": "mine", "method": "erm", "n": "2", "test loss, last": "0.900", "after T": "0.450", "T": "2.00",
            "accuracy, %, last": "90.0", "value": "–", "value, early": "–", "early": "0.500",
            "accuracy, %, early": "70.0",
        },
        {
            "dataset": "mine", "method": "softad", "n": "2", "test loss, last": "0.400",
            "after T": "0.200", "T": "2.00", "accuracy, %, last": "80.0", "value": "0.003",
            "value, early": "0.003", "early": "0.250", "accuracy, %, early": "70.0",
        },
    ]  # fmt: skip


def made_rows(epochs=(1, 2), **of_all):
    """ERM falls and rises, SoftAD falls; SoftAD's accuracy is lower."""
    lines = []
    for dataset in ("mine", "yours"):
        for method, tests in (("erm", (0.4, 0.8)), ("softad", (0.6, 0.5))):
            for trial in (0, 1):
                for epoch, test in zip((1, 2), tests):
                    facts = {"dataset": dataset, "method": method, "trial": trial, "epoch": epoch}
                    losses = {"loss_train": test, "loss_val": test, "loss_test": test}
                    accuracy = {"acc_val": 0.9, "acc_test": 0.9 if method == "erm" else 0.8}
                    knob = {"knob": math.nan if method == "erm" else 0.01, "label_noise": 0.0}
                    if epoch in epochs:
                        lines.append({**facts, **losses, **accuracy, **knob, **of_all})
    return pd.DataFrame(lines)


def test_the_best_of_each_data_set_is_bold():
    html = comparison.shown(comparison.side_by_side(made_rows()))._repr_html_()
    rows = [re.findall("<td>(.*?)</td>", row) for row in html.split("<tr>")[1:]]
    erm, softad, *others = [row for row in rows if row]
    assert erm == ["0.800", "<b>0.400</b>", "<b>90.0</b>", "<b>90.0</b>", "2", "–", "–"]
    assert softad == ["<b>0.500</b>", "0.500", "80.0", "80.0", "2", "0.01", "0.01"]
    assert others == [erm, softad]
    assert html.count("mine") == html.count("yours") == 1


def test_the_picture_has_a_line_to_the_last_epoch_and_a_mark_where_to_stop():
    for epochs in ((1, 2), (2,)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            figure = comparison.picture(made_rows(epochs))
        panel = figure.axes[0]
        lines = [tuple(map(list, line.get_data())) for line in panel.get_lines()]
        marks = [line for line in lines if len(line[0]) == 1]
        if epochs == (1, 2):
            assert ([1], [0.4]) in marks
            assert ([2], [0.5]) in marks
            assert ([1, 2], [0.4, 0.8]) in lines
            (legend,) = figure.legends
            assert [h.get_marker() for h in legend.legend_handles] == ["o", plots.MARKS["softad"]]
        low, high = panel.get_ylim()
        assert low < 0.5 < 0.8 < high
        plt.close(figure)


def test_of_each_data_set_the_fewest_flipped_labels_are_compared():
    clean, noisy = made_rows(), made_rows(label_noise=0.2)
    noisy = noisy[noisy["dataset"] == "mine"]
    kept = comparison.lowest_noise(pd.concat([clean, noisy]))
    assert len(kept) == len(clean)
    assert (kept["label_noise"] == 0).all()
