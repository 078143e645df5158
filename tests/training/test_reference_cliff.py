"""The cliff: with cross-entropy SoftAD learns for θ < ln 2 and un-learns above it."""

import pytest
from helpers.workspace import make_home

from softadlib.results import selection
from softadlib.training import study
from softadlib.training.profiles import load


@pytest.mark.slow
def test_softad_on_gaussian_falls_off_at_ln2(tmp_path, monkeypatch):
    """From 25 epochs to 200 the first four stay at 0.978-0.985, the last at 0.02-0.08."""
    paper = load("paper", "gaussian")
    thetas = [paper.grids["softad"][i] for i in (0, 4, 8, 11, 14)]
    assert thetas[-2:] == pytest.approx([0.5713, 0.7244], abs=5e-5)
    protocol = load("paper", "gaussian",
                    {"label_noise": [0.0], "trials": 1, "epochs": 100, "curves": "none", "device": "cpu",
                     "grids": {"softad": thetas}})  # fmt: skip
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path)))
    ends = selection.final(study.run(protocol, "softad")).set_index("knob")["acc_test"]
    print(ends.round(4).to_dict())
    assert ends[thetas[-1]] < 0.2
    assert (ends[thetas[:-1]] > 0.95).all()
