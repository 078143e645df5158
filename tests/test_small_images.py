"""ResNets on 32 × 32 images: torchvision's network and its trainings, and the weights that meet only padding."""

from functools import partial

import pytest
import torch
import torchvision
from helpers.plain_loop import plain_loop
from torch import nn
from torch.nn import functional as F

from softadlib.methods import METHODS
from softadlib.models import build
from softadlib.small_images import SmallConvolution, on_small_maps
from softadlib.trainer.checkpoint import Checkpoint
from softadlib.trainer.engines import RunGroup, choose_engine
from softadlib.trainer.engines.autograd import AutogradEngine
from softadlib.trainer.engines.single_resnet import ResNetEngine
from softadlib.trainer.loop import train
from softadlib.trainer.recipe import Recipe
from softadlib.trainer.splits import PARTS, Splits

SHAPE = (3, 32, 32)
SEED = 11
# With fewer samples a batch, rounding alone grows past 1e-10 in five steps of ResNet-34.
SGD = Recipe("sgd", 0.01, 40, 1, momentum=0.9)
ADAM = Recipe("adam", 1e-4, 40, 1, weight_decay=0.01)


def images(dtype, n_train=200, shape=SHAPE):
    """Random images of four classes."""
    generator = torch.Generator().manual_seed(5)
    sizes = (n_train, 12, 12)
    n = sum(sizes)
    x = torch.randint(0, 256, (n, *shape), generator=generator, dtype=torch.uint8)
    x[:, 0, 0, 0] = 0
    x[:, 0, 0, 1] = 255
    train_index, val, test = torch.arange(n)[None].split(sizes, dim=1)
    return Splits(x, torch.arange(n) % 4, train_index, val, test, 4, dtype)


def make_group(method, network, splits, knob=0.05, **more):
    return RunGroup(
        METHODS[method], [network], splits, [0], [knob], METHODS[method].defaults, **more
    )


def one_block_a_layer():
    """torchvision's ResNet-10: every kind of layer that 18 and 34 have, once."""
    torch.manual_seed(1)
    resnet = torchvision.models.resnet
    return resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=4)


@pytest.mark.parametrize(
    ("make", "method", "recipe"),
    [
        (one_block_a_layer, "sam", SGD),
        (one_block_a_layer, "softad", ADAM),
        (one_block_a_layer, "decay", SGD),
        (partial(build, "resnet34", SHAPE, 4, 1), "sam", SGD),
    ],
)
def test_five_steps_are_those_of_torchvisions_network(make, method, recipe):
    """Weights, batch norm's statistics and what is measured; Adam decays the weights that meet only padding."""
    splits = images(torch.float64)
    network = make().double()
    engine = ResNetEngine(make_group(method, network, splits))
    (measured,) = train(engine, recipe, [SEED], {1}).rows
    data = {}
    for part in PARTS:
        x, y = splits.part(part)
        data[part] = (x.double() / 255, y)
    expected = plain_loop(method, network, data, SEED, recipe, 0.05)[-1]
    trained = engine.module(0).state_dict()
    for name, value in network.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=0, atol=1e-10, msg=name)
    for name, value in expected.items():
        assert measured[name][0] == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [(8, 3, 1, 1), (4, 3, 1, 1), (2, 3, 1, 1), (1, 3, 1, 1), (8, 3, 2, 1), (2, 3, 2, 1), (4, 1, 2, 0)],
)  # fmt: skip
def test_a_convolution_of_each_kind(size, kernel, stride, padding):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, size, size, generator=generator, dtype=torch.float64)
    weight = torch.randn(4, 3, kernel, kernel, generator=generator, dtype=torch.float64)
    x.requires_grad_()
    convolution = nn.Conv2d(3, 4, kernel, stride, padding, bias=False)
    small = SmallConvolution(convolution, size)
    small.weight = convolution.weight = nn.Parameter(weight)
    found, expected = small(to_positions(x)), to_positions(convolution(x))
    torch.testing.assert_close(found, expected)
    g = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    of_inputs = (x, convolution.weight)
    for a, b in zip(*(torch.autograd.grad(y, of_inputs, g) for y in (found, expected))):
        torch.testing.assert_close(a, b)


def to_positions(x):
    """Maps (n, channel, row, column) as (position, n, channel)."""
    return x.permute(2, 3, 0, 1).flatten(0, 1).contiguous()


def test_weights_go_in_and_come_out_to_the_bit():
    network = build("resnet18", SHAPE, 4, 1)
    engine = choose_engine(make_group("erm", network, images(torch.float32)))
    engine.start(SGD)
    out = engine.module(0)
    assert type(out) is torchvision.models.ResNet
    assert list(out.state_dict()) == list(network.state_dict())
    for name, value in network.state_dict().items():
        assert torch.equal(out.state_dict()[name], value), name
    trained = on_small_maps(network).state_dict()
    assert all(torch.equal(trained[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("model", "inert", "of"),
    [("resnet18", 6_946_816, 11_181_642), ("resnet34", 11_141_120, 21_289_802)],
)
def test_weights_that_meet_only_padding(model, inert, of):
    """In torchvision's own network: taps without any gradient, and without any effect on the logits."""
    network = build(model, SHAPE, 10, 1)
    x = torch.rand(64, *SHAPE, generator=torch.Generator().manual_seed(0))
    F.cross_entropy(network(x), torch.arange(64) % 10).backward()
    count = 0
    before = network.eval()(x)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            never_moved = (module.weight.grad == 0).all(dim=0).all(dim=0)
            count += int(never_moved.sum()) * module.in_channels * module.out_channels
            with torch.no_grad():
                module.weight[:, :, never_moved] = 0
    assert count == inert
    assert sum(p.numel() for p in network.parameters()) == of
    assert torch.equal(network(x), before)


@pytest.mark.parametrize("method", ["erm", "sam"])
def test_a_training_resumes_to_the_bit(method, tmp_path):
    splits = images(torch.float32, 24)
    recipe = Recipe("sgd", 0.01, 12, 3, momentum=0.9)

    def finish(checkpoint=None):
        group = make_group(method, build("resnet18", SHAPE, 4, 1), splits)
        engine = choose_engine(group)
        return engine, train(engine, recipe, [SEED], {3}, checkpoint=checkpoint)

    whole, expected = finish()
    stopping = Checkpoint(tmp_path / "state", {}, every=2)
    finish(stopping)
    assert stopping.load()["epoch"] == 2
    resumed, measured = finish(Checkpoint(tmp_path / "state", {}, every=2))
    for name, value in expected.rows[0].items():
        assert measured.rows[0][name] == value, name
    for name, value in whole.weights().items():
        assert torch.equal(resumed.weights()[name], value), name


def test_which_trainings_it_takes():
    """One of torchvision's ResNets, unchanged, on 32 × 32 images, on a CPU and in full precision."""
    small = images(torch.float32)
    network = build("resnet18", SHAPE, 4, 1)
    assert isinstance(choose_engine(make_group("erm", network, small)), ResNetEngine)
    others = [
        make_group("erm", network, images(torch.float32, shape=(3, 64, 64))),
        make_group("erm", network, small, bf16=True),
        make_group("erm", build("mlp2x256", SHAPE, 4, 1), small),
    ]
    changed = build("resnet18", SHAPE, 4, 1)
    changed.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    others.append(make_group("erm", changed, small))
    for group in others:
        assert not isinstance(choose_engine(group), ResNetEngine)
    assert not ResNetEngine.supports(network, SHAPE, torch.device("cuda"))
    assert isinstance(AutogradEngine(make_group("erm", network, small)), AutogradEngine)
