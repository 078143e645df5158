"""Flooding's two steps and finite differences of the gradient, on a network in float64."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from softadlib.functional.gradient_rules import FD_SCHEMES, fdgr_gradient, sam_gradient
from softadlib.workbook.data.synthetic import SYNTHETIC

Field = Callable[[Tensor], Tensor]
"""A gradient field, (d,) → (d,)."""


@dataclass(frozen=True)
class Risk:
    """R(w): mean cross-entropy (nats) of a tanh network on fixed data, for one flat vector w (d,).

    Smooth and without batch norm or dropout, so a full batch is a plain function of w.
    """

    x: Tensor
    y: Tensor
    width: int = 16
    network: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        sizes = (self.x.shape[1], self.width, self.width, int(self.y.max()) + 1)
        layers = [nn.Linear(a, b, dtype=torch.float64) for a, b in itertools.pairwise(sizes)]
        network = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
        object.__setattr__(self, "network", network)

    def start(self, seed: int) -> Tensor:
        """Draw initial weights from N(0, 1/fan-in), biases 0: (d,)."""
        draw = torch.Generator().manual_seed(seed)
        parts = []
        for p in self.network.parameters():
            scale = p.shape[1] ** -0.5 if p.ndim == 2 else 0.0
            parts.append(scale * torch.randn(p.numel(), generator=draw, dtype=p.dtype))
        return torch.cat(parts)

    def value(self, w: Tensor) -> Tensor:
        """Return R(w), ()."""
        shapes = {name: p.shape for name, p in self.network.named_parameters()}
        parts = w.split([shape.numel() for shape in shapes.values()])
        given = {name: part.view(shapes[name]) for name, part in zip(shapes, parts)}
        logits = torch.func.functional_call(self.network, given, (self.x,))
        return nn.functional.cross_entropy(logits, self.y)

    def gradient(self, w: Tensor) -> Tensor:
        """Return g(w) = ∇R(w), (d,)."""
        gradient: Tensor = torch.func.grad(self.value)(w)
        return gradient

    def penalty_gradient(self, w: Tensor) -> Tensor:
        """Return ∇½‖∇R(w)‖² = ∇²R(w)·∇R(w) by double backpropagation, (d,)."""
        gradient: Tensor = torch.func.grad(lambda v: self.gradient(v).square().sum() / 2)(w)
        return gradient


def plane_risk(dataset: str, n: int, seed: int) -> Risk:
    """Make R on n points of one of the synthetic sets."""
    x, y = SYNTHETIC[dataset](n, 0.0, np.random.default_rng(seed))
    return Risk(torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y))


def forward_difference(gradient: Field, w: Tensor, a: float) -> Tensor:
    """Return (g(w + a·g(w)) − g(w))/a ≈ ∇½‖∇R‖², error O(a); a < 0 is the backward difference."""
    g = gradient(w)
    return (gradient(w + a * g) - g) / a


def rule_difference(gradient: Field, w: Tensor, a: float, scheme: str) -> Tensor:
    """Return what FD-GR's rule `fdgr_gradient` adds to g at λ = 1: ≈ ∇½‖∇R‖², (d,)."""
    added = fdgr_gradient(_named(gradient), {"w": w}, 1.0, step_size=a, scheme=scheme)["w"]
    return added - gradient(w)


def _named(gradient: Field) -> Callable[..., dict[str, Tensor]]:
    return lambda params, track=True: {"w": gradient(params["w"])}


def flood(
    risk: Risk, w: Tensor, theta: float, step: float, steps: int, momentum: float = 0.0
) -> list[Tensor]:
    """Step w ← w − α·v, v ← momentum·v + sign(R − θ)·∇R: Flooding's full-batch path, `steps` + 1 points."""
    path, v = [w], torch.zeros_like(w)
    for _ in range(steps):
        v = momentum * v + torch.sign(risk.value(path[-1]) - theta) * risk.gradient(path[-1])
        path.append(path[-1] - step * v)
    return path


def identity_rows(risk: Risk, path: Sequence[Tensor], theta: float, step: float) -> pd.DataFrame:
    """Measure how far w_{t+2} is from w_t − α²·(finite difference of step ±α), a row per t.

    `case` compares R(w_t), R(w_{t+1}) with θ. `forward` and `backward` are the largest deviations
    over the coordinates, with differences of step α and −α; `moved` is the largest of |w_{t+2} − w_t|.
    """
    above = [bool(risk.value(w) > theta) for w in path]
    words, lines = {True: "above", False: "below"}, []
    for t in range(len(path) - 2):
        line = {"t": t, "case": f"{words[above[t]]}, {words[above[t + 1]]}"}
        for name, a in (("forward", step), ("backward", -step)):
            expected = path[t] - step**2 * forward_difference(risk.gradient, path[t], a)
            line[name] = float((path[t + 2] - expected).abs().max())
        line["moved"] = float((path[t + 2] - path[t]).abs().max())
        lines.append(line)
    return pd.DataFrame(lines)


def error_rows(risk: Risk, w: Tensor, steps: Sequence[float]) -> pd.DataFrame:
    """Return the relative L2 error of both schemes of FD-GR against double backpropagation, a row per a."""
    exact, lines = risk.penalty_gradient(w), []
    for a in steps:
        line = {"a": a}
        for scheme in FD_SCHEMES:
            error = rule_difference(risk.gradient, w, a, scheme) - exact
            line[scheme] = float(error.norm() / exact.norm())
        lines.append(line)
    return pd.DataFrame(lines).set_index("a")


def two_step_ratio(risk: Risk, w: Tensor, step: float) -> float:
    """Return ⟨w − w₂, p⟩/(α²‖p‖²) for one ascent and one descent of step α, p = ∇½‖∇R‖²: 1 as α → 0.

    Against ∇‖∇R‖² = 2p, as the paper's text has it, half of that.
    """
    moved = step**2 * forward_difference(risk.gradient, w, step)
    p = risk.penalty_gradient(w)
    return float(moved @ p / (step**2 * (p @ p)))


def sam_gap(risk: Risk, w: Tensor, radius: float, a: float) -> float:
    """Return ‖d − s‖/‖s‖ of d = g(w + a·g), eq. (FD) with λ = a, and SAM's s = g(w + radius·g/‖g‖)."""
    sam = sam_gradient(_named(risk.gradient), {"w": w}, radius)["w"]
    return float((risk.gradient(w + a * risk.gradient(w)) - sam).norm() / sam.norm())
