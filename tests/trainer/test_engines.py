"""Both engines take the steps of a plain loop; runs side by side, resumed or diverged disturb none."""

import dataclasses
import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from helpers.engines import (
    ADAM,
    ENGINES,
    SEEDS,
    SGD,
    SMALL,
    TRIALS,
    assert_near,
    identical,
    knobs_of,
    make_engines,
    make_group,
    networks,
    row,
    splits,
    weights,
)
from helpers.plain_loop import final_measures, plain_loop
from torch import nn

from softadlib.methods import METHODS
from softadlib.models import linear
from softadlib.trainer.engines import RunGroup
from softadlib.trainer.engines.autograd import AutogradEngine
from softadlib.trainer.evaluation import MEASURES
from softadlib.trainer.evaluator import Evaluator
from softadlib.trainer.loop import BestEpoch, train
from softadlib.trainer.recipe import Recipe, batches
from softadlib.trainer.splits import PARTS, Splits


def parts_of(data, trial):
    return {part: data.part(part, trial) for part in PARTS}


@dataclass(frozen=True)
class Case:
    """Runs of one method on `TRIALS`, one for each value of its hyperparameter."""

    method: str
    recipe: Recipe = SGD
    values: tuple[float, ...] = ()
    settings: dict = field(default_factory=dict)
    model: Callable = SMALL
    dataset: str = "gaussian"

    @property
    def runs(self):
        return list(zip(TRIALS, self.values or knobs_of(self.method)))


@dataclass(frozen=True)
class Ends:
    """What becomes of a run."""

    weights: dict
    first: dict
    last: dict
    best_epoch: int
    best: dict


def by_engine(kind, case):
    """The ends of every run of a case."""
    trials, values = zip(*case.runs)
    data = splits(name=case.dataset)
    ends = []
    for engine in make_engines(
        kind, case.method, trials, values, model=case.model, data=data, **case.settings
    ):
        measured = train(engine, case.recipe, SEEDS, {0, case.recipe.epochs}, best_epoch=True)
        first, last = measured.rows
        best = {name: measured.best[name] for name in MEASURES}
        for run in range(len(engine)):
            tables = [row(table, run) for table in (first, last, best)]
            ends.append(
                Ends(
                    weights(engine, run),
                    first=tables[0],
                    last=tables[1],
                    best_epoch=measured.best["epoch"][run],
                    best=tables[2],
                )
            )
    return ends


def by_plain_loop(case):
    """The same, by a loop over each run alone."""
    data = splits(name=case.dataset)
    ends = []
    for trial, value in case.runs:
        (network,) = networks([trial], model=case.model)
        history = plain_loop(
            case.method,
            network,
            parts_of(data, trial),
            SEEDS[trial],
            case.recipe,
            value,
            **case.settings,
        )
        best = min(range(1, len(history)), key=lambda epoch: history[epoch]["loss_val"])
        ends.append(Ends(network.state_dict(), history[0], history[-1], best, history[best]))
    return ends


def affine(shape, classes):
    return nn.Sequential(linear(shape, classes))


CASES = {}
for method in METHODS:
    CASES[f"{method}, adam"] = Case(method, ADAM)
    CASES[f"{method}, sgd"] = Case(method, SGD)
for method in ("softad", "sam", "cvar"):
    CASES[f"{method}, linear"] = Case(method, values=(0.3, 0.1), model=affine, dataset="sinusoid")
for method in ("softad", "decay"):
    cosine = {"epochs": 6, "lr_schedule": "cosine"}
    CASES[f"{method}, adam, cosine"] = Case(method, dataclasses.replace(ADAM, **cosine))
    CASES[f"{method}, sgd, cosine"] = Case(method, Recipe("sgd", 0.1, 10, **cosine))
for name, recipe in {
    "adamw, decay": Recipe("adamw", 1e-2, 10, 4, weight_decay=0.5),
    "adam, decay": Recipe("adam", 1e-2, 10, 4, weight_decay=0.05),
    "sgd, decay": Recipe("sgd", 0.05, 10, 4, momentum=0.9, weight_decay=0.05),
}.items():
    CASES[f"softad, {name}"] = Case("softad", recipe)
