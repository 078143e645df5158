"""Multilayer perceptrons as a list of layers, with forward and backward pass written by hand."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as nnF
from torch import Tensor, nn

from softadlib.functional.gradient_rules import Grads


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


def parse_perceptron(network: nn.Module) -> list[Layer] | None:
    """List the layers of [Flatten], then groups of Linear, [BatchNorm1d], [ReLU]; None for others.

    None too where two layers share a weight, or a layer has a forward hook or a forward of its own.
    """
    layers: list[Layer] = []
    for name, module in network.named_modules(remove_duplicate=False):
        layer = _layer(f"{name}." if name else "", module)
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
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


# Of a step of mlp4x500, `g * (x > 0)` would take 1.02 to 1.04 times the time on an AMD EPYC.
_RELU_BACK = torch.ops.aten.threshold_backward.default
_NORM_BACK = torch.ops.aten.native_batch_norm_backward.default


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
            x = nnF.linear(x, params[layer.weight], params[layer.bias] if layer.bias else None)
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
    layers: Sequence[Layer], params: Grads, tape: Sequence[tuple[Tensor, ...]], g: Tensor
) -> Grads:
    """Return the gradients of all parameters, given `g`, the gradient in the logits."""
    grads: Grads = {}
    first = 1 if layers[0].kind == "flatten" else 0
    for i in reversed(range(first, len(layers))):
        layer = layers[i]
        if layer.kind == "linear":
            (x,) = tape[i]
            if layer.bias:
                grads[layer.bias] = g.sum(0)
            grads[layer.weight] = g.mT @ x
            if i > first:
                g = g @ params[layer.weight]
        elif layer.kind == "relu":
            (x,) = tape[i]
            g = _RELU_BACK(g, x, 0)
        else:
            x, weight, mean, var, *batch = tape[i]
            g, grads[layer.weight], grads[layer.bias] = _NORM_BACK(
                g, x, weight, mean, var, *batch, True, layer.eps, [True] * 3
            )
    return grads


@dataclass
class FusedLayer:
    """x ↦ x Wᵀ + b, and its ReLU."""

    weight: Tensor
    bias: Tensor | None
    relu: bool = False


def fuse_batchnorm(
    layers: Sequence[Layer], params: Grads, buffers: Grads
) -> Callable[[Tensor], Tensor]:
    """Return x ↦ logits in evaluation mode, each batch norm folded into the linear layer before it.

    γ (W x + b − mean)/√(var + ε) + β is linear in x too. Measuring 10,000 samples would take 1.07 (mlp4x500) and
    1.05 (mlp1x1000) times as long without, on an AMD EPYC. Values may be of one run, or stacked over R.
    """
    fused: list[FusedLayer] = []
    for layer in layers:
        if layer.kind == "linear":
            bias = params[layer.bias] if layer.bias else None
            fused.append(FusedLayer(params[layer.weight], bias))
        elif layer.kind == "norm":
            factor = params[layer.weight] * (buffers[layer.var] + layer.eps).rsqrt()
            shift = params[layer.bias] - buffers[layer.mean] * factor
            below = fused[-1]
            below.weight = below.weight * factor[..., None]
            below.bias = shift if below.bias is None else shift + below.bias * factor
        elif layer.kind == "relu":
            fused[-1].relu = True

    def network(x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in fused:
            x = nnF.linear(x, layer.weight, layer.bias)
            x = x.relu_() if layer.relu else x
        return x

    def stacked_network(x: Tensor) -> Tensor:
        x = x.flatten(2)
        for layer in fused:
            w, b = layer.weight.mT, layer.bias
            x = x @ w if b is None else torch.baddbmm(b[:, None], x, w)
            x = x.relu_() if layer.relu else x
        return x

    return network if fused[0].weight.ndim == 2 else stacked_network
