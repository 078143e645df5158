"""ResNets under the stacked trainer: equal to a plain loop, a last batch of five, uint8 images."""

import numpy as np
import pytest
import torch
from torch import nn

from softadlib.data.images import Images
from softadlib.data.splits import image_splits
from softadlib.methods import METHODS
from softadlib.models import build
from softadlib.training.engines.base import RunBatch, TrainConfig, batches
from softadlib.training.engines.vmap import VmapEngine

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


@pytest.mark.parametrize("method", ["erm", "softad", "sam"])
def test_a_stack_of_resnets_is_the_plain_loop(splits, method):
    """A step of 20 images and one of 5: the last batch is trained on, not dropped."""
    knob, recipe = [0.3, 0.1], TrainConfig("sgd", 0.05, 20, 1, momentum=0.9)
    settings = {"sigma": 1.0, "scale": "code", "bn_update": "both"}
    stack = VmapEngine(RunBatch(METHODS[method], networks(2), splits, [0, 1], knob, settings))
    measured = stack.train(recipe, (11, 12), {1})[1]
    for run, net in enumerate(networks(2)):
        optimizer = torch.optim.SGD(net.parameters(), 0.05, 0.9)
        x, y = (t.clone() for t in splits.part("train", run))
        x = x.double() / 255
        sizes = []
        net.train()
        for positions in batches((11, 12), 1, 25, 20):
            index = positions[run]
            sizes.append(len(index))

            def losses(index=index, net=net, x=x, y=y):
                return nn.functional.cross_entropy(net(x[index]), y[index], reduction="none")

            optimizer.zero_grad()
            if method == "softad":
                (((losses() - knob[run]) ** 2 + 1).sqrt() - 1).mean().backward()
            else:
                losses().mean().backward()
            if method == "sam":
                start = [p.detach().clone() for p in net.parameters()]
                norm = sum(p.grad.square().sum() for p in net.parameters()).sqrt()
                with torch.no_grad():
                    for p in net.parameters():
                        p.add_(knob[run] * p.grad / (norm + 1e-12))
                optimizer.zero_grad()
                losses().mean().backward()
                with torch.no_grad():
                    for p, old in zip(net.parameters(), start):
                        p.copy_(old)
            optimizer.step()
        assert sizes == [20, 5]
        for name, value in net.named_parameters():
            torch.testing.assert_close(
                stack.params[name][run], value.detach(), rtol=1e-8, atol=1e-10
            )
        for name, value in net.named_buffers():
            torch.testing.assert_close(stack.buffers[name][run], value, rtol=1e-8, atol=1e-10)
        net.eval()
        inputs, targets = splits.part("test", run)
        with torch.no_grad():
            loss = nn.functional.cross_entropy(net(inputs.double() / 255), targets).item()
        assert measured["loss_test"][run] == pytest.approx(loss, rel=1e-8)


def test_the_loss_of_a_resnet_falls(splits):
    stack = VmapEngine(RunBatch(METHODS["erm"], networks(1), splits, [0], [float("nan")]))
    measured = stack.train(TrainConfig("sgd", 0.1, 25, 10), (11, 12), {0, 10})
    assert measured[10]["loss_train"][0] < 0.5 * measured[0]["loss_train"][0]
