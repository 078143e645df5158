"""Other losses: data, loop, rows, selection, verdicts and the picture of the notebook."""

import math
from contextlib import nullcontext

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from softadlib import ERM, CalibrationWarning, IFlood, SoftAD
from softadlib.experiments import other_losses
from softadlib.experiments.other_losses import TASKS
from softadlib.losses.levels import cross_entropy_levels, hinge_levels


@pytest.mark.parametrize(
    ("load", "total"), [(other_losses.diabetes, 442), (other_losses.digits, 1797)]
)
def test_parts_are_whole_disjoint_and_of_the_seed(load, total):
    parts, again, other = load(3), load(3), load(4)
    assert sum(len(x) for x, _ in parts.values()) == total
    assert torch.cat([x for x, _ in parts.values()]).dtype == torch.float64
    assert torch.equal(parts["train"][0], again["train"][0])
    assert not torch.equal(parts["train"][0], other["train"][0])


def test_diabetes_is_standardised_by_its_training_part():
    parts = other_losses.diabetes(0)
    for values in parts["train"]:
        np.testing.assert_allclose(values.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(values.std(0, correction=0), 1, atol=1e-12)
    assert abs(parts["test"][1].mean()) > 1e-3
    everyone = torch.cat([x for x, _ in parts.values()])
    assert len(everyone.unique(dim=0)) == 442


def test_measures_by_hand():
    net = nn.Linear(1, 1).double()
    nn.init.constant_(net.weight, 2.0)
    nn.init.constant_(net.bias, 1.0)
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)  # predictions 1 and 3
    parts = {"train": (x, torch.tensor([[1.0], [3.0]])), "test": (x, torch.tensor([[0.0], [5.0]]))}
    row = other_losses.measure(net, TASKS["squared error"], parts)
    assert (row["loss_train"], row["loss_test"], row["gap"]) == (0, 2.5, 2.5)
    assert row["score_test"] == pytest.approx(math.sqrt(2.5))
    assert row["norm"] == pytest.approx(math.sqrt(5))
    row = other_losses.measure(net, TASKS["Huber"], parts)
    assert (row["score_test"], row["loss_test"]) == (1.5, pytest.approx((0.5 + 1.5) / 2))


def weights(criterion, task="label smoothing", epochs=20):
    part = TASKS[task].data(0)["train"]
    net = other_losses.network(part[0].shape[1], TASKS[task].outputs, 0)
    start = [p.detach().clone() for p in net.parameters()]
    return start, list(other_losses.train(net, criterion, part, epochs, 0.01).parameters())


def test_below_the_floor_iflood_is_erm_and_above_it_is_not():
    base, floor = TASKS["label smoothing"].base, cross_entropy_levels(10, 0.1).minimum
    start, erm = weights(ERM(base=base))
    assert all(not torch.equal(a, b) for a, b in zip(start, erm))
    for theta, same in ((0.9 * floor, True), (1.2, False)):
        with pytest.warns(CalibrationWarning) if theta > math.log(2) else nullcontext():
            criterion = IFlood(theta, base=base)
        assert all(torch.equal(a, b) for a, b in zip(erm, weights(criterion)[1])) == same
    soft = weights(SoftAD(0.9 * floor, base=base))[1]
    assert not torch.equal(erm[0], soft[0]), "SoftAD's steps are shorter all the same"


def test_a_sweep_is_paired_and_reproducible():
    grid = {"squared error": [0.1, 0.5], "hinge": [0.05]}
    rows = other_losses.sweep(grid, trials=2, epochs=3, lr=0.01)
    assert len(rows) == 2 * (1 + 3 * 2) + 2 * (1 + 3)
    assert rows[rows["method"] == "erm"]["theta"].isna().all()
    numbers = rows.drop(columns=["loss", "method"]).drop(columns="theta")
    assert np.isfinite(numbers.to_numpy()).all()
    pd.testing.assert_frame_equal(rows, other_losses.sweep(grid, trials=2, epochs=3, lr=0.01))
    start = other_losses.sweep({"hinge": [0.05]}, trials=2, epochs=0, lr=0.01)
    assert (start.groupby("trial")["norm"].nunique() == 1).all(), "one start for all methods"


