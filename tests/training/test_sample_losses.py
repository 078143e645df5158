"""Losses of single samples and calibration of the selected runs: values, and that none is lost."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.engines import networks, splits, stack
from helpers.workspace import TINY, make_home, tree
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from softadlib.training.engines.streams import StreamEngine
from softadlib.training.executors import train_task
from softadlib.training.study_plan import Study, loss_epochs

from softadlib._validation import UserError
from softadlib.methods import METHODS
from softadlib.models import build
from softadlib.results import folder as places
from softadlib.results import sample_losses, selection
from softadlib.results.schema import RUN_KEY, run_keys
from softadlib.training import study
from softadlib.training.engines.base import RunBatch
from softadlib.training.engines.mlp_cpu import MLPEngine
from softadlib.training.evaluation import loss_summary
from softadlib.training.inputs import load_splits
from softadlib.training.protocol import Protocol
from softadlib.workbook import cli

PARTS = ("train", "val", "test")


class Accident(BaseException):
    pass


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path)


def protocol(**changes):
    return Protocol.from_dict(
        {"profile": "tiny", "dataset": "gaussian", "device": "cpu", **TINY, **changes}
    )


def place(made, method="softad"):
    return Study(made, method).folder


def losses_of(made, method="softad"):
    return sample_losses.stored(place(made, method))


def plain_loop(made, run, epochs):
    """{epoch: {part: (logits, labels)}} by nn.Linear and torch's own SGD."""
    data = load_splits(made, run.label_noise).to("cpu", torch.float64)
    network = build("linear", data.shape, 2, made.seeds[run.trial]).double()
    optimizer = torch.optim.SGD(network.parameters(), made.lr)
    x, y = data.part("train", run.trial)
    measured = {}
    for epoch in range(made.epochs + 1):
        if epoch:
            order = np.random.default_rng([made.seeds[run.trial], epoch]).permutation(len(y))
            for batch in np.split(order, len(y) // made.batch_size):
                losses = torch.nn.functional.cross_entropy(
                    network(x[batch]), y[batch], reduction="none"
                )
                value = (torch.sqrt((losses - run.knob) ** 2 + 1) - 1).mean()
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
        if epoch in epochs:
            with torch.no_grad():
                pairs = {part: data.part(part, run.trial) for part in PARTS}
                measured[epoch] = {
                    part: (network(inputs).numpy(), labels.numpy())
                    for part, (inputs, labels) in pairs.items()
                }
    return measured


def cross_entropies(logits, labels):
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]


def calibration_error(logits, labels):
    """Bin by bin, as Guo et al. (2017) write it."""
    p = np.exp(log_softmax(logits, axis=1))
    confidence, hit = p.max(1), p.argmax(1) == labels
    total = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            total += inside.sum() * abs(hit[inside].mean() - confidence[inside].mean())
    return total / len(labels)


def temperature_objective(logits, labels, prior):
    """scale ↦ what its inverse, the temperature, minimises."""

    def objective(scale):
        return cross_entropies(scale * logits, labels).sum() + prior * (scale - 1 - np.log(scale))

    return objective


def test_stored_losses_are_those_of_a_plain_loop():
    made = protocol()
    rows = study.run(made, "softad")
    stored = losses_of(made)
    for run in Study(made, "softad").selected(rows):
        expected = plain_loop(made, run, {0, 2, 4})
        of_run = stored[[key == run.key for key in run_keys(stored)]].set_index(["epoch", "part"])
        assert sorted(of_run.index) == sorted((e, p) for e in (0, 2, 4) for p in PARTS)
        for (epoch, part), row in of_run.iterrows():
            losses = cross_entropies(*expected[epoch][part])
            quantiles = np.quantile(losses, np.linspace(0, 1, 101))
            np.testing.assert_allclose(row["quantiles"], quantiles, rtol=1e-6)
            assert row["loss"] == pytest.approx(losses.mean(), rel=1e-10)
            assert row["samples"] == len(losses)
        val = expected[4]["val"]
        for fit, prior in (("plain", 0.0), ("prior", 1.0)):
            objective = temperature_objective(*val, prior)
            best = minimize_scalar(objective, bounds=(1e-3, 1e3), options={"xatol": 1e-10})
            for part in PARTS:
                row, (logits, labels) = of_run.loc[(4, part)], expected[4][part]
                scale = 1 / row[f"{fit}_temperature"]
                assert objective(scale) == pytest.approx(best.fun, rel=1e-8, abs=1e-4)
                loss = cross_entropies(scale * logits, labels).mean()
                assert row[f"{fit}_loss"] == pytest.approx(loss, rel=1e-9)
                ece = calibration_error(scale * logits, labels)
                assert row[f"{fit}_ece"] == pytest.approx(ece, abs=1e-12)
                assert row["ece"] == pytest.approx(calibration_error(logits, labels), abs=1e-12)


