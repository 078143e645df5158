"""Multilayer perceptrons stepped by hand on a CPU, one run after another.

There, a network this small spends its time in matrix products and in waiting for memory. A run that
is trained from its first epoch to its last stays in the cache, its gradients are written out below
instead of recorded by autograd, and the products go to oneDNN, which uses AVX-512 where MKL does
not. No run shares a kernel with another, so its numbers cannot depend on who else is trained.
"""

import itertools
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnF
from torch import Tensor, nn

from softadlib.functional import WEIGHTS, Grads
from softadlib.training.checkpoint import NO_CHECKPOINT, NullCheckpoint
from softadlib.training.engines.base import Measured, Row, RunBatch, TrainConfig, batches
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.progress import ProgressCallback, no_progress

PACKED_BELOW = 2**14
"""Entries from which a parameter is stepped as it is."""
ONEDNN_FROM = 16
"""Shortest side of a product worth handing to oneDNN."""


@dataclass(frozen=True)
class Layer:
    """One link: `linear`, `norm`, `relu` or `flatten`, and where its parameters are."""

    kind: str
    weight: str = ""
    bias: str = ""
    mean: str = ""
    var: str = ""
    count: str = ""
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
        bias = "" if module.bias is None else f"{prefix}bias"
        return Layer("linear", f"{prefix}weight", bias)
    if type(module) is nn.ReLU:
        return Layer("relu")
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return Layer("flatten")
    if type(module) is nn.BatchNorm1d and module.affine and module.track_running_stats:
        if module.momentum is None:
            return None
        names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        weight, bias, mean, var, count = (prefix + name for name in names)
        return Layer("norm", weight, bias, mean, var, count, module.eps, module.momentum)
    return None


_RELU_BACK = torch.ops.aten.threshold_backward.default
_NORM_BACK = torch.ops.aten.native_batch_norm_backward.default
_NLL = torch.ops.aten.nll_loss_forward.default  # its 0 and -100: no reduction, nothing ignored
_NLL_BACK = torch.ops.aten.nll_loss_backward.default
_SOFTMAX_BACK = torch.ops.aten._log_softmax_backward_data.default
_ONEDNN = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._linear_pointwise.default


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """x Wᵀ + b, and max(0, ·) of it: (n, k), (m, k), (m,) → (n, m).

    By oneDNN where it pays. A layout that is neither by rows nor by columns is copied first: there
    oneDNN would fall back to a loop of scalars.
    """
    (n, k), m = x.shape, len(weight)
    large = n >= ONEDNN_FROM and k >= ONEDNN_FROM and m >= ONEDNN_FROM
    if _ONEDNN and large and x.dtype is torch.float32 and x.device.type == "cpu":
        if not (x.is_contiguous() or x.mT.is_contiguous()):
            x = x.contiguous()
        if not (weight.is_contiguous() or weight.mT.is_contiguous()):
            weight = weight.contiguous()
        return _ONEDNN(x, weight, bias, "relu" if relu else "none", [], "")
    out = nnF.linear(x, weight, bias)
    return out.relu() if relu else out


def forward(
    chain: Sequence[Layer], params: Grads, buffers: Grads, x: Tensor, track: bool
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """Logits in training mode and what `backward` needs; running statistics move if `track`."""
    tape: list[tuple[Tensor, ...]] = []
    for layer in chain:
        if layer.kind == "flatten":
            x = x.flatten(1)
            tape.append(())
        elif layer.kind == "linear":
            tape.append((x,))
            x = affine(x, params[layer.weight], params[layer.bias] if layer.bias else None)
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
    chain: Sequence[Layer], params: Grads, tape: list[tuple[Tensor, ...]], g: Tensor
) -> Grads:
    """Gradients of all parameters, from `g`, the gradient in the logits."""
    grads: Grads = {}
    first = 1 if chain[0].kind == "flatten" else 0
    for i in reversed(range(first, len(chain))):
        layer, saved = chain[i], tape[i]
        if layer.kind == "linear":
            grads[layer.weight] = affine(g.mT, saved[0].mT)
            if layer.bias:
                grads[layer.bias] = g.sum(0)
            if i > first:
                g = affine(g, params[layer.weight].mT)
        elif layer.kind == "relu":
            g = _RELU_BACK(g, saved[0], 0)
        else:
            x, weight, mean, var, *batch = saved
            g, grads[layer.weight], grads[layer.bias] = _NORM_BACK(
                g, x, weight, mean, var, *batch, True, layer.eps, [True] * 3
            )
    return grads


def logit_gradient(
    objective: Callable[..., Tensor], logits: Tensor, y: Tensor, knob: Tensor, **more: Any
) -> Tensor:
    """Gradient of objective(cross-entropies (n,), knob, **more) in the logits (n, C).

    By hand where the objective's own gradient is (`functional.WEIGHTS`), through the kernels that
    autograd would call; otherwise by autograd.
    """
    if objective not in WEIGHTS:
        logits.requires_grad_()
        with torch.enable_grad():
            value = objective(nnF.cross_entropy(logits, y, reduction="none"), knob, **more)
        return torch.autograd.grad(value, logits)[0]
    logp = logits.log_softmax(1)
    losses, total = _NLL(logp, y, None, 0, -100)
    weights = WEIGHTS[objective](losses, knob, **more) / len(y)
    return _SOFTMAX_BACK(_NLL_BACK(weights, logp, y, None, 0, -100, total), logp, 1, logp.dtype)