for method, settings in (
    ("softad", {"sigma": 0.3}),
    ("softad", {"sigma": 4.0, "scale": "text"}),
    ("sam", {"bn_update": "first"}),
    ("asam", {"bn_update": "first"}),
    ("gnp", {"bn_update": "first"}),
    ("asam", {"variant": "davda54"}),
    ("asam", {"eta": 0.3}),
    ("gnp", {"mixing": "official", "radius": 0.3}),
    ("fdgr", {"scheme": "centered", "step_size": 0.2, "bn_update": "first"}),
):
    CASES[f"{method}, {settings}"] = Case(method, values=(0.05, 0.5), settings=settings)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_run_is_that_of_the_plain_loop(case, kind):
    """Its weights, its measures before and after, and those at its best epoch."""
    for found, expected in zip(by_engine(kind, case), by_plain_loop(case), strict=True):
        assert_near(found.weights, expected.weights)
        assert_near(found.first, expected.first)
        assert_near(found.last, expected.last)
        assert found.best_epoch == expected.best_epoch
        assert_near(found.best, expected.best)
        assert found.first["model_norm"] != found.last["model_norm"]


def test_a_setting_may_differ_from_run_to_run():
    """A tensor (R,) holds one value per run."""
    sigmas = torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64)
    (together,) = make_engines("autograd", "softad", sigma=sigmas)
    train(together, SGD, SEEDS, ())
    for run, sigma in enumerate(sigmas.tolist()):
        (alone,) = make_engines(
            "perceptron", "softad", TRIALS[run:][:1], knobs_of("softad")[run:], sigma=sigma
        )
        train(alone, SGD, SEEDS, ())
        assert_near(weights(together, run), weights(alone, 0))


# Runs side by side


@pytest.mark.parametrize("method", ["flooding", "chi2", "gnp", "msam"])
def test_a_network_that_starts_as_nan_disturbs_no_other(method):
    healthy, sick = (AutogradEngine(make_group(method, dtype=torch.float32)) for _ in range(2))
    sick.params["0.weight"][1] = math.nan
    assert_only_run_1_is_lost(healthy, sick)


def assert_only_run_1_is_lost(healthy, sick):
    (good,), (bad,) = (train(e, SGD, SEEDS, {SGD.epochs}).rows for e in (healthy, sick))
    for run in (0, 2):
        assert identical(weights(healthy, run), weights(sick, run))
        assert row(good, run) == row(bad, run)
    assert all(math.isfinite(value) for value in row(good, 1).values())
    for part in PARTS:
        assert not math.isfinite(bad[f"loss_{part}"][1])
        assert math.isnan(bad[f"acc_{part}"][1])
    assert not math.isfinite(bad["model_norm"][1])


def test_a_run_that_never_had_a_finite_validation_loss_has_no_best_epoch():
    engine = AutogradEngine(make_group("erm"))
    engine.params["0.weight"][1] = math.nan
    best = train(engine, SGD, SEEDS, {SGD.epochs}, best_epoch=True).best
    assert (best["epoch"] > 0).tolist() == [True, False, True]


# The loop


def test_batches_are_fresh_permutations_by_seed_and_epoch_alone():
    one, two = (np.hstack(list(batches(SEEDS, epoch, 44, 10))) for epoch in (1, 2))
    assert [b.shape for b in batches(SEEDS, 1, 44, 10)] == [(2, 10)] * 4 + [(2, 4)]
    for order in (*one, *two):
        assert sorted(order) == list(range(44))
    assert len({tuple(order) for order in (*one, *two)}) == 4
    assert np.array_equal(one[1], np.hstack(list(batches(SEEDS[1:], 1, 44, 7)))[0])


@pytest.mark.parametrize("kind", ENGINES)
def test_measuring_changes_nothing(kind):
    """Neither curves, nor losses of single samples, nor the best epoch, nor class probabilities."""
    every, last = (make_engines(kind, "softad", (1,))[0] for _ in range(2))
    epochs = range(SGD.epochs + 1)
    measured = train(every, SGD, SEEDS, epochs, loss_epochs={2, 4}, best_epoch=True).rows
    (end,) = train(last, SGD, SEEDS, {SGD.epochs}).rows
    assert [m["epoch"][0] for m in measured] == list(epochs)
    assert_near(row(measured[0], 0), final_measures(networks([1])[0], parts_of(splits(), 1)))
    assert row(end, 0).items() <= row(measured[-1], 0).items()
    assert identical(weights(every, 0), weights(last, 0))


class Failure(Exception):
    pass


