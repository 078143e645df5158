"""torchvision's ResNets on 32 × 32 images: the same network, without the products with padding.

There `layer1` has 8 × 8 maps, `layer2` 4 × 4, `layer3` 2 × 2 and `layer4` 1 × 1, and a 3 × 3 convolution
multiplies mostly padding: in `layer4` only the centre tap of a kernel meets data. Here a map lies as
(position, sample, channel), positions row by row, and a convolution is a number of matrix products of
(sample, channel) with (in, out):

- with stride 2 and on 1 × 1 maps one for each tap, input position and output position that meet;
- on the other maps fewer, by the identities of `Scheme`, which round a little more: a relative error of
  10⁻⁶ in float32, where plain products have 10⁻⁷ and TF32 5 · 10⁻⁴.

Weights have torchvision's names, shapes and values. Those that meet only padding stay in them, and their
gradient is zero, as it is in torchvision's network.
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
FIRST_SIZE = 8
"""Positions along a side of the maps of `layer1`."""


# Convolutions with stride 2, and on 1 × 1 maps


@dataclass(frozen=True)
class Geometry:
    """What the taps of a square convolution join on a map of `size` × `size` positions."""

    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def size_out(self) -> int:
        """Positions along a side of the output."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @functools.cached_property
    def joins(self) -> list[tuple[int, int, int]]:
        """Taps with the input and output positions that they join, (tap, input, output); no padding."""
        joins = []
        for output in range(self.size_out**2):
            for tap in range(self.kernel**2):
                row = output // self.size_out * self.stride - self.padding + tap // self.kernel
                column = output % self.size_out * self.stride - self.padding + tap % self.kernel
                if 0 <= row < self.size and 0 <= column < self.size:
                    joins.append((tap, row * self.size + column, output))
        return joins


class TapProducts(torch.autograd.Function):
    """A convolution of maps (position, sample, channel) by one product for each of `Geometry.joins`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        taps = by_tap(weight)
        y = x.new_zeros(geometry.size_out**2, x.shape[1], weight.shape[0])
        for tap, i, o in geometry.joins:
            y[o].addmm_(x[i], taps[tap])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        taps = by_tap(weight)
        of_x = torch.zeros_like(x)
        of_weight = torch.zeros_like(weight)
        of_taps = by_tap(of_weight)
        for tap, i, o in ctx.geometry.joins:
            of_x[i].addmm_(g[o], taps[tap].T)
            of_taps[tap].addmm_(x[i].T, g[o])
        return of_x, of_weight, None


def by_tap(weight: Tensor) -> Tensor:
    """Return a view (taps, in, out) of a weight (out, in, kernel, kernel)."""
    return weight.permute(2, 3, 1, 0).flatten(0, 1)


# Convolutions with three taps along a side, stride 1 and padding 1


@dataclass(frozen=True)
class Scheme:
    """A convolution of `size` positions with three taps, y = outputs ((inputs x) ∘ (taps w)).

    On maps it is used along both axes, and ∘ are products of matrices (sample, channel) and (in, out).
    On two positions y₀ = w₁x₀ + w₂x₁ and y₁ = w₀x₀ + w₁x₁ have three products, w₁(x₀ + x₁), (w₂ − w₁)x₁ and
    (w₀ − w₁)x₀, in place of four. Four positions have six in place of ten: values of polynomials at five
    points and at infinity. Lavin & Gray (2016).
    """

    inputs: Tensor
    """(products of all tiles, size)."""
    taps: Tensor
    """(products², 9), of both axes at once."""
    outputs: Tensor
    """(size, products of all tiles)."""
    tiles: int
    """Parts of the axis that have the same products."""


POINTS = (0.0, 1.0, -1.0, 0.5, -2.0)
"""Where the polynomials are taken: with these, rounding errors are ten times those of plain products."""


@functools.cache
def make_scheme(size: int, dtype: torch.dtype) -> Scheme:
    """Return the scheme of a map's axis: of 2 positions, or of a multiple of 4."""
    if size == 2:
        inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=dtype)
        taps = torch.tensor([[1.0, -1.0, 0.0], [0.0, -1.0, 1.0], [0.0, 1.0, 0.0]], dtype=dtype)
        outputs = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]], dtype=dtype)
        return Scheme(inputs, torch.kron(taps, taps), outputs, tiles=1)
    tiles = size // 4
    taps = powers(3)
    scale = taps.abs().sum(1, keepdim=True)  # both factors of a product of like size
    taps = taps / scale
    of_tile = powers(6).inverse().T * scale  # (6, 6): a tile's four positions and their neighbours
    padded = nn.functional.pad(torch.eye(size, dtype=torch.float64), (0, 0, 1, 1))
    windows = [of_tile @ padded[4 * tile : 4 * tile + 6] for tile in range(tiles)]
    outputs = torch.zeros(tiles, 4, 6, tiles, dtype=torch.float64)
    for tile in range(tiles):
        outputs[tile, :, :, tile] = powers(4).T
    return Scheme(
        torch.stack(windows, dim=1).flatten(0, 1).to(dtype),
        torch.kron(taps, taps).to(dtype),
        outputs.view(size, -1).to(dtype),
        tiles,
    )


