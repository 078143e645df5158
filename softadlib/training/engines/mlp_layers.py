"""Multilayer perceptrons as a list of layers, with forward and backward pass written by hand."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as nnF
from torch import Tensor, nn

from softadlib.functional.gradient_rules import Grads
from softadlib.training.device import processor_name

ONEDNN_FROM = 16
"""Shortest side of a product worth handing to oneDNN."""
ON_INTEL = "Intel" in processor_name()
"""MKL is as fast as oneDNN here: on other processors it uses no AVX-512."""


@dataclass(frozen=True)
class Layer:
    """One layer: `kind` is linear, norm, relu or flatten; the rest are names of its parameters."""

    kind: str
    weight: str = ""
    bias: str = ""
    mean: str = ""
    var: str = ""
    count: str = ""
    eps: float = 0.0
    momentum: float = 0.0

    @property
    def tensors(self) -> list[str]:
        """Names of its parameters and buffers."""
        names = (self.weight, self.bias, self.mean, self.var, self.count)
        return [name for name in names if name]


def parse_mlp(network: nn.Module) -> list[Layer] | None:
    """List the layers of [Flatten], then groups of Linear, [BatchNorm1d], [ReLU]; None for others.

    None too where two layers share a weight, or a layer has a forward hook.
    """
    layers: list[Layer] = []
    for name, module in network.named_modules(remove_duplicate=False):
        layer = _layer(f"{name}." if name else "", module)
        if module._forward_hooks or module._forward_pre_hooks:
            return None
        if layer is None:
            if type(module) is not nn.Sequential:
                return None
            continue
        layers.append(layer)
    initials = "".join(layer.kind[0] for layer in layers)  # f, l, n, r
    named = dict(network.named_parameters()) | dict(network.named_buffers())
    tensors = [name for layer in layers for name in layer.tensors]
    is_shared = len(set(tensors)) < len(tensors) or not named.keys() >= set(tensors)
    return layers if re.fullmatch("f?(ln?r?)+", initials) and not is_shared else None


def _layer(prefix: str, module: nn.Module) -> Layer | None:
    """Describe one module whose parameters' names begin with `prefix`; None for other modules."""
    if type(module) is nn.Linear:
        bias = "" if module.bias is None else f"{prefix}bias"
        return Layer("linear", f"{prefix}weight", bias)
    if type(module) is nn.ReLU:
        return Layer("relu")
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return Layer("flatten")
    if type(module) is nn.BatchNorm1d and module.affine and module.track_running_stats:
        if module.momentum is None or module.bias is None:
            return None
        names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        weight, bias, mean, var, count = (prefix + name for name in names)
        return Layer("norm", weight, bias, mean, var, count, module.eps, module.momentum)
    return None


_RELU_BACK = torch.ops.aten.threshold_backward.default
_NORM_BACK = torch.ops.aten.native_batch_norm_backward.default
_ONEDNN = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._linear_pointwise.default


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """Compute x Wᵀ + b, or max(0, x Wᵀ + b): (n, k), (m, k), (m,) → (n, m).

    Uses oneDNN where it pays, which has AVX-512 where MKL has not. Copies a layout that is neither
    by rows nor by columns first, because oneDNN would loop over scalars there.
    """
    (n, k), m = x.shape, len(weight)
    large = n >= ONEDNN_FROM and k >= ONEDNN_FROM and m >= ONEDNN_FROM
    if _ONEDNN and large and x.dtype is torch.float32 and x.device.type == "cpu":
        if not (x.is_contiguous() or x.mT.is_contiguous()):
            x = x.contiguous()
        if not (weight.is_contiguous() or weight.mT.is_contiguous()):
            weight = weight.contiguous()
        product: Tensor = _ONEDNN(x, weight, bias, "relu" if relu else "none", [], "")
        return product
    out = nnF.linear(x, weight, bias)
    return out.relu() if relu else out


def weight_gradient(g: Tensor, x: Tensor, memory: Tensor | None = None) -> Tensor:
    """Compute gᵀx, the gradient in the weight of x Wᵀ: (n, m), (n, k) → (m, k).

    On Intel's processors the result is written to `memory`, if given: by MKL, since oneDNN takes
    none. Both add up over n in order, so the bits are the same.
    """
    if memory is None or not ON_INTEL:
        return linear(g.mT, x.mT)
    return torch.mm(g.mT, x, out=memory)


