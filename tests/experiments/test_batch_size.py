"""Batch sizes: tables and sentences against numbers worked out by hand; training against a plain loop."""

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.workspace import make_home

from softadlib.analysis.tables import differences
from softadlib.experiments import batch_size, linear
from softadlib.functional import flooding


def test_the_last_accurate_theta_by_hand():
    accuracies = {0.1: 0.90, 0.2: 0.95, 0.3: 0.94, 0.4: 0.80, 0.5: 0.95}
    rows = pd.DataFrame(
        [
            {"batch_size": 10, "method": "softad", "theta": theta, "acc_test": acc + shift}
            for theta, acc in accuracies.items()
            for shift in (-0.01, 0.01)
        ]
    )
    table = batch_size.last_accurate_theta(rows, tolerance=0.02)
    assert table.loc[10, "softad"] == 0.3, "what comes back after a fall does not count"


def test_a_batch_size_of_the_linear_classifier_is_that_of_its_steps():
    """Full batches take one step an epoch: gradient descent written out with numpy's data."""
    sizes = (20, 2, 50)
    table = linear.linear_sensitivity(
        "flooding", [0.2], seed=3, sizes=sizes, epochs=3, lr=0.5, batch_size=20
    )
    whole = linear.linear_sensitivity("flooding", [0.2], seed=3, sizes=sizes, epochs=3, lr=0.5)
    pd.testing.assert_frame_equal(table, whole)
    splits, (network,), _ = linear._fresh("gaussian", [(0, 0, 0)], 3, sizes)
    x, y = splits.x[splits.train[0]], splits.y[splits.train[0]]
    for _ in range(3):
        losses = torch.nn.functional.cross_entropy(network(x), y, reduction="none")
        grads = torch.autograd.grad(flooding(losses, 0.2), list(network.parameters()))
        with torch.no_grad():
            for parameter, g in zip(network.parameters(), grads):
                parameter -= 0.5 * g
    test = splits.test[0]
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(network(splits.x[test]), splits.y[test]).item()
    assert table["loss_test"].item() == pytest.approx(loss, abs=1e-12)
    smaller = linear.linear_sensitivity(
        "flooding", [0.2], seed=3, sizes=sizes, epochs=3, lr=0.5, batch_size=5
    )
    assert smaller["loss_test"].item() != pytest.approx(loss, abs=1e-4)


def test_accuracy_across_ln2_by_hand():
    accuracies = {0.5: 0.99, 0.65: 0.9, 0.75: 0.1, 0.9: 0.5}
    rows = pd.DataFrame(
        [
            {"batch_size": 10, "method": "flooding", "theta": theta, "acc_test": acc + shift}
            for theta, acc in accuracies.items()
            for shift in (-0.02, 0.02)
        ]
    )
    (sentence,) = batch_size.across_ln2(rows)
    assert sentence == (
        "The linear classifier's mean accuracy with Flooding, at θ = 0.65 and at 0.75, across ln 2: "
        "90% and 10% with batches of 10."
    )


def test_sentences_turn_round_with_the_rows():
    limits = pd.DataFrame({"softad": [0.5, 0.6]}, index=[10, 100])
    for sign, count, sides in (
        (-1, "2 of 2", "smaller at 2 and larger at 0"),
        (1, "0 of 2", "smaller at 0 and larger at 2"),
    ):
        rows = pd.DataFrame(
            [
                {"batch_size": size, "method": method, "trial": trial, **{m: value for m in NAMES}}
                for size in (10, 100)
                for trial in (0, 1, 2)
                for method, value in (("erm", 1.0), ("softad", 1 + sign * (1 + trial / 100)))
            ]
        )
        compared = differences(rows, ["batch_size"], NAMES)
        lines = batch_size.readings(limits, compared, 0.02)
        assert lines[0].endswith("up to θ = 0.50 with batches of 10, 0.60 with batches of 100.")
        assert all(f"below ERM's at {count} batch sizes" in line for line in lines[1:])
        assert all(f"by the interval it is {sides} (n = 3 trials)" in line for line in lines[1:])


NAMES = ("gap", "loss_test", "model_norm")


def test_networks_are_trained_at_every_batch_size(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    make_home(tmp_path, gaussian={})
    rows = batch_size.train_by_batch_size("tiny", "gaussian", (5, 20), 0.1, trials=2, epochs=2)
    assert len(rows) == 2 * 3 * 2
    assert np.isfinite(rows["gap"]).all()
    wide = rows.pivot(index=["method", "trial"], columns="batch_size", values="loss_train")
    assert (wide[5] != wide[20]).all()
    assert not (tmp_path / "outputs").exists()