def powers(count: int) -> Tensor:
    """Return 1, p, p² … of every point, `count` of them, and of infinity the last, (6, count)."""
    points = torch.tensor(POINTS, dtype=torch.float64)[:, None]
    infinity = torch.zeros(1, count, dtype=torch.float64)
    infinity[0, -1] = 1.0
    return torch.cat([points ** torch.arange(count), infinity])


def along_both(matrix: Tensor, values: Tensor) -> Tensor:
    """Multiply both axes of `values` (n, n, …) by a matrix (m, n): (m, m, all else)."""
    m, n = matrix.shape
    rows = (matrix @ values.reshape(n, -1)).view(m, n, -1)
    return torch.bmm(matrix.expand(m, m, n), rows)


def convolve(x: Tensor, weight: Tensor, scheme: Scheme) -> Tensor:
    """Return a 3 × 3 convolution of maps (position, sample, channel), with stride 1 and padding 1."""
    positions, samples, channels = x.shape
    channels_out = weight.shape[0]
    tiles = scheme.tiles
    axis = len(scheme.inputs)
    products = axis // tiles
    inputs = along_both(scheme.inputs, x).view(-1, tiles * samples, channels)
    taps = scheme.taps @ by_tap(weight).flatten(1)
    taps = taps.view(products, 1, products, -1).expand(products, tiles, products, -1)
    outputs = torch.bmm(inputs, taps.reshape(-1, channels, channels_out))
    return along_both(scheme.outputs, outputs.view(axis, axis, -1)).view(positions, samples, -1)


# The network


class SmallConvolution(nn.Module):
    """A convolution without bias on maps (position, sample, channel) with `size` positions along a side."""

    def __init__(self, convolution: nn.Conv2d, size: int):
        super().__init__()
        self.weight = convolution.weight
        (kernel, _), (stride, _) = convolution.kernel_size, convolution.stride
        assert not isinstance(convolution.padding, str)
        self.geometry = Geometry(size, kernel, stride, convolution.padding[0])
        self.has_scheme = kernel == 3 and stride == 1 and size > 1

    def forward(self, x: Tensor) -> Tensor:
        if self.has_scheme:
            return convolve(x, self.weight, make_scheme(self.geometry.size, x.dtype))
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
        self.train(norm.training)

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
    """Return a copy of one of torchvision's ResNets that computes the same from images (n, 3, 32, 32).

    Its `state_dict` has the same names, shapes and values.

    >>> import torchvision
    >>> network = torchvision.models.resnet18(num_classes=10).double().eval()
    >>> images = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    >>> torch.allclose(on_small_maps(network)(images), network(images))
    True
    """
    fast: Any = copy.deepcopy(network)
    fast.maxpool = nn.Sequential(fast.maxpool, ToPositions())
    size = FIRST_SIZE
    for block in (*fast.layer1, *fast.layer2, *fast.layer3, *fast.layer4):
        if block.downsample is not None:
            block.downsample[0] = SmallConvolution(block.downsample[0], size)
            block.downsample[1] = PositionBatchNorm(block.downsample[1])
        block.conv1 = SmallConvolution(block.conv1, size)
        size = block.conv1.geometry.size_out
        block.conv2 = SmallConvolution(block.conv2, size)
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
