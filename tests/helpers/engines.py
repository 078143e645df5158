"""Small networks, data and engines for the tests of training."""

import math
from functools import partial

import numpy as np
import torch

from softadlib.methods import METHODS
from softadlib.models import mlp
from softadlib.trainer.engines import RunGroup
from softadlib.trainer.engines.autograd import AutogradEngine
from softadlib.trainer.engines.single_perceptron import PerceptronEngine
from softadlib.trainer.recipe import Recipe
from softadlib.workbook.data.make_splits import synthetic_splits

SMALL = partial(mlp, width=16, depth=2)
SEEDS = (17716, 961412)
TRIALS = (0, 1, 1)
ENGINES = ("autograd", "perceptron")

# 44 samples: 5 steps an epoch, the last on 4 of them
ADAM = Recipe("adam", 1e-2, 10, 4)
SGD = Recipe("sgd", 0.05, 10, 4, momentum=0.9)


def knobs_of(method):
    """Three values of the hyperparameter."""
    values = {"theta": (0.1, 0.4, 0.8), "radius": (0.05, 0.5, 0.1), None: (math.nan,) * 3}
    return values.get(METHODS[method].hyperparameter, (0.05, 0.6, 0.3))


def splits(dtype=torch.float64, n=44, name="gaussian"):
    return synthetic_splits(name, SEEDS, 0.1, (n, 30, 50)).to("cpu", dtype)


def networks(trials, dtype=torch.float64, model=SMALL):
    made = []
    for trial in trials:
        torch.manual_seed(SEEDS[trial])
        made.append(model((2,), 2).to(dtype))
    return made


def make_group(
    method, trials=TRIALS, knobs=None, *, dtype=torch.float64, model=SMALL, data=None, **settings
):
    """Runs of one method on `trials`, at three values of its hyperparameter or at `knobs`."""
    data = data or splits(dtype)
    return RunGroup(
        METHODS[method],
        networks(trials, dtype, model),
        data,
        trials,
        (knobs or knobs_of(method))[: len(trials)],
        METHODS[method].defaults | settings,
    )


def make_engines(kind, method, trials=TRIALS, knobs=None, **given):
    """One engine of all runs ("autograd"), or one for each ("perceptron")."""
    if kind == "autograd":
        return [AutogradEngine(make_group(method, trials, knobs, **given))]
    runs = zip(trials, knobs or knobs_of(method))
    return [PerceptronEngine(make_group(method, [t], [k], **given)) for t, k in runs]


def weights(engine, run):
    """Parameters and buffers of one run."""
    params, buffers = engine.tensors_of(run)
    return params | buffers


def assert_near(a, b):
    """The same names, and values within 1e-10."""
    assert set(a) == set(b)
    for name in a:
        found, expected = (torch.from_numpy(np.asarray(v[name])) for v in (a, b))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=name)


def identical(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def row(measured, run):
    """The measures of one run, without its epoch."""
    return {name: values[run] for name, values in measured.items() if name != "epoch"}
