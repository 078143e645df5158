"""Multilayer perceptrons stepped by hand on a CPU, one run after another.

There, a network this small spends its time in matrix products and in waiting for memory. A run that
is trained from its first epoch to its last stays in the cache, its gradients are written out below
instead of recorded by autograd, and the products go to oneDNN, which uses AVX-512 where MKL does
not. No run shares a kernel with another, so its numbers cannot depend on who else is trained.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as nnF
from torch import Tensor, nn

from .functional import Grads
from .methods import Method
from .recipe import Recipe, Tick, batches, no_tick
from .stack import Stack

ONEDNN_FROM = 16
"""Shortest side of a product worth handing to oneDNN."""


@dataclass(frozen=True)
class Layer:
    """One link: `linear`, `norm`, `relu` or `flatten`, and where its parameters are."""

    kind: str
    prefix: str = ""
    bias: bool = False
    eps: float = 0.0
    momentum: float = 0.0


def links(network: nn.Module) -> list[Layer] | None:
    """The layers of [Flatten], then groups of Linear, [BatchNorm1d], [ReLU]; None of anything else."""
    found: list[Layer] = []
    for name, module in network.named_modules():
        layer = _layer(f"{name}." if name else "", module)
        if layer is None:
            if type(module) is not nn.Sequential:
                return None
            continue
        found.append(layer)
    text = "".join(layer.kind[0] for layer in found)  # f, l, n, r
    return found if re.fullmatch("f?(ln?r?)+", text) else None


def _layer(prefix: str, module: nn.Module) -> Layer | None:
    if type(module) is nn.Linear:
        return Layer("linear", prefix, module.bias is not None)
    if type(module) is nn.ReLU:
        return Layer("relu")
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return Layer("flatten")
    plain = type(module) is nn.BatchNorm1d and module.affine and module.track_running_stats
    if plain and module.momentum is not None:
        return Layer("norm", prefix, True, module.eps, module.momentum)
    return None


def _onednn(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype == torch.float32
        and a.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and min(*a.shape, *b.shape) >= ONEDNN_FROM
    )


def _dense(x: Tensor) -> Tensor:
    """oneDNN falls back to a loop of scalars for any other layout."""
    return x if x.is_contiguous() or x.T.is_contiguous() else x.contiguous()


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """x Wᵀ + b, and max(0, ·) of it: (n, k), (m, k), (m,) → (n, m)."""
    if _onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(
            _dense(x), _dense(weight), bias, "relu" if relu else "none", [], ""
        )
    out = nnF.linear(x, weight, bias)
    return out.relu() if relu else out


def forward(
    chain: Sequence[Layer], params: Grads, buffers: Grads, x: Tensor, track: bool
) -> tuple[Tensor, list[tuple]]:
    """Logits in training mode and what `backward` needs; running statistics move if `track`."""
    tape = []
    for layer in chain:
        if layer.kind == "flatten":
            x = x.flatten(1)
            tape.append(())
        elif layer.kind == "linear":
            tape.append((x,))
            weight = params[f"{layer.prefix}weight"]
            x = affine(x, weight, params[f"{layer.prefix}bias"] if layer.bias else None)
        elif layer.kind == "relu":
            x = x.relu()
            tape.append((x,))
        else:
            weight, bias = params[f"{layer.prefix}weight"], params[f"{layer.prefix}bias"]
            mean, var = (buffers[f"{layer.prefix}running_{k}"] for k in ("mean", "var"))
            moving = (mean, var) if track else (None, None)
            out, *batch = torch.native_batch_norm(
                x, weight, bias, *moving, True, layer.momentum, layer.eps
            )
            if track:
                buffers[f"{layer.prefix}num_batches_tracked"] += 1
            tape.append((x, weight, mean, var, *batch))
            x = out
    return x, tape


def backward(chain: Sequence[Layer], params: Grads, tape: list[tuple], g: Tensor) -> Grads:
    """Gradients of all parameters, from `g`, the gradient in the logits."""
    grads, aten = {}, torch.ops.aten
    first = 1 if chain[0].kind == "flatten" else 0
    for i in reversed(range(first, len(chain))):
        layer, saved = chain[i], tape[i]
        if layer.kind == "linear":
            grads[f"{layer.prefix}weight"] = affine(g.T, saved[0].T)
            if layer.bias:
                grads[f"{layer.prefix}bias"] = g.sum(0)
            if i > first:
                g = affine(g, params[f"{layer.prefix}weight"].T)
        elif layer.kind == "relu":
            g = aten.threshold_backward(g, saved[0], 0)
        else:
            x, weight, mean, var, *batch = saved
            g, dw, db = aten.native_batch_norm_backward(
                g, x, weight, mean, var, *batch, True, layer.eps, [True] * 3
            )
            grads[f"{layer.prefix}weight"], grads[f"{layer.prefix}bias"] = dw, db
    return grads


def folded(chain: Sequence[Layer], params: Grads, buffers: Grads) -> Callable[[Tensor], Tensor]:
    """x ↦ logits in evaluation mode, each batch norm folded into the linear layer before it."""
    steps: list[list] = []  # [weight, bias, relu after it]
    for layer in chain:
        if layer.kind == "linear":
            bias = params[f"{layer.prefix}bias"] if layer.bias else None
            steps.append([params[f"{layer.prefix}weight"], bias, False])
        elif layer.kind == "norm":
            mean, var = (buffers[f"{layer.prefix}running_{k}"] for k in ("mean", "var"))
            factor = params[f"{layer.prefix}weight"] * (var + layer.eps).rsqrt()
            weight, bias, _ = steps[-1]
            shift = params[f"{layer.prefix}bias"] - mean * factor
            bias = shift if bias is None else shift + bias * factor
            steps[-1] = [weight * factor[:, None], bias, False]
        elif layer.kind == "relu":
            steps[-1][2] = True

    def network(x: Tensor) -> Tensor:
        x = x.flatten(1)
        for weight, bias, relu in steps:
            x = affine(x, weight, bias, relu)
        return x

    return network


class Chain(Stack):
    """R multilayer perceptrons, each trained alone from the first epoch to the last."""

    def __init__(self, method: Method, networks: Sequence[nn.Module], *args, **kwargs):
        super().__init__(method, networks, *args, **kwargs)
        self.links = links(networks[0])

    def _one(self, run: int) -> tuple[Grads, Grads]:
        """Parameters and buffers of one run, views of the stacked ones."""
        both = (self.params, self.buffers)
        return tuple({name: value[run] for name, value in part.items()} for part in both)

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        return folded(self.links, *self._one(run))

    def _direction(self, run: int, params: Grads, buffers: Grads, x: Tensor, y: Tensor) -> Grads:
        """The direction of the method's rule, on one batch."""
        knob = self.knob[run]
        own = {**self.shared, **{name: value[run] for name, value in self.per_run.items()}}
        objective, rule = self._sorted(own)

        def gradient(params: Grads, track: bool = True) -> Grads:
            logits, tape = forward(self.links, params, buffers, x, track)
            logits.requires_grad_()
            with torch.enable_grad():
                losses = nnF.cross_entropy(logits, y, reduction="none")
                value = self.method.objective(losses, knob, **objective)
            (g,) = torch.autograd.grad(value, logits)
            return backward(self.links, params, tape, g)

        return self.method.rule(gradient, params, knob, **rule)

    @torch.no_grad()
    def train(
        self,
        recipe: Recipe,
        seeds: Sequence[int],
        eval_epochs: Collection[int],
        *,
        keep: int | None = None,
        tick: Tick = no_tick,
    ) -> dict[int, dict[str, np.ndarray]]:
        rows: dict[int, list[dict[str, np.ndarray]]] = {epoch: [] for epoch in sorted(eval_epochs)}
        for run in range(len(self) if keep is None else keep):
            params, buffers = self._one(run)
            trial, optimizer = int(self.trial[run]), recipe.build(list(params.values()))
            train, data = self.splits.train[trial], self.splits
            for epoch in range(recipe.epochs + 1):
                order = batches([seeds[trial]], epoch, len(train), recipe.batch_size)
                for (positions,) in order if epoch else ():
                    index = train[positions]
                    x = data.inputs(data.x[index], "train", trial)
                    grads = self._direction(run, params, buffers, x, data.y[index])
                    for name, p in params.items():
                        p.grad = grads[name]
                    optimizer.step()
                if epoch in rows:
                    rows[epoch].append(self.measure([run]))
                tick(1 if epoch else 0)
        return {
            epoch: {name: np.concatenate([row[name] for row in some]) for name in some[0]}
            for epoch, some in rows.items()
            if some
        }
