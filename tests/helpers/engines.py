"""Small networks, data and engines for the tests of training."""

import math
from functools import partial

import numpy as np
import torch

from softadlib.data.splits import synthetic_splits
from softadlib.methods import METHODS
from softadlib.models import mlp
from softadlib.results.schema import MEASURES
from softadlib.training.engines.base import RunBatch, TrainConfig
from softadlib.training.engines.vmap import VmapEngine

SMALL = partial(mlp, width=16, depth=2)


SEEDS = (17716, 961412)


KNOBS = {
    "theta": (0.05, 0.2, 0.4, 0.65, 0.9, 0.1, 0.3, 1.2),
    "radius": (0.01, 0.05, 0.1, 0.2, 0.15, 0.3, 0.02, 0.0),
    "alpha": (0.05, 0.2, 0.4, 0.65, 0.9, 0.1, 0.0, 1.0),
    "strength": (0.01, 0.05, 0.1, 0.2, 0.15, 0.3, 0.02, 0.0),
    "beta": (0.05, 0.2, 0.4, 0.65, 0.9, 0.1, 0.3, 0.0),
    "t": (0.05, 0.2, 0.4, 1.0, 5.0, 0.1, 0.3, 0.0),
    "gamma": (0.05, 0.2, 0.4, 0.65, 0.9, 0.1, 0.3, 0.0),
    None: (math.nan,) * 8,
}


TRIALS = (0, 1, 1, 0, 0, 1, 0, 1)


SETTINGS = {"sigma": 1.0, "scale": "code", "bn_update": "both"}


ADAM = TrainConfig("adam", 1e-2, 10, 10)  # 44 samples: 5 steps an epoch, the last on 4 of them


SGD = TrainConfig("sgd", 0.05, 10, 10, momentum=0.9)  # steps that do not amplify rounding


def splits(dtype=torch.float64, n=44, name="gaussian"):
    return synthetic_splits(name, SEEDS, 0.1, (n, 30, 50)).to("cpu", dtype)


def samples(n=44):
    """Held-out losses (T, n), as if auxiliary models had been trained."""
    draw = np.random.default_rng(5).exponential(0.5, (len(SEEDS), n))
    return {"aux": torch.from_numpy(draw)}


def networks(trials, dtype=torch.float64, model=SMALL):
    made = []
    for trial in trials:
        torch.manual_seed(SEEDS[trial])
        made.append(model((2,), 2).to(dtype))
    return made


def stack(method, runs=range(8), dtype=torch.float64, knobs=None, **settings):
    trials = [TRIALS[i] for i in runs]
    knobs = knobs or [KNOBS[METHODS[method].knob][i] for i in runs]
    nets = networks(trials, dtype)
    own = {"settings": SETTINGS | settings, "samples": samples()}
    return VmapEngine(RunBatch(METHODS[method], nets, splits(dtype), trials, knobs, **own))


def state(made, run):
    """Parameters and buffers of one run."""
    both = {**made.params, **made.buffers}
    return {name: value[run] for name, value in both.items()}


def assert_near(a, b):
    assert set(a) == set(b)
    for name in a:
        close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10, msg=name)
        close(torch.from_numpy(np.asarray(a[name])), torch.from_numpy(np.asarray(b[name])))


def identical(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def row(measured, i):
    return {name: measured[name][i] for name in MEASURES}
