"""Weights watched along a run against autograd and a loop of one's own; ERM at a matched step."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.workspace import TINY, make_home

from softadlib import functional
from softadlib._validation import UserError
from softadlib.experiments.audit import controls
from softadlib.models import build
from softadlib.results import reader as store
from softadlib.training import inputs, study
from softadlib.training.engines.base import batches
from softadlib.training.profiles import load
from softadlib.training.protocol import Protocol, Run
from softadlib.training.trainer import train_runs
from softadlib.workbook.cli import main

SGD = Protocol.from_dict({"profile": "t", "dataset": "gaussian", **TINY})
ADAM = SGD.replace(optimizer="adam", lr=0.01, model="mlp4x500", epochs=3)


def end(protocol, run):
    return train_runs(protocol, [run], {protocol.epochs}).iloc[0]


def test_weights_along_equal_a_plain_loop():
    """θ = .6: some samples of the first epochs are below it, so there is something to ascend."""
    theta, run = 0.6, Run("softad", 0.0, 1, 0.6)
    rows = controls.weights_along(SGD, run)
    data = inputs.load_splits(SGD, 0.0)
    net = build("linear", (2,), 2, SGD.seeds[1]).double()
    optimizer = torch.optim.SGD(net.parameters(), SGD.lr)
    for epoch in range(1, SGD.epochs + 1):
        weights = []
        for positions in batches(SGD.seeds, epoch, SGD.n_train, SGD.batch_size):
            index = data.train[1][positions[1]]
            losses = torch.nn.functional.cross_entropy(
                net(data.x[index].double()), data.y[index], reduction="none"
            )
            losses.retain_grad()
            optimizer.zero_grad()
            (functional.softad(losses, theta) * len(losses)).backward()
            weights.append(losses.grad.clone())
            for p in net.parameters():
                p.grad /= len(losses)
            optimizer.step()
        w = torch.cat(weights).numpy()
        line = rows[rows["epoch"] == epoch].iloc[0]
        assert line["weight"] == pytest.approx(np.abs(w).mean())
        assert line["ascent"] == pytest.approx((w < 0).mean())
        assert 0 < line["ascent"] < 1
        assert line["ascent_weight"] == pytest.approx(np.abs(w[w < 0]).mean())


@pytest.mark.parametrize("protocol", [SGD, ADAM], ids=["sgd", "adam"])
def test_watching_changes_no_number_of_the_run(protocol):
    run = Run("softad", 0.0, 0, 0.3)
    last = controls.weights_along(protocol, run).iloc[-1]
    assert last["control"] == controls.REPLAY
    plain = end(protocol, run)
    assert all(last[name] == plain[name] for name in ("loss_test", "acc_val", "model_norm"))


def test_signs_and_nothing_to_ascend():
    assert (controls.weights_along(SGD, Run("iflood", 0.0, 0, 0.6))["weight"] == 1).all()
    erm = controls.weights_along(SGD, Run("erm", 0.0, 0, math.nan))
    assert (erm["weight"] == 1).all()
    assert (erm["ascent"] == 0).all()
    assert erm["ascent_weight"].isna().all()


def test_a_method_that_weighs_no_samples_is_refused():
    with pytest.raises(
        UserError, match=r"'sam' unknown; choose from erm, flooding, iflood, softad"
    ):
        controls.weights_along(SGD, Run("sam", 0.0, 0, 0.1))
    with pytest.raises(UserError, match="control 'x' unknown"):
        controls.train_matched_erm(SGD, Run("softad", 0.0, 0, 0.1), 0.5, "x")


def test_matched_by_lr_is_erm_with_that_lr():
    run = Run("softad", 0.0, 1, 0.3)
    row = controls.train_matched_erm(SGD, run, 0.25).iloc[0]
    plain = end(SGD.replace(lr=SGD.lr / 4), Run("erm", 0.0, 1, math.nan))
    assert row["loss_test"] == plain["loss_test"]
    assert (row["knob"], row["factor"], row["control"]) == (0.3, 0.25, "lr")


def test_a_factor_on_the_loss_is_one_on_lr_under_sgd_and_none_under_adam():
    """0.25 is a power of two: no rounding; Adam's ε of 1e-8 is all that is left."""
    run, erm = Run("softad", 0.0, 0, 0.3), Run("erm", 0.0, 0, math.nan)
    by_loss, by_lr = (controls.train_matched_erm(SGD, run, 0.25, c).iloc[0] for c in ("loss", "lr"))
    assert by_loss["model_norm"] == pytest.approx(by_lr["model_norm"], rel=1e-12)
    assert abs(by_loss["model_norm"] - end(SGD, erm)["model_norm"]) > 1e-3
    by_loss, by_lr = (
        controls.train_matched_erm(ADAM, run, 0.25, c).iloc[0] for c in ("loss", "lr")
    )
    plain = end(ADAM, erm)
    assert by_loss["loss_test"] == pytest.approx(plain["loss_test"], rel=0.01)
    assert by_lr["loss_test"] < 0.5 * plain["loss_test"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    changes = {"curves": "none", "device": "cpu", "grids": {"softad": [0.05, 0.3]}}
    folder = make_home(tmp_path, gaussian=changes)
    monkeypatch.setenv("SOFTAD_HOME", str(folder))
    return folder


def sweep(home, **overrides):
    protocol = load("tiny", "gaussian", overrides)
    for method in protocol.methods:
        study.run(protocol, method)
    return protocol


def test_the_command_trains_what_is_missing_and_goes_on(home, capsys):
    assert main(["audit", "tiny"]) == 2
    assert "softad train tiny" in capsys.readouterr().err
    sweep(home)
    todo = controls.plan("tiny")
    assert {r for _, r in todo} == set(controls.selected(store.read("tiny")))
    next(controls.train_controls(todo))  # … and is cut short
    assert len(controls.plan("tiny")) == len(todo) - 1
    before = controls.read("tiny")
    assert main(["audit", "tiny", "-j", "1"]) == 0
    done = f"softad: done: controls of {len(todo) - 1} selected runs trained"
    assert done in capsys.readouterr().err
    assert main(["audit", "tiny", "-j", "1"]) == 0
    assert "softad: done: nothing was left to train" in capsys.readouterr().err
    rows = controls.read("tiny")
    assert controls.plan("tiny") == []
    assert len(before.merge(rows, on=list(before.columns))) == len(before)
    ends = rows[rows["epoch"] == TINY["epochs"]].groupby("control").size()
    assert ends.to_dict() == dict.fromkeys(("lr", "loss", "watched"), len(todo))
    factors = rows[rows["control"] == "lr"].set_index(["trial", "knob"])["factor"]
    along = rows[rows["control"] == "watched"].groupby(["trial", "knob"])["weight"].mean()
    pd.testing.assert_series_equal(factors.sort_index(), along, check_names=False)


def test_a_sweep_of_another_protocol_has_its_controls_made_anew(home):
    sweep(home)
    list(controls.train_controls(controls.plan("tiny")))
    sweep(home, lr=0.05)
    assert controls.read("tiny").empty, "the others are not compared with this sweep"
    todo = controls.plan("tiny")
    assert todo
    assert controls.plan("tiny", ["gaussian", "gaussian"]) == todo
    list(controls.train_controls(todo))
    assert len(controls.read("tiny")["trial"].unique()) == TINY["trials"]
    assert controls.plan("tiny") == []


def test_a_broken_table_of_controls_is_one_line(home, capsys):
    sweep(home)
    controls.path_of("tiny", "gaussian").write_bytes(b"PAR1 and no more")
    assert main(["audit", "tiny"]) == 2
    words = "(cut short, or not a parquet file); delete it, and softad audit tiny makes it again"
    assert f"controls.parquet is broken {words}" in capsys.readouterr().err


def test_an_unknown_dataset_and_an_outdated_sweep_are_one_line(home, capsys, monkeypatch):
    sweep(home)
    assert main(["audit", "tiny", "--dataset", "svhn"]) == 2
    assert "dataset 'svhn' unknown; choose from gaussian" in capsys.readouterr().err
    monkeypatch.setattr("softadlib.results.fingerprint.NUMERICS_VERSION", -1)
    assert main(["audit", "tiny"]) == 2
    assert "made by other code" in capsys.readouterr().err
