"""The captured step, on a CPU: a stand-in records the operations of a step and replays them in place."""

import numpy as np
import pytest
from helpers.engines import ADAM, SEEDS, SGD, TRIALS, identical, make_group, weights
from helpers.graphs import patch_graphs

from softadlib.trainer.checkpoint import Checkpoint
from softadlib.trainer.engines.autograd import AutogradEngine
from softadlib.trainer.engines.captured import CapturedStep
from softadlib.trainer.loop import train
from softadlib.trainer.recipe import Recipe

RECIPES = {
    "adam": ADAM,
    "adamw": Recipe("adamw", 1e-2, 10, 4, weight_decay=0.1),
    "sgd": Recipe("sgd", 0.05, 10, 4),
    "momentum": SGD,
}
CASES = [(method, "adam") for method in ("flooding", "sam", "chi2", "smoothing")]
CASES += [(method, recipe) for method in ("softad", "decay") for recipe in RECIPES]


class CapturedEngine(AutogradEngine):
    """Captures its step on a CPU too."""

    def start(self, recipe):
        super().start(recipe)
        self.captured = CapturedStep(list(self.weights().values()), self.optimizer)


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    patch_graphs(monkeypatch)


def assert_same(found, expected):
    tables = [found.best, *found.rows], [expected.best, *expected.rows]
    for table, other in zip(*tables, strict=True):
        assert set(table) == set(other)
        for name in table:
            np.testing.assert_array_equal(table[name], other[name])


@pytest.mark.parametrize(("method", "recipe"), CASES)
def test_a_captured_step_is_the_step_bit_for_bit(method, recipe):
    """Batches of 10 and a last one of 4: two graphs, each replayed at every batch of its length."""
    plain, captured = AutogradEngine(make_group(method)), CapturedEngine(make_group(method))
    how = {"eval_epochs": {0, 1, 4}, "best_epoch": True}
    expected = train(plain, RECIPES[recipe], SEEDS, **how)
    assert_same(train(captured, RECIPES[recipe], SEEDS, **how), expected)
    for run in range(len(TRIALS)):
        assert identical(weights(captured, run), weights(plain, run))
    replays = {size: graph.replays for size, (_, graph) in captured.captured.graphs.items()}
    assert replays == {10: 4 * 4, 4: 4 * 1}


class Stop(Exception):
    pass


class Stopping(Checkpoint):
    def save(self, state):
        super().save(state)
        raise Stop


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_captured_training_resumes_to_the_same_bits(recipe, tmp_path):
    """The optimizer's state of the earlier part is there when the step is captured anew."""
    how = {"eval_epochs": {0, 1, 4}, "best_epoch": True}
    expected = train(CapturedEngine(make_group("softad")), RECIPES[recipe], SEEDS, **how)
    file = tmp_path / "state.pt"
    first = CapturedEngine(make_group("softad"))
    with pytest.raises(Stop):
        train(first, RECIPES[recipe], SEEDS, **how, checkpoint=Stopping(file, {}, 2))
    second = CapturedEngine(make_group("softad"))
    resumed = train(second, RECIPES[recipe], SEEDS, **how, checkpoint=Checkpoint(file, {}, 2))
    assert_same(resumed, expected)