def made(loss, **methods):
    """Rows of one trial; method=(theta, score_val, score_test, gap, norm) or a list of such."""
    rows = []
    for method, runs in methods.items():
        for theta, val, test, gap, norm in runs:
            rows.append({"loss": loss, "method": method, "trial": 0, "theta": theta, "score_val": val,
                         "score_test": test, "gap": gap, "norm": norm})  # fmt: skip
    return pd.DataFrame(rows)


def test_selection_knows_which_way_is_better_and_takes_the_smallest_of_equals():
    runs = [(0.3, 0.8, 0, 0, 0), (0.1, 0.9, 0, 0, 0), (0.2, 0.9, 0, 0, 0), (0.4, 0.8, 0, 0, 0)]
    rows = pd.concat([made("hinge", softad=runs), made("squared error", softad=runs)])
    chosen = other_losses.selected(rows.reset_index(drop=True)).set_index("loss")["theta"]
    assert chosen.to_dict() == {"hinge": 0.1, "squared error": 0.3}


def test_claims_follow_the_rows():
    runs = {
        "erm": [(math.nan, 1, 0.9, 0.5, 9)],
        "flooding": [(0.1, 1, 0.7, 0.1, 4)],
        "iflood": [(0.1, 1, 0.6, 0.2, 5)],
        "softad": [(0.1, 1, 0.8, 0.3, 10)],
    }
    rows = pd.concat([made("hinge", **runs), made("Huber", **runs)], ignore_index=True)
    table = other_losses.claims(rows)
    assert table["hinge"].tolist() == ["0/1", "0/1", "1/1", "1/1", "0/1", "0/1"]
    assert table["Huber"].tolist() == ["1/1", "1/1", "0/1", "1/1", "0/1", "0/1"]


def test_training_accuracy_by_the_place_of_theta():
    columns = ["loss", "method", "theta", "score_train"]
    rows = [
        ("hinge", "softad", 0.1, 0.5),
        ("hinge", "iflood", 0.8, 0.7),
        ("hinge", "softad", 0.9, 0.0),
    ]
    rows += [
        ("hinge", "softad", 0.05, 1.0),
        ("hinge", "flooding", 0.05, 0.0),
        ("hinge", "erm", math.nan, 0),
    ]
    table = other_losses.by_level(pd.DataFrame(rows, columns=columns), {"hinge": hinge_levels(10)})
    assert table["runs"].tolist() == [1, 2, 1], "right below .1, equal scores at .9"
    assert table["mean"].tolist() == [1.0, pytest.approx(0.6), 0.0]
    assert (table["least"].iloc[1], table["greatest"].iloc[1]) == (0.5, 0.7)


def test_the_picture_shows_the_means():
    rows = other_losses.sweep({"hinge": [0.05, 0.3]}, trials=2, epochs=2, lr=0.01)
    fig = other_losses.loss_panels(rows, {"hinge": "accuracy"}, {"hinge": {"1/K": 0.1}})
    means = rows.groupby(["method", "theta"])[["score_test", "gap", "norm"]].mean()
    for ax, column in zip(fig.axes, means):
        drawn = [line.get_ydata() for line in ax.get_lines()]
        for method in other_losses.CRITERIA:
            expected = means.loc[method, column].to_numpy()
            assert any(len(d) == 2 and np.allclose(d, expected) for d in drawn), (method, column)
        level = rows[rows["method"] == "erm"][column].mean()
        assert any(np.allclose(d, level) for d in drawn)
        assert any(np.allclose(line.get_xdata(), 0.1) for line in ax.get_lines())
    plt.close(fig)
