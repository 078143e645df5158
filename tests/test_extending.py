"""What CONTRIBUTING says under "Where to add": toys registered here train like what is built in."""

import math

import numpy as np
import pytest
import torch
from helpers.protocols import tiny
from helpers.protocols import train as train_study
from torch import nn

from softadlib._validation import UserError
from softadlib.methods import METHODS, Method, Setting
from softadlib.models import MODELS, mlp
from softadlib.workbook.data.images import IMAGES, Images, ImageSet
from softadlib.workbook.data.synthetic import SYNTHETIC
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.protocol import Protocol, Run
from softadlib.workbook.studies.train_runs import network_of, train_runs

pytestmark = pytest.mark.usefixtures("home")


def make_protocol(**changes):
    return tiny(**{"grids": {}, **changes})


def train(method="erm", **changes):
    protocol = make_protocol(**changes)
    rows = train_study(protocol, method)
    assert np.isfinite(rows["loss_test"]).all()
    ends = rows[rows["epoch"] == protocol.epochs]
    return ends.groupby("knob", dropna=False)["loss_train"].mean().to_dict()


def hinged(losses, theta):
    """A toy: losses below θ do not count."""
    return torch.relu(losses - theta).mean()


def powered(losses, share, power=2.0):
    """A toy: between the mean loss and the mean of its powers."""
    return (1 - share) * losses.mean() + share * (losses**power).mean()


def test_a_method_with_an_existing_knob(monkeypatch):
    """Function, line, grid, test."""
    method = Method("hinged", "Hinged", "xkcd:red", "theta", "θ (nats)", hinged)
    monkeypatch.setitem(METHODS, "hinged", method)
    ends = train("hinged", grids={"hinged": [0.0, 5.0]})
    (erm,) = train().values()
    assert ends[0.0] == pytest.approx(erm, rel=1e-12), "θ = 0 is the mean loss"
    assert ends[5.0] > ends[0.0], "no loss is above 5: nothing is learned"


def test_a_method_with_a_knob_and_a_setting_of_its_own(monkeypatch):
    """The same four, and the setting in the method's line."""
    settings = {"power": Setting(2.0, "the power", above=0)}
    method = Method("powered", "Powered", "xkcd:red", "share", "share", powered, settings)
    monkeypatch.setitem(METHODS, "powered", method)
    grids = {"powered": [0.0, 1.0]}
    squares = train("powered", grids=grids)
    changed = {"profile": "first-power", "settings": {"powered": {"power": 1.0}}}
    first = train("powered", grids=grids, **changed)
    assert first[0.0] == pytest.approx(first[1.0], rel=1e-12), "the first power is the mean"
    assert squares[0.0] == pytest.approx(first[0.0], rel=1e-12)
    assert squares[1.0] != pytest.approx(first[1.0], rel=1e-6)
    fingerprint = Protocol(profile="toy", dataset="gaussian").fingerprint("softad")
    monkeypatch.delitem(METHODS, "powered")
    without = Protocol(profile="toy", dataset="gaussian").fingerprint("softad")
    assert fingerprint == without, "results of the others stay valid"


def test_a_registered_derivative_trains_the_same_and_gives_class_probabilities(monkeypatch):
    """f(ℓ) = ℓ^power with its derivative: the engine uses it, and p ∝ q/f′(−ln q) follows."""

    def value(losses, power):
        return (losses**power).mean()

    def derivative(losses, power):
        return power * losses ** (power - 1)

    plain = Method("power", "Power", hyperparameter="power", objective=value)
    known = Method("known", "Known", hyperparameter="power", objective=value, derivative=derivative)
    for method in (plain, known):
        monkeypatch.setitem(METHODS, method.name, method)
    ends = [train(name, grids={name: [1.0, 1.5]}) for name in ("power", "known")]
    assert ends[1] == pytest.approx(ends[0], rel=1e-12)
    assert plain.log_probabilities is None
    logits = torch.tensor([[0.75, 0.25]]).double().log()
    p = known.log_probabilities(logits, torch.tensor(2.0)).exp()[0]
    expected = [0.75 / -math.log(0.75), 0.25 / -math.log(0.25)]
    assert p.tolist() == pytest.approx([v / sum(expected) for v in expected])


def silu(shape, classes):
    """A toy: a perceptron that the engine of perceptrons does not know."""
    return nn.Sequential(nn.Linear(*shape, 8), nn.SiLU(), nn.Linear(8, classes))


def small(shape, classes):
    return mlp(shape, classes, width=8, depth=1)


def trained_by_hand(protocol, run, step):
    """The training loss of a run whose steps are `step(network, x, y, memory)`."""
    splits = load_splits(protocol, 0.0).to("cpu", torch.float64)
    network, memory = network_of(protocol, splits, run), {}
    x, y = splits.part("train", run.trial)
    for epoch in range(1, protocol.epochs + 1):
        order = np.random.default_rng([protocol.seeds[run.trial], epoch]).permutation(len(y))
        for batch in np.split(order, range(protocol.batch_size, len(y), protocol.batch_size)):
            step(network.train(), x[batch], y[batch], memory)
    return nn.functional.cross_entropy(network.eval()(x), y).item()


