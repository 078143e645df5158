"""Gaussian ERM on the paper's protocol against the authors' stored results: 15 trials, 500 epochs.

In float64: float32 training is chaotic, and another CPU would give another mean, some per cent off.

`reference_erm.csv` holds our 15 trials before the first epoch and after the last. Their means are
held against the authors', and training against them, trial by trial. They are written anew, in five
minutes, by `PYTHONPATH=tests python tests/workbook/studies/test_reference_erm.py`.
"""

import os
import tempfile
from pathlib import Path

import pandas as pd
import pytest
import torch
from helpers.protocols import train
from helpers.workspace import make_home

from softadlib.trainer.evaluator import Evaluator
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.params import load
from softadlib.workbook.studies.train_runs import make_engine

FILE = Path(__file__).with_name("reference_erm.csv")
MEASURES = ["loss_test", "acc_test", "model_norm"]
CHANGES = {"label_noise": [0.0], "curves": "all", "curve_every": 500, "device": "cpu",
           "dtype": "float64"}  # fmt: skip


def protocol(**changes):
    return load("paper", "gaussian", CHANGES | changes)


@pytest.fixture(scope="module")
def recorded():
    return pd.read_csv(FILE, index_col=["epoch", "trial"])


def test_the_means_are_the_authors(recorded):
    assert (protocol().trials, protocol().epochs) == (15, 500)
    assert recorded.index.tolist() == [(epoch, trial) for trial in range(15) for epoch in (0, 500)]
    means = recorded.loc[500].mean()
    assert means["loss_test"] == pytest.approx(0.0876, rel=0.15)
    assert means["acc_test"] == pytest.approx(0.979, abs=0.01)
    assert means["model_norm"] == pytest.approx(52.96, rel=0.005)


def test_every_trial_begins_with_its_own_data_and_weights(recorded):
    made = protocol()
    splits = load_splits(made, 0.0).to("cpu", torch.float64)
    for run in made.runs("erm"):
        measured = Evaluator(make_engine(made, [run], splits)).measure()
        start = [float(measured[name][0]) for name in MEASURES]
        assert start == pytest.approx(recorded.loc[0, run.trial].tolist(), rel=1e-9)


@pytest.mark.slow
def test_a_trial_ends_where_the_recorded_one_does(recorded, tmp_path, monkeypatch):
    """The recorded trials are of an engine of autograd, which ends within 1e-13 of this one."""
    one = protocol(trials=1)
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path)))
    rows = train(one, "erm").set_index(["epoch", "trial"])[MEASURES]
    assert len(rows) == 2
    for at, row in rows.iterrows():
        assert row.tolist() == pytest.approx(recorded.loc[at].tolist(), rel=1e-6), at


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        all_trials = protocol()
        os.environ["SOFTAD_HOME"] = str(make_home(Path(folder)))
        trained = train(all_trials, "erm")
    trained[["trial", "epoch", *MEASURES]].to_csv(FILE, index=False)