def test_only_selected_runs_have_losses_and_they_end_as_the_rows_do():
    made = protocol()
    for method in ("erm", "softad"):
        rows = study.run(made, method)
        stored = losses_of(made, method)
        assert set(run_keys(stored)) == set(run_keys(selection.select(rows)))
        assert sample_losses.end_differences(stored, rows).tolist() == [0, 0]
        ends = selection.final(rows).merge(stored, on=[*RUN_KEY, "epoch"])
        for part in PARTS:
            of_part = ends[ends["part"] == part]
            assert len(of_part) == 2
            np.testing.assert_allclose(of_part["loss"], of_part[f"loss_{part}"], rtol=1e-12)


def test_epochs_are_quarters_of_the_curve():
    assert loss_epochs(protocol(epochs=100, curve_every=10)) == {0, 20, 50, 80, 100}
    assert loss_epochs(protocol(epochs=500, curve_every=1)) == {0, 125, 250, 375, 500}
    assert loss_epochs(protocol(epochs=1, curve_every=1)) == {0, 1}


def test_without_curves_nothing_is_written_and_asked_for_it_is(home):
    made = protocol(curves="none")
    rows = study.run(made, "softad")
    assert not place(made).selected.exists()
    before = place(made).metrics.read_bytes()
    pd.testing.assert_frame_equal(study.run(made, "softad", losses=True), rows)
    assert len(losses_of(made)) == 2 * 3 * 3
    assert place(made).metrics.read_bytes() == before


def test_a_missing_file_is_no_unfinished_result_and_is_filled_in_when_asked(home, monkeypatch):
    made = protocol()
    study.run(made, "softad")
    whole, before = losses_of(made), tree(place(made).path)
    place(made).selected.unlink()
    assert Study(made, "softad").done()
    with monkeypatch.context() as patch:
        patch.setattr(train_task, "train_runs", lambda *args, **named: pytest.fail("trained"))
        study.run(made, "softad")
    assert not place(made).selected.exists()
    study.run(made, "softad", losses=True)
    pd.testing.assert_frame_equal(losses_of(made), whole, check_exact=True)
    after = tree(place(made).path)
    assert set(after) == set(before)
    assert all(after[name] == before[name] for name in after if name != "selected.parquet")
    with monkeypatch.context() as patch:
        patch.setattr(train_task, "train_runs", lambda *args, **named: pytest.fail("trained"))
        study.run(made, "softad", losses=True)
    assert tree(place(made).path) == after


ONCE = ("selected.parquet", "metrics.parquet", "provenance.json")


@pytest.mark.parametrize(
    ("name", "count"),
    [*((folder, n) for folder in ("losses", "parts") for n in (0, 1)), *((f, 0) for f in ONCE)],
)
def test_a_crash_before_any_write_loses_no_losses(monkeypatch, name, count):
    made, whole = protocol(stack=1), protocol(profile="whole")
    study.run(whole, "softad")
    write, left = places.write, [count]

    def cut(path, content):
        if name in (path.name, path.parent.name):
            if not left[0]:
                raise Accident
            left[0] -= 1
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(places, "write", cut)
        patch.setattr(sample_losses, "write", cut)
        with pytest.raises(Accident):
            study.run(made, "softad")
    study.run(made, "softad")
    pd.testing.assert_frame_equal(losses_of(made), losses_of(whole), check_exact=True)
    names = {p.name for p in place(made).path.iterdir()}
    assert names == {"metrics.parquet", "provenance.json", "selected.parquet"}


