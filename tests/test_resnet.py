"""ResNets side by side: equal to a plain loop, with a last batch of five, on uint8 images."""

import numpy as np
import pytest
import torch
from helpers.plain_loop import plain_loop

from softadlib.methods import METHODS
from softadlib.models import build
from softadlib.trainer.engines import RunGroup
from softadlib.trainer.engines.autograd import AutogradEngine
from softadlib.trainer.loop import train
from softadlib.trainer.recipe import Recipe
from softadlib.trainer.splits import PARTS
from softadlib.workbook.data.images import Images
from softadlib.workbook.data.make_splits import image_splits

RNG = np.random.default_rng(5)


def colours(n, size=16):
    """Images of two classes, reddish and bluish, as uint8 (n, 3, H, W)."""
    y = np.arange(n) % 2
    x = RNG.integers(0, 200, (n, 3, size, size))
    x[np.arange(n), 2 * y] += 55
    x.reshape(n, -1)[:, 0], x.reshape(n, -1)[:, 1] = 0, 255
    return x.astype(np.uint8), y


@pytest.fixture(scope="module")
def splits():
    return image_splits(Images(*colours(40), *colours(20)), (1, 2), (25, 8, 12)).to(
        "cpu", torch.float64
    )


def networks(count):
    return [build("resnet18", (3, 16, 16), 2, seed).double() for seed in (1, 2)[:count]]


@pytest.mark.parametrize("method", ["softad", "sam"])
def test_resnets_side_by_side_are_the_plain_loop(splits, method):
    """A step of 20 images and one of 5: the last batch is trained on, not dropped."""
    knob, seeds, recipe = [0.3, 0.1], (11, 12), Recipe("sgd", 0.05, 20, 1, momentum=0.9)
    settings = METHODS[method].defaults
    engine = AutogradEngine(RunGroup(METHODS[method], networks(2), splits, [0, 1], knob, settings))
    (measured,) = train(engine, recipe, seeds, {1}).rows
    for run, net in enumerate(networks(2)):
        raw = {part: splits.part(part, run) for part in PARTS}
        data = {part: (x.double() / 255, y) for part, (x, y) in raw.items()}
        expected = plain_loop(method, net, data, seeds[run], recipe, knob[run])[-1]
        for name, value in (engine.params | engine.buffers).items():
            end = net.state_dict()[name]
            torch.testing.assert_close(value[run], end, rtol=1e-8, atol=1e-10)
        for name, value in expected.items():
            assert measured[name][run] == pytest.approx(value, rel=1e-8)
