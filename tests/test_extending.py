"""What CONTRIBUTING says under "Where to add": toys registered here train like what is built in."""

import math

import numpy as np
import pytest
import torch
from helpers.workspace import TINY
from torch import nn

from softadlib.data.images import IMAGES, Images, ImageSet
from softadlib.methods import METHODS, Method, Setting
from softadlib.models import MODELS
from softadlib.training import study
from softadlib.training.engines import factory
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.protocol import Protocol


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    (tmp_path / "params").mkdir()
    methods = dict(METHODS)
    yield
    METHODS.clear()  # putting back what a test took away would change the order
    METHODS.update(methods)


def train(method="erm", **changes):
    values = {
        "profile": "toy",
        "dataset": "gaussian",
        "device": "cpu",
        **TINY,
        "grids": {},
        **changes,
    }
    protocol = Protocol.from_dict(values)
    rows = study.run(protocol, method)
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
    first = train("powered", grids=grids, settings={"powered": {"power": 1.0}})
    assert first[0.0] == pytest.approx(first[1.0], rel=1e-12), "the first power is the mean"
    assert squares[0.0] == pytest.approx(first[0.0], rel=1e-12)
    assert squares[1.0] != pytest.approx(first[1.0], rel=1e-6)
    fingerprint = Protocol(profile="toy", dataset="gaussian").fingerprint("softad")
    monkeypatch.delitem(METHODS, "powered")
    without = Protocol(profile="toy", dataset="gaussian").fingerprint("softad")
    assert fingerprint == without, "results of the others stay valid"


def test_a_registry_without_a_legacy_method():
    for name in ("adaflood", "softad", "gnp"):
        del METHODS[name]
    assert train()


def test_a_built_in_image_set(monkeypatch):
    """Row, file, test; the row carries the loader."""

    def load(root, download):
        y = np.arange(40) % 3
        x = np.full((40, 1, 4, 4), 10, dtype=np.uint8)
        x[:, 0, 0, :3] = 200 * np.eye(3, dtype=np.uint8)[y]
        return Images(x[:30], y[:30], x[30:], y[30:])

    monkeypatch.setitem(IMAGES, "pixels", ImageSet(load, (), 30, 10, (1, 4, 4), 3))
    (end,) = train(dataset="pixels", n_train=0, n_val=0, n_test=0, epochs=40).values()
    assert end < 0.5 * math.log(3)


def test_a_model(monkeypatch):
    """Function and line."""

    def silu(shape, classes):
        return nn.Sequential(nn.Linear(*shape, 8), nn.SiLU(), nn.Linear(8, classes))

    monkeypatch.setitem(MODELS, "silu", silu)
    (end,) = train(model="silu", epochs=40).values()
    assert end < math.log(2)


def test_an_engine(monkeypatch):
    """Class and place in the list; the tests' own list and the README are the other two."""
    made = []

    class CountingEngine(VmapEngine):
        @classmethod
        def supports(cls, network, device, bf16=False):
            return isinstance(network, nn.Linear)

        def begin(self, config):
            made.append(config.epochs)
            return super().begin(config)

    (expected,) = train(profile="before").values()
    monkeypatch.setattr(factory, "ENGINES", [CountingEngine, *factory.ENGINES])
    (end,) = train().values()
    assert made
    assert end == pytest.approx(expected, rel=1e-12)
