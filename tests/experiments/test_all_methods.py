"""All methods side by side: every one is trained, counted and drawn, and verdicts follow the numbers."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from helpers.workspace import TINY, make_home
from matplotlib.collections import LineCollection, PathCollection

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


def test_every_method_is_trained_in_memory_and_compared(home):
    made = all_methods.protocols("tiny", ["gaussian", "sinusoid"], GRIDS, trials=2, device="cpu")
    assert [p.methods for p in made] == [tuple(METHODS)] * 2
    rows = pd.concat([all_methods.train_all(p) for p in made])
    assert len(rows) == 2 * 2 * (1 + 2 * (len(METHODS) - 1))
    assert np.isfinite(rows["loss_test"]).all()
    assert not (home / "outputs").exists()
    chosen = all_methods.chosen(rows)
    tables = {p.dataset: all_methods.compared(p, chosen) for p in made}
    for dataset, table in tables.items():
        assert list(table.index) == list(METHODS)
        own = chosen[(chosen["dataset"] == dataset) & (chosen["method"] == "sam")]
        assert table.loc["sam", "gap"] == pytest.approx((own.loss_test - own.loss_train).mean())
    figure = all_methods.method_panels(chosen, list(tables), all_methods.MEASURED)
    assert len(figure.axes) == 8
    for ax in figure.axes:
        dots = [drawn for drawn in ax.collections if isinstance(drawn, PathCollection)]
        means = [drawn for drawn in ax.collections if isinstance(drawn, LineCollection)]
        assert len(dots) == len(means) == len(METHODS)
        assert all(len(trials.get_offsets()) == 2 for trials in dots)
        for trials, mean in zip(dots, means):
            ((start, _),) = mean.get_segments()
            assert start[0] == pytest.approx(trials.get_offsets()[:, 0].mean())
    plt.close(figure)
    assert set(all_methods.verdicts(tables).columns) == {"gaussian", "sinusoid"}


def test_verdicts_follow_the_numbers():
    table = pd.DataFrame(
        {"gap": 0.3, "loss_test": 0.5, "acc_test": 0.9, "model_norm": 10.0, "gradients": 1},
        index=list(METHODS),
    )
    table.loc["softad", ["gap", "loss_test", "acc_test", "model_norm"]] = [0.1, 0.4, 0.89, 9.0]
    table.loc["erm", "gap"], table.loc["sam", "gradients"] = 0.4, 2
    assert (all_methods.verdicts({"a": table})["a"] == "yes").all()
    table.loc["cvar", "gap"] = 0.05
    table.loc["softad", ["loss_test", "acc_test", "model_norm"]] = [0.6, 0.88, 11]
    said = all_methods.verdicts({"a": table})["a"].tolist()
    assert said == ["yes", "no", "yes", "no", "no", "no", "yes", "yes"]


def test_costs_are_of_every_method_and_erms_is_one():
    costs = all_methods.epoch_costs(protocol(), epochs=1, rounds=1)
    assert list(costs.index) == list(METHODS)
    assert costs["erm"] == 1
    assert (costs > 0).all()