def forward(
    layers: Sequence[Layer], params: Grads, buffers: Grads, x: Tensor, track: bool
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """Return logits in training mode and the tape that `backward` reads.

    Updates the running statistics in place if `track`.
    """
    tape: list[tuple[Tensor, ...]] = []
    for layer in layers:
        if layer.kind == "flatten":
            x = x.flatten(1)
            tape.append(())
        elif layer.kind == "linear":
            tape.append((x,))
            x = linear(x, params[layer.weight], params[layer.bias] if layer.bias else None)
        elif layer.kind == "relu":
            x = x.relu()
            tape.append((x,))
        else:
            weight, bias = params[layer.weight], params[layer.bias]
            mean, var = buffers[layer.mean], buffers[layer.var]
            moving = (mean, var) if track else (None, None)
            if track:
                buffers[layer.count].add_(1)
            out, *batch = torch.native_batch_norm(
                x, weight, bias, moving[0], moving[1], True, layer.momentum, layer.eps
            )
            tape.append((x, weight, mean, var, *batch))
            x = out
    return x, tape


def backward(
    layers: Sequence[Layer],
    params: Grads,
    tape: list[tuple[Tensor, ...]],
    g: Tensor,
    gradient_of_weight: Callable[[str, Tensor, Tensor], Tensor | None],
) -> Grads:
    """Return the gradients of all parameters, given `g`, the gradient in the logits.

    `gradient_of_weight` makes those of weights from (name, g, x). It may return None where it has
    stepped the weight: nothing reads the weight later.
    """
    grads: Grads = {}
    first = 1 if layers[0].kind == "flatten" else 0
    for i in reversed(range(first, len(layers))):
        layer, saved = layers[i], tape[i]
        if layer.kind == "linear":
            if layer.bias:
                grads[layer.bias] = g.sum(0)
            below = linear(g, params[layer.weight].mT) if i > first else g
            x = saved[0]
            gradient = gradient_of_weight(layer.weight, g, x)
            if gradient is not None:
                grads[layer.weight] = gradient
            g = below
        elif layer.kind == "relu":
            g = _RELU_BACK(g, saved[0], 0)
        else:
            x, weight, mean, var, *batch = saved
            g, grads[layer.weight], grads[layer.bias] = _NORM_BACK(
                g, x, weight, mean, var, *batch, True, layer.eps, [True] * 3
            )
    return grads


def fuse_batchnorm(
    layers: Sequence[Layer], params: Grads, buffers: Grads
) -> Callable[[Tensor], Tensor]:
    """Return x ↦ logits in evaluation mode, each batch norm folded into the linear layer before it.

    γ (W x + b − mean)/√(var + ε) + β is linear in x too. Values may be of one run, or stacked over R.
    """
    fused: list[tuple[Tensor, Tensor | None, bool]] = []  # weight, bias, whether ReLU follows
    for layer in layers:
        if layer.kind == "linear":
            bias = params[layer.bias] if layer.bias else None
            fused.append((params[layer.weight], bias, False))
        elif layer.kind == "norm":
            mean, var = buffers[layer.mean], buffers[layer.var]
            factor = params[layer.weight] * (var + layer.eps).rsqrt()
            weight, bias, _ = fused[-1]
            shift = params[layer.bias] - mean * factor
            bias = shift if bias is None else shift + bias * factor
            fused[-1] = (weight * factor[..., None], bias, False)
        elif layer.kind == "relu":
            fused[-1] = (*fused[-1][:2], True)

    def network(x: Tensor) -> Tensor:
        x = x.flatten(1)
        for weight, bias, relu in fused:
            x = linear(x, weight, bias, relu)
        return x

    def stacked_network(x: Tensor) -> Tensor:
        x = x.flatten(2)
        for weight, bias, relu in fused:
            x = x @ weight.mT if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)
            x = x.relu_() if relu else x
        return x

    return network if fused[0][0].ndim == 2 else stacked_network