@pytest.mark.parametrize("model", [silu, small])
def test_a_method_with_losses_of_its_own(monkeypatch, model):
    """Squared errors of the probabilities in place of cross-entropy, on both engines."""

    def brier(logits, targets, knob):
        one_hot = nn.functional.one_hot(targets, logits.shape[-1])
        return knob * (logits.softmax(-1) - one_hot).square().sum(-1)

    monkeypatch.setitem(
        METHODS, "brier", Method("brier", "Brier", "xkcd:red", "scale", losses=brier)
    )
    monkeypatch.setitem(MODELS, "toy", model)
    protocol = make_protocol(grids={"brier": [0.5, 2.0]}, trials=1, model="toy")
    ends = train("brier", **protocol.to_dict())
    for run in protocol.runs("brier"):

        def step(network, x, y, memory, knob=run.knob):
            network.zero_grad()
            squares = (network(x).softmax(1) - torch.eye(2, dtype=x.dtype)[y]) ** 2
            (knob * squares.sum(1)).mean().backward()
            with torch.no_grad():
                for p in network.parameters():
                    p -= protocol.lr * p.grad

        assert ends[run.knob] == pytest.approx(trained_by_hand(protocol, run, step), rel=1e-10)


@pytest.mark.parametrize("model", [silu, small])
def test_losses_that_are_not_one_per_sample_are_refused(monkeypatch, model):
    method = Method("many", "Many", losses=lambda logits, targets, knob: logits.softmax(-1))
    monkeypatch.setitem(METHODS, "many", method)
    monkeypatch.setitem(MODELS, "toy", model)
    protocol = make_protocol(trials=1, model="toy")
    runs = [Run("many", 0.0, 0, float("nan"))]
    with pytest.raises(
        UserError, match=r"losses of 'many' must have shape \(n,\).* got \(\d+, 2\)"
    ):
        train_runs(protocol, runs, {1})


@pytest.mark.parametrize("model", [silu, small])
def test_a_method_that_uses_the_optimizers_momentum(monkeypatch, model):
    """The gradient at a point ahead along the moving average of gradients, on both engines."""

    def look_ahead(gradient, params, knob, momentum=None):
        if momentum is None:
            return gradient(params)
        return gradient({name: p - knob * momentum[name] for name, p in params.items()})

    method = Method("ahead", "Ahead", "xkcd:red", "step", rule=look_ahead, uses_momentum=True)
    monkeypatch.setitem(METHODS, "ahead", method)
    monkeypatch.setitem(MODELS, "toy", model)
    grids = {"ahead": [0.0, 0.1]}
    protocol = make_protocol(grids=grids, trials=1, model="toy", momentum=0.9)
    ends = train("ahead", **protocol.to_dict())
    assert ends[0.0] == pytest.approx(train(**protocol.to_dict()).popitem()[1], rel=1e-12)
    for run in protocol.runs("ahead"):

        def step(network, x, y, memory, knob=run.knob):
            params = list(network.parameters())
            start = [p.detach().clone() for p in params]
            average = memory.get("average")
            with torch.no_grad():
                for p, m in zip(params, average or ()):
                    p -= knob * m
            network.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            grads = [p.grad.clone() for p in params]
            pairs = zip(average, grads) if average else ()
            memory["average"] = [0.9 * m + g for m, g in pairs] or grads
            with torch.no_grad():
                for p, old, m in zip(params, start, memory["average"]):
                    p.copy_(old - protocol.lr * m)

        assert ends[run.knob] == pytest.approx(trained_by_hand(protocol, run, step), rel=1e-10)


def test_a_set_of_drawn_points_may_have_three_classes(monkeypatch):
    def thirds(n, label_noise, rng):
        y = np.arange(n) % 3
        return np.stack([3.0 * y, rng.normal(size=n)], 1), y

    monkeypatch.setitem(SYNTHETIC, "thirds", thirds)
    (end,) = train(dataset="thirds", epochs=40).values()
    assert end < 0.5 * math.log(3)


def test_a_built_in_image_set(monkeypatch):
    """Row, file, test; the row carries the loader."""

    def load(root, download):
        y = np.arange(40) % 3
        x = np.full((40, 1, 4, 4), 10, dtype=np.uint8)
        x[:, 0, 0, :3] = 200 * np.eye(3, dtype=np.uint8)[y]
        return Images(x[:30], y[:30], x[30:], y[30:])

    monkeypatch.setitem(IMAGES, "pixels", ImageSet(load, (), "40 of 4 × 4"))
    (end,) = train(dataset="pixels", n_train=0, n_val=0, n_test=0, epochs=40).values()
    assert end < 0.5 * math.log(3)