@pytest.mark.parametrize("kind", ENGINES)
def test_a_measurement_that_fails_leaves_the_engine_as_it_was(kind, monkeypatch):
    (engine,) = make_engines(kind, "erm", (0,))
    best = BestEpoch(Evaluator(engine))
    best.weights["0.weight"] += 1
    before = engine.params["0.weight"].clone()

    def fail(run):
        assert torch.equal(engine.params["0.weight"], before + 1)
        assert not engine.template.training
        raise Failure

    monkeypatch.setattr(engine, "network", fail)
    with pytest.raises(Failure):
        best.measure(closed_form=False)
    assert torch.equal(engine.params["0.weight"], before)
    assert engine.template.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", ENGINES)
def test_a_dropped_engine_is_freed_without_the_garbage_collector(kind):
    """On a GPU nothing collects cycles before the memory is needed."""
    (made,) = make_engines(kind, "sam", (0,))
    train(made, ADAM, SEEDS, {0, 2}, best_epoch=True)
    memory = weakref.ref(made.tensors_of(0)[0]["0.weight"]._base)
    gc.collect()
    gc.disable()
    try:
        assert memory() is not None
        del made
        assert memory() is None
    finally:
        gc.enable()


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["softad", "sam", "decay", "smoothing"])
def test_steps_on_cuda_are_those_of_the_cpu(method):
    """Best epoch included; the recipe with a schedule runs without a captured step."""
    cosine = dataclasses.replace(ADAM, lr_schedule="cosine")
    for recipe in (ADAM, SGD, cosine):
        measured = []
        for device in ("cpu", "cuda"):
            data = splits().to(device, torch.float64)
            engine = AutogradEngine(make_group(method, data=data))
            result = train(engine, recipe, SEEDS, {0, recipe.epochs}, best_epoch=True)
            measured.append([result.best, *result.rows])
        for cpu, cuda in zip(*measured, strict=True):
            np.testing.assert_array_equal(cpu["epoch"], cuda["epoch"])
            for run in range(len(TRIALS)):
                assert_near(*({m: table[m][run] for m in MEASURES} for table in (cpu, cuda)))


def convolutions(device, trials, knobs, method="softad"):
    """An engine of small convolutional networks, a trial and a knob each."""
    networks = []
    for trial in trials:
        torch.manual_seed(trial)
        layers = [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)]
        networks.append(nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 2)).double())
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(40, 3, 5, 5, generator=draw, dtype=torch.float64)
    index = torch.stack([torch.arange(40), torch.arange(40).flip(0)])
    data = Splits(x, torch.arange(40) % 2, index[:, :20], index[:, 20:30], index[:, 30:], 2)
    data = data.to(device, torch.float64)
    return AutogradEngine(RunGroup(METHODS[method], networks, data, trials, knobs))


@pytest.mark.parametrize("method", ["softad", "sam", "msam", "decay"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_convolutional_runs_side_by_side_are_those_alone(device, method):
    """On a GPU each has a stream of its own, a branch of the captured step."""
    trials, knobs = [0, 1, 0], [0.05, 0.1, 0.3]
    how = {"eval_epochs": {0, SGD.epochs}, "best_epoch": True}
    together = train(convolutions(device, trials, knobs, method), SGD, SEEDS, **how)
    for run in range(3):
        engine = convolutions(device, trials[run : run + 1], knobs[run : run + 1], method)
        alone = train(engine, SGD, SEEDS, **how)
        tables = [together.best, *together.rows], [alone.best, *alone.rows]
        for mine, theirs in zip(*tables, strict=True):
            assert_near({m: mine[m][run] for m in MEASURES}, {m: theirs[m][0] for m in MEASURES})


@pytest.mark.gpu
def test_the_memory_order_of_convolutions_on_cuda_changes_no_number():
    """Weights lie as (out, H, W, in), and so do gradients and the optimizer's state."""
    ends = []
    for device in ("cpu", "cuda"):
        made = convolutions(device, [0], [0.1], "sam")
        ends.append(train(made, Recipe("adam", 1e-2, 8, 3), [1], {0, 3}).rows)
        weight = made.tensors_of(0)[0]["0.weight"]
        assert weight.is_contiguous(memory_format=torch.channels_last) == (device == "cuda")
    for cpu, cuda in zip(*ends, strict=True):
        assert_near(row(cpu, 0), row(cuda, 0))


@pytest.mark.parametrize("kind", ENGINES)
def test_of_epochs_with_equal_validation_loss_the_first_is_the_best(kind):
    """A learning rate of 0 leaves the loss as it is."""
    for engine in make_engines(kind, "erm", model=linear):
        best = train(engine, Recipe("sgd", 0.0, 10, 3), SEEDS, {3}, best_epoch=True).best
        assert (best["epoch"] == 1).all()
