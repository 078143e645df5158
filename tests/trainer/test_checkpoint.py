"""A training that was stopped goes on to the same bits; a file that is damaged or another's is ignored."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.engines import ENGINES, SEEDS, TRIALS, identical, make_engines, weights
from helpers.protocols import tiny

from softadlib import functional as F
from softadlib.methods import METHODS, Method
from softadlib.trainer import loop
from softadlib.trainer.checkpoint import Checkpoint
from softadlib.trainer.recipe import Recipe
from softadlib.workbook.studies.train_runs import train_runs

EPOCHS = 10
RECIPES = {
    "adam": Recipe("adam", 1e-2, 10, EPOCHS, weight_decay=1e-3),
    "adamw": Recipe("adamw", 1e-2, 10, EPOCHS, weight_decay=0.1, lr_schedule="cosine"),
    "momentum": Recipe("sgd", 0.05, 10, EPOCHS, momentum=0.9),
    "sgd": Recipe("sgd", 0.05, 10, EPOCHS),
}


class Accident(BaseException):
    pass


class LastWords(Checkpoint):
    """Saves its first state as any does, then everything ends."""

    def save(self, state):
        super().save(state)
        raise Accident


@pytest.mark.parametrize(
    ("method", "recipe"),
    [("softad", "adam"), ("sam", "momentum"), ("iflood", "sgd"), ("decay", "adamw")],
)
@pytest.mark.parametrize("kind", ENGINES)
def test_a_stopped_engine_ends_where_the_uninterrupted_one_does(kind, method, recipe, tmp_path):
    """Bit for bit: weights, curves, losses of single samples, the best epoch."""
    file, facts, saved = tmp_path / "state.pt", {"by": "test"}, 7
    trials = TRIALS if kind == "autograd" else (1,)
    engines = [make_engines(kind, method, trials, dtype=torch.float32)[0] for _ in range(3)]
    whole, first, second = engines
    how = {"eval_epochs": {0, 2, 5, 10}, "loss_epochs": {2, 10}, "best_epoch": True}
    expected = loop.train(whole, RECIPES[recipe], SEEDS, **how)
    with pytest.raises(Accident):
        loop.train(first, RECIPES[recipe], SEEDS, **how, checkpoint=LastWords(file, facts, saved))
    assert Checkpoint(file, facts, saved).load()["epoch"] == saved
    resumed = Checkpoint(file, facts, saved)
    got = loop.train(second, RECIPES[recipe], SEEDS, **how, checkpoint=resumed)
    for found, table in zip([got.best, *got.rows], [expected.best, *expected.rows], strict=True):
        assert set(found) == set(table)
        for name in table:
            np.testing.assert_array_equal(found[name], table[name])
    for run in range(len(trials)):
        assert identical(weights(second, run), weights(whole, run))


# Files of whole studies


def protocol(**changes):
    values = {"epochs": 10, "checkpoint_every": 3, "grids": {"stopping": [0.1, 0.3]}}
    return tiny(**{"model": "mlp1x1000", "dtype": "float32", **values, **changes})


@pytest.fixture
def steps(monkeypatch):
    """SoftAD under another name, which stops at a given step: {"count": so far, "stop": where}."""
    steps = {"count": 0, "stop": math.inf}

    def stopping(losses, theta):
        steps["count"] += 1
        if steps["count"] > steps["stop"]:
            raise Accident
        return F.softad(losses, theta)

    method = Method("stopping", "Stopping", "xkcd:red", "theta", "θ (nats)", stopping)
    monkeypatch.setitem(METHODS, "stopping", method)
    return steps


def train(made, folder, runs=None):
    runs = runs or made.runs("stopping")[:1]
    epochs = {0, 5, made.epochs}
    return train_runs(made, runs, epochs, loss_epochs={made.epochs}, checkpoints=folder)


def stop(made, folder, steps, at):
    steps.update(count=0, stop=at)
    with pytest.raises(Accident):
        train(made, folder)
    steps.update(count=0, stop=math.inf)
    return sorted(folder.glob("*"))


def assert_same(found, expected):
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


@pytest.mark.parametrize("best_epoch", [False, True])
def test_a_stopped_run_loses_less_than_checkpoint_every_epochs(steps, tmp_path, best_epoch):
    made = protocol(best_epoch=best_epoch)
    whole = train(made, None)
    assert steps["count"] == 2 * 10, "20 samples in batches of 10, 10 epochs"
    (file,) = stop(made, tmp_path, steps, at=17)  # in epoch 9; saved at 3 and 6
    assert_same(train(made, tmp_path), whole)
    assert steps["count"] == 2 * 4, "epochs 7 to 10"
    assert not file.exists()
    assert stop(made.replace(checkpoint_every=0), tmp_path, steps, at=17) == []
    assert stop(made.replace(checkpoint_every="auto"), tmp_path, steps, at=17) == [], "seconds only"


@pytest.mark.parametrize("damage", ["cut", "flipped", "other state"])
def test_a_damaged_file_is_ignored(steps, tmp_path, damage):
    made = protocol()
    whole = train(made, None)
    (file,) = stop(made, tmp_path, steps, at=17)
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[:1000])
    elif damage == "flipped":
        content[len(content) // 2] ^= 255
        file.write_bytes(content)
    else:
        torch.save({"decisive": {"fingerprint": "another"}, "state": {"epoch": 9}}, file)
    assert_same(train(made, tmp_path), whole)
    assert steps["count"] == 2 * 10, "from the start"


def test_the_state_of_other_runs_or_epochs_is_not_used(steps, tmp_path):
    made = protocol()
    (file,) = stop(made, tmp_path, steps, at=17)
    for other, runs in (
        (made, made.runs("stopping")[1:2]),
        (made.replace(lr=0.2), made.runs("stopping")[:1]),
    ):
        expected = train(other, None, runs)
        steps["count"] = 0
        assert_same(train(other, tmp_path, runs), expected)
        assert steps["count"] == 2 * 10
        assert file.exists()
    steps["count"] = 0
    train_runs(made, made.runs("stopping")[:1], {0, 1, 10}, checkpoints=tmp_path)
    assert steps["count"] == 2 * 10, "it lacks the row of epoch 1"


def test_a_file_that_cannot_be_written_stops_no_training(steps, tmp_path):
    made = protocol()
    (tmp_path / "file").write_text("")  # a folder cannot be made below it
    assert_same(train(made, tmp_path / "file" / "folder"), train(made, None))
