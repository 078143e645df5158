"""torchvision's ResNets on 32 × 32 images: the same network, without the products with padding.

There `layer2` has 4 × 4 maps, `layer3` 2 × 2 and `layer4` 1 × 1, and a 3 × 3 convolution multiplies
mostly padding: in `layer4` only the centre tap of a kernel meets data. Here a map lies as (position,
sample, channel), and a convolution is a sum of matrix products, one for each tap and each run of
neighbouring positions. Weights have torchvision's names, shapes and values. Those that meet only padding
stay in them, and their gradient is zero, as it is in torchvision's network.
"""

import copy
import functools
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

IMAGE_SHAPE = (3, 32, 32)
"""Of the images whose maps are small."""
STEM_SIZE = 8
"""Positions along a side of the maps of `layer1`, where an ordinary convolution is faster."""


@dataclass(frozen=True)
class Piece:
    """Neighbouring positions that a tap joins, one by one: outputs[i] has a product with inputs[i]."""

    tap: int
    inputs: slice
    outputs: slice


@dataclass(frozen=True)
class Geometry:
    """What a square convolution joins on a map of `size` × `size` positions, numbered row by row."""

    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def size_out(self) -> int:
        """Positions along a side of the output."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    def joins(self, tap: int) -> list[tuple[int, int]]:
        """Return the positions (input, output) that a tap joins, padding left out, by output."""
        joins = []
        for output in range(self.size_out**2):
            row = output // self.size_out * self.stride - self.padding + tap // self.kernel
            column = output % self.size_out * self.stride - self.padding + tap % self.kernel
            if 0 <= row < self.size and 0 <= column < self.size:
                joins.append((row * self.size + column, output))
        return joins

    @functools.cached_property
    def pieces(self) -> list[Piece]:
        """All that the taps join, in pieces that are as long as possible."""
        pieces = []
        for tap in range(self.kernel**2):
            joins = self.joins(tap)
            ends = [i for i in range(1, len(joins)) if not _follows(joins[i], joins[i - 1])]
            for start, end in zip([0, *ends], [*ends, len(joins)]):
                if start < end:
                    first_in, first_out = joins[start]
                    last_in, last_out = joins[end - 1]
                    inputs, outputs = slice(first_in, last_in + 1), slice(first_out, last_out + 1)
                    pieces.append(Piece(tap, inputs, outputs))
        return pieces


def _follows(join: tuple[int, int], before: tuple[int, int]) -> bool:
    """Tell whether both positions of `join` are the next ones after those of `before`."""
    return join == (before[0] + 1, before[1] + 1)


class TapProducts(torch.autograd.Function):
    """A convolution without bias of x (position, sample, channel), by `Geometry.pieces`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        taps = by_tap(weight)
        y = x.new_zeros(geometry.size_out**2, x.shape[1], weight.shape[0])
        for piece in geometry.pieces:
            rows(y, piece.outputs).addmm_(rows(x, piece.inputs), taps[piece.tap])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        g = g.contiguous()
        taps = by_tap(weight)
        of_x = torch.zeros_like(x)
        of_weight = torch.zeros_like(weight)
        of_taps = by_tap(of_weight)
        for piece in ctx.geometry.pieces:
            g_piece = rows(g, piece.outputs)
            rows(of_x, piece.inputs).addmm_(g_piece, taps[piece.tap].T)
            of_taps[piece.tap].addmm_(rows(x, piece.inputs).T, g_piece)
        return of_x, of_weight, None


def rows(maps: Tensor, positions: slice) -> Tensor:
    """Return a view of contiguous maps at neighbouring positions, (position × sample, channel)."""
    return maps[positions].view(-1, maps.shape[2])


def by_tap(weight: Tensor) -> Tensor:
    """Return a view (taps, in, out) of a weight (out, in, kernel, kernel)."""
    return weight.permute(2, 3, 1, 0).flatten(0, 1)


class TapConvolution(nn.Module):
    """A convolution on maps (position, sample, channel)."""

    def __init__(self, convolution: nn.Conv2d, size: int):
        super().__init__()
        self.weight = convolution.weight
        kernel, stride, padding = convolution.kernel_size, convolution.stride, convolution.padding
        assert not isinstance(padding, str)
        self.geometry = Geometry(size, kernel[0], stride[0], padding[0])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = TapProducts.apply(x, self.weight, self.geometry)
        return y


class PositionBatchNorm(nn.BatchNorm1d):
    """Batch norm of maps (position, sample, channel)."""

    def __init__(self, norm: nn.BatchNorm2d):
        super().__init__(norm.num_features, norm.eps, norm.momentum)
        self.weight = norm.weight
        self.bias = norm.bias
        for name, value in norm.named_buffers():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view(x.shape)


class ToPositions(nn.Module):
    """(n, channel, row, column) ↦ (position, n, channel)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(2, 3, 0, 1).flatten(0, 1).contiguous()


class PositionMean(nn.Module):
    """The mean over positions, (position, n, channel) ↦ (n, channel): global average pooling."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0)


def on_small_maps(network: nn.Module) -> nn.Module:
    """Return a copy of one of torchvision's ResNets that computes the same by products of taps.

    It takes images (n, 3, 32, 32). `state_dict` has the same names, shapes and values.

    >>> import torchvision
    >>> network = torchvision.models.resnet18(num_classes=10)
    >>> images = torch.rand(4, 3, 32, 32)
    >>> torch.allclose(on_small_maps(network)(images), network(images), atol=1e-5)
    True
    """
    fast: Any = copy.deepcopy(network)
    fast.layer1.append(ToPositions())
    size = STEM_SIZE
    for block in (*fast.layer2, *fast.layer3, *fast.layer4):
        if block.downsample is not None:
            block.downsample[0] = TapConvolution(block.downsample[0], size)
            block.downsample[1] = PositionBatchNorm(block.downsample[1])
        block.conv1 = TapConvolution(block.conv1, size)
        size = block.conv1.geometry.size_out
        block.conv2 = TapConvolution(block.conv2, size)
        block.bn1 = PositionBatchNorm(block.bn1)
        block.bn2 = PositionBatchNorm(block.bn2)
    fast.avgpool = PositionMean()
    module: nn.Module = fast
    return module


def is_small_resnet(network: nn.Module, shape: tuple[int, ...]) -> bool:
    """Tell whether `network` is torchvision's ResNet-18 or -34, unchanged, and its samples have 32 × 32 pixels."""
    resnet = sys.modules.get("torchvision.models.resnet")  # imported, if the network is from there
    if resnet is None or type(network) is not resnet.ResNet or shape != IMAGE_SHAPE:
        return False
    layer: Any = network.fc
    return any(str(network) == _structure(depth, layer.out_features) for depth in (18, 34))


@functools.cache
def _structure(depth: int, classes: int) -> str:
    """Return what torch prints of torchvision's ResNet: all its modules and their arguments."""
    resnet = sys.modules["torchvision.models.resnet"]
    with torch.device("meta"):
        return str(getattr(resnet, f"resnet{depth}")(num_classes=classes))
