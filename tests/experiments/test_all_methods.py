"""Every method is trained in memory, and its gradients and epochs are counted."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.workspace import TINY, make_home

from softadlib.experiments import all_methods
from softadlib.methods import METHODS
from softadlib.training.engines.base import TrainConfig
from softadlib.training.protocol import Protocol
from softadlib.training.trainer import Trainer

GRIDS = {m.name: [0.2, 0.5] for m in METHODS.values() if m.knob}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path, gaussian={}, sinusoid={"model": "mlp1x1000"})


def protocol(**changes):
    values = {"profile": "tiny", "dataset": "gaussian", "device": "cpu", **TINY, "grids": GRIDS}
    return Protocol.from_dict(values | changes)


@pytest.mark.parametrize("scheme", ["forward", "centered"])
@pytest.mark.parametrize("name", METHODS)
def test_gradients_per_step_are_those_the_trainer_takes(name, scheme):
    """Calls of the objective while an engine makes two steps, against what the registry says."""
    made = protocol(settings={"fdgr": {"scheme": scheme}})
    method, calls = made.method(name), []

    def counted(losses, *args, **kwargs):
        calls.append(len(losses))
        return method.objective(losses, *args, **kwargs)

    run = made.runs(name)[:1]
    samples = {key: torch.rand(2, 20) for key in method.samples}
    tried = Trainer(made, run, samples=samples)
    assert tried.method == method
    tried.method = dataclasses.replace(method, objective=counted)
    recipe = TrainConfig("sgd", 0.1, 10, 1)
    tried.engine(run).train(recipe, made.seeds, ())
    assert len(calls) == 2 * method.gradients
    assert method.gradients == {"sam": 2, "asam": 2, "gnp": 2}.get(
        name, 1 if name != "fdgr" else 2 + (scheme == "centered")
    )


def test_every_method_is_trained_in_memory(home):
    made = all_methods.protocols("tiny", ["gaussian", "sinusoid"], GRIDS, trials=2, device="cpu")
    assert [p.methods for p in made] == [tuple(METHODS)] * 2
    rows = pd.concat([all_methods.train_all(p) for p in made])
    assert len(rows) == 2 * 2 * (1 + 2 * (len(METHODS) - 1))
    assert np.isfinite(rows["loss_test"]).all()
    assert not (home / "outputs").exists()


def test_costs_are_of_every_method_and_erms_is_one():
    costs = all_methods.epoch_costs(protocol(), epochs=1, rounds=1)
    assert list(costs.index) == list(METHODS)
    assert costs["erm"] == 1
    assert (costs > 0).all()
