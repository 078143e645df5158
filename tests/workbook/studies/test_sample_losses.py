"""Losses of single samples and calibration of the selected runs, by a plain loop and the public functions."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.plain_loop import plain_loop
from helpers.protocols import store_of, train
from helpers.protocols import tiny as protocol
from scipy.special import log_softmax

from softadlib import expected_calibration_error, fit_temperature
from softadlib.models import build
from softadlib.trainer.evaluation import loss_summary
from softadlib.trainer.splits import PARTS
from softadlib.workbook.studies import results
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.parquet import by_split
from softadlib.workbook.studies.protocol import Run
from softadlib.workbook.studies.schema import SINGLE_LOSSES, run_keys

pytestmark = pytest.mark.usefixtures("home")


def logits_and_labels(made, run, epoch):
    """{part: (logits, labels)} of a plain loop over SoftAD that ends at this epoch."""
    data = load_splits(made, run.label_noise).to("cpu", torch.float64)
    seed = made.seeds[run.trial]
    network = build("linear", data.shape, 2, seed).double()
    parts = {part: data.part(part, run.trial) for part in PARTS}
    recipe = dataclasses.replace(made.recipe, epochs=epoch)
    plain_loop("softad", network, parts, seed, recipe, run.knob)
    with torch.no_grad():
        return {part: (network(x).numpy(), y.numpy()) for part, (x, y) in parts.items()}


def cross_entropies(logits, labels):
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]


def assert_calibrated(row, pair, val):
    """Temperatures of the validation part, and what they do to the part of `row`."""
    logits, labels = pair
    assert row["ece"] == pytest.approx(expected_calibration_error(*pair), abs=1e-12)
    for fit, prior in (("plain", 0.0), ("prior", 1.0)):
        temperature = fit_temperature(*val, prior=prior)
        assert row[f"{fit}_temperature"] == pytest.approx(temperature, rel=1e-6)
        scaled = logits / row[f"{fit}_temperature"]
        loss = cross_entropies(scaled, labels).mean()
        assert row[f"{fit}_loss"] == pytest.approx(loss, rel=1e-9)
        ece = expected_calibration_error(scaled, labels)
        assert row[f"{fit}_ece"] == pytest.approx(ece, abs=1e-12)


def test_stored_losses_are_those_of_a_plain_loop():
    made = protocol()
    chosen = results.select(train(made, "softad"))
    stored = by_split(store_of(made, "softad").rows())
    assert set(run_keys(stored)) == set(run_keys(chosen))
    for key in run_keys(chosen):
        run = Run("softad", *key)
        expected = {epoch: logits_and_labels(made, run, epoch) for epoch in (0, 2, 4)}
        of_run = stored[[k == key for k in run_keys(stored)]].set_index(["epoch", "split"])
        assert sorted(of_run.index) == sorted((e, p) for e in (0, 2, 4) for p in PARTS)
        for (epoch, part), row in of_run.iterrows():
            losses = cross_entropies(*expected[epoch][part])
            quantiles = np.quantile(losses, np.linspace(0, 1, 101))
            np.testing.assert_allclose(row["quantiles"], quantiles, rtol=1e-6)
            assert row["loss"] == pytest.approx(losses.mean(), rel=1e-10)
            assert row["samples"] == len(losses)
            if epoch == 4:
                assert_calibrated(row, expected[4][part], expected[4]["val"])
            else:
                assert np.isnan(row["ece"])


def test_calibration_at_the_best_epoch_is_that_of_a_plain_loop():
    made = protocol(best_epoch=True, lr=2.0, epochs=20, curves="none")
    rows = train(made, "softad")
    stored = by_split(store_of(made, "softad").rows())
    assert set(run_keys(stored)) == set(run_keys(rows)), "of every run"
    best = results.best(rows)
    assert (best["epoch"] < 20).any()
    for key, epoch in zip(run_keys(best), best["epoch"]):
        expected = logits_and_labels(made, Run("softad", *key), epoch)
        here = [k == key and e == epoch for k, e in zip(run_keys(stored), stored["epoch"])]
        for _, row in stored[here].iterrows():
            assert_calibrated(row, expected[row["split"]], expected["val"])


def closed_form(logits, theta):
    """ln p of SoftAD at σ = 1, by its definition."""
    q = np.exp(log_softmax(logits, axis=1))
    excess = -np.log(q) - theta
    p = q / (excess / np.sqrt(1 + excess**2))
    return np.log(p / p.sum(axis=1, keepdims=True))


def test_the_loss_of_class_probabilities_is_that_of_a_plain_loop():
    """At the last epoch and at the best one."""
    made = protocol(
        best_epoch=True,
        closed_form=True,
        lr=2.0,
        epochs=20,
        curves="none",
        trials=1,
        label_noise=[0.2],
        grids={"softad": [0.0, 0.01]},
    )
    rows = train(made, "softad")
    stored = by_split(store_of(made, "softad").rows())
    best = dict(zip(run_keys(results.best(rows)), results.best(rows)["epoch"]))
    for run in made.runs("softad"):
        pairs = {epoch: logits_and_labels(made, run, epoch) for epoch in range(1, 21)}
        log_p = {e: {k: closed_form(z, run.knob) for k, (z, _) in pairs[e].items()} for e in pairs}

        def loss(epoch, part, log_p=log_p, pairs=pairs):
            return cross_entropies(log_p[epoch][part], pairs[epoch][part][1]).mean()

        of_run = stored[[key == run.key for key in run_keys(stored)]]
        assert set(of_run["epoch"]) == {best[run.key], 20}
        for row in of_run.to_dict("records"):
            epoch, part = row["epoch"], row["split"]
            labels = pairs[epoch][part][1]
            assert row["linked_loss"] == pytest.approx(loss(epoch, part), rel=1e-9)
            ece = expected_calibration_error(log_p[epoch][part], labels)
            assert row["linked_ece"] == pytest.approx(ece, abs=1e-9)


def test_a_run_that_diverged_has_no_calibration_and_stops_nobody():
    logits = [torch.full((4, 2), torch.nan)] * 3
    columns = loss_summary(logits, [torch.tensor([0, 1, 0, 1])] * 3, calibrated=True)
    assert set(columns) <= set(SINGLE_LOSSES)
    assert all(np.isnan(v).all() for name, v in columns.items() if name != "samples")