def test_a_run_that_resumes_from_its_checkpoint_has_all_its_losses():
    made = protocol(checkpoint_every=1, epochs=8, grids={"softad": [0.3]})
    whole = protocol(epochs=8, grids={"softad": [0.3]}, profile="whole")
    study.run(whole, "softad")
    epochs = []

    def stop(units):
        epochs.append(units)
        if len(epochs) == 7:
            raise Accident

    with pytest.raises(Accident):
        study.run(made, "softad", progress=stop)
    assert list(place(made).checkpoints.glob("*.pt"))
    study.run(made, "softad")
    pd.testing.assert_frame_equal(losses_of(made), losses_of(whole), check_exact=True)


def test_a_broken_file_is_one_line_to_a_reader_and_is_written_again_when_asked():
    made = protocol()
    study.run(made, "softad")
    whole = losses_of(made)
    pd.testing.assert_frame_equal(sample_losses.read("tiny"), whole, check_exact=True)
    place(made).selected.write_bytes(b"PAR1")
    with pytest.raises(
        UserError, match=r"selected\.parquet is broken .* softad train tiny --losses"
    ):
        sample_losses.read("tiny")
    study.run(made, "softad", losses=True)
    pd.testing.assert_frame_equal(sample_losses.read("tiny"), whole, check_exact=True)


def test_the_command_fills_in_and_tells_of_rows_that_end_elsewhere(home, capsys):
    command = ["train", "tiny", "--method", "softad", "-j", "1"]
    assert cli.main(command) == 0
    folder = place(protocol(device="auto"))
    rows, _ = Study(protocol(device="auto"), "softad").stored_rows()
    facts = dataclasses.replace(folder.read_provenance())
    folder.finish(rows.assign(loss_test=rows["loss_test"] + 0.25), facts)
    folder.selected.unlink()
    capsys.readouterr()
    assert cli.main([*command, "--losses"]) == 0
    err = capsys.readouterr().err
    assert "2 of 2 runs, trained again, end up to 0.25 nats of test loss from" in err
    assert folder.selected.exists()
    assert cli.main([*command, "--losses", "--shard", "1/2"]) == 2
    assert "--losses needs whole results" in capsys.readouterr().err


def test_a_run_that_diverged_has_no_calibration_and_stops_nobody():
    logits = [torch.full((4, 2), torch.nan)] * 3
    columns = loss_summary(logits, [torch.tensor([0, 1, 0, 1])] * 3, calibrated=True)
    assert set(columns) <= set(sample_losses.COLUMNS)
    assert all(np.isnan(v).all() for name, v in columns.items() if name != "samples")


def test_engines_give_the_same_logits():
    several = stack("softad", range(4))
    trials = several.trials
    batch = RunBatch(METHODS["erm"], networks(trials), splits(), trials, [np.nan] * 4)
    streams = StreamEngine(batch)
    for run, trial in enumerate(trials):
        alone = MLPEngine(batch.single(run))
        network = networks([trial])[0].eval()
        for part in PARTS:
            expected = network(splits().part(part, trial)[0]).detach()
            for logits in (
                several.logits(run, part),
                streams.logits(run, part),
                alone.logits(0, part),
            ):
                torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-12)


def test_logits_are_evaluated_in_chunks(monkeypatch):
    from softadlib.training.engines import vmap

    engine = stack("erm", range(2))
    whole, seen = engine.logits(1, "test"), []
    monkeypatch.setattr(vmap, "CPU_CHUNK", 7)
    call = engine._call
    monkeypatch.setattr(engine, "_call", lambda state, x: seen.append(len(x)) or call(state, x))
    torch.testing.assert_close(engine.logits(1, "test"), whole)
    assert max(seen) == 7
    assert sum(seen) == len(whole) == 50