def fuse_batchnorm(
    chain: Sequence[Layer], params: Grads, buffers: Grads
) -> Callable[[Tensor], Tensor]:
    """x ↦ logits in evaluation mode, each batch norm folded into the linear layer before it."""
    steps: list[list] = []  # [weight, bias, relu after it]
    for layer in chain:
        if layer.kind == "linear":
            bias = params[layer.bias] if layer.bias else None
            steps.append([params[layer.weight], bias, False])
        elif layer.kind == "norm":
            mean, var = buffers[layer.mean], buffers[layer.var]
            factor = params[layer.weight] * (var + layer.eps).rsqrt()
            weight, bias, _ = steps[-1]
            shift = params[layer.bias] - mean * factor
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


class MLPEngine(VmapEngine):
    """R multilayer perceptrons, each trained alone from the first epoch to the last."""

    def __init__(self, batch: RunBatch):
        super().__init__(batch)
        found = links(self.skeleton)
        if found is None:
            raise ValueError("a Chain takes Linear, BatchNorm1d and ReLU in a row; use a Stack")
        self.links = found
        self._pack()

    def _pack(self) -> None:
        """The many small parameters of a run side by side, so that an optimizer sees few tensors."""
        small = {k: p for k, p in self.params.items() if p[0].numel() < PACKED_BELOW}
        self.small, self.large = list(small), [k for k in self.params if k not in small]
        if not small:
            return
        ends = list(itertools.accumulate(p[0].numel() for p in small.values()))
        self.packed = torch.cat([p.flatten(1) for p in small.values()], 1)
        pieces = self.packed.tensor_split(ends[:-1], dim=1)
        self.params |= {k: piece.view_as(small[k]) for k, piece in zip(small, pieces)}

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        return fuse_batchnorm(self.links, *self.state(run))

    def _direction(self, run: int) -> Callable[..., Grads]:
        """(x, y, **samples) ↦ the direction of the method's rule for one run on one batch."""
        params, buffers = self.state(run)
        knob, chain, method = self.knob[run], self.links, self.method
        objective, rule = self._sorted({name: value[run] for name, value in self.per_run.items()})

        def direction(x: Tensor, y: Tensor, **samples: Tensor) -> Grads:
            def gradient(params: Grads, track: bool = True) -> Grads:
                logits, tape = forward(chain, params, buffers, x, track)
                g = logit_gradient(method.objective, logits, y, knob, **objective, **samples)
                return backward(chain, params, tape, g)

            return method.rule(gradient, params, knob, **rule)

        return direction

    def _stepper(self, run: int, recipe: TrainConfig) -> Callable[[Tensor], None]:
        """One step of one run on the samples at some positions of its trial's training part."""
        direction, trial, data = self._direction(run), int(self.trial[run]), self.splits
        stepped = [self.params[name][run] for name in self.large]
        stepped += [self.packed[run]] if self.small else []
        optimizer = self.optimizer = recipe.build(stepped)
        train, known = data.train[trial], {k: v[trial] for k, v in self.samples.items()}

        def step(positions: Tensor) -> None:
            index = train[positions]
            x = data.inputs(data.x[index], "train", trial)
            own = {name: values[positions] for name, values in known.items()}
            grads = direction(x, data.y[index], **own)
            directions = [grads[name] for name in self.large]
            if self.small:
                directions.append(torch.cat([grads[name].flatten() for name in self.small]))
            for p, g in zip(stepped, directions):
                p.grad = g
            optimizer.step()

        return step

    @torch.no_grad()
    def train(
        self,
        recipe: TrainConfig,
        seeds: Sequence[int],
        eval_epochs: Collection[int],
        *,
        keep: int | None = None,
        progress: ProgressCallback = no_progress,
        checkpoint: NullCheckpoint = NO_CHECKPOINT,
    ) -> Measured:
        n, found = self.splits.train.shape[1], checkpoint.state or {"run": 0, "measured": {}}
        rows: dict[int, list[Row]] = {epoch: [] for epoch in sorted(eval_epochs)}
        for epoch, row in found["measured"].items():
            rows[epoch].append(row)
        for run in range(found["run"], len(self) if keep is None else keep):
            step, seed, first = self._stepper(run, recipe), seeds[int(self.trial[run])], 0
            if checkpoint.state and run == found["run"]:
                self.load_state_dict(found["state"])
                first = found["epoch"] + 1
                progress(run * recipe.epochs + found["epoch"])
            for epoch in range(first, recipe.epochs + 1):
                order = batches([seed], epoch, n, recipe.batch_size) if epoch else ()
                for (positions,) in order:
                    step(positions)
                if epoch in rows:
                    rows[epoch].append(self.measure([run]))
                progress(1 if epoch else 0)
                if epoch < recipe.epochs and checkpoint.due(epoch):
                    where = {"run": run, "epoch": epoch, "measured": _joined(rows)}
                    checkpoint.save({**where, "state": self.state_dict()})
        return _joined(rows)


def _joined(rows: dict[int, list[Row]]) -> Measured:
    """One row an epoch of the rows of its runs."""
    return {
        epoch: {name: np.concatenate([row[name] for row in some]) for name in some[0]}
        for epoch, some in rows.items()
        if some
    }
