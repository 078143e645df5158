"""Gaussian ERM on the paper's protocol against the authors' stored results: 15 trials, 500 epochs.

In float64: float32 training is chaotic, and another CPU would give another mean, some per cent off.
"""

import pytest
from helpers.workspace import REPOSITORY, make_home

from softadlib.results import selection
from softadlib.training import study
from softadlib.training.profiles import load


@pytest.mark.slow
def test_gaussian_erm_is_the_authors(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path)))
    overrides = {"label_noise": [0.0], "curves": "none", "device": "cpu", "dtype": "float64"}
    protocol = load("paper", "gaussian", REPOSITORY / "params", overrides)
    assert (protocol.trials, protocol.epochs) == (15, 500)
    means = selection.final(study.run(protocol, "erm")).mean(numeric_only=True)
    print(means.round(5).to_dict())
    assert means["loss_test"] == pytest.approx(0.0876, rel=0.15)
    assert means["acc_test"] == pytest.approx(0.979, abs=0.01)
    assert means["model_norm"] == pytest.approx(52.96, rel=0.005)
