"""The training loop as published: DataLoader, one module, one optimizer, every measure at every epoch.

Written from the paper's description with none of the library's training code: `benchmarks/speed.py`
times the library against it. It knows ERM, SAM and SoftAD.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from helpers.plain_loop import final_measures

Data = Mapping[str, tuple[Tensor, Tensor]]
"""Inputs and targets of train, val and test."""


def gradient(model: nn.Module, x: Tensor, y: Tensor, theta: float | None = None) -> None:
    """Set every gradient to that of the mean loss, or with `theta` of SoftAD's objective at σ = 1."""
    model.zero_grad()
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    if theta is not None:
        losses = torch.sqrt(1 + (losses - theta) ** 2) - 1
    losses.mean().backward()


def sam_gradient(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> None:
    """Set every gradient to that of the mean loss `radius` up the slope (Foret et al., 2021)."""
    gradient(model, x, y)
    parameters = list(model.parameters())
    start = [p.detach().clone() for p in parameters]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters]).item()
    with torch.no_grad():
        for p in parameters:
            p.add_(p.grad, alpha=radius / (norm + 1e-12))
    gradient(model, x, y)
    with torch.no_grad():
        for p, old in zip(parameters, start):
            p.copy_(old)


def train(
    model: nn.Module,
    data: Data,
    method: str,
    knob: float,
    *,
    epochs: int,
    batch_size: int,
    optimizer: torch.optim.Optimizer,
    measured: bool,
) -> list[dict[str, float]]:
    """Train `model` in place; where `measured`, return its measures before and after every epoch."""
    loader = DataLoader(TensorDataset(*data["train"]), batch_size, shuffle=True)
    history = [final_measures(model, data)] if measured else []
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            if method == "sam":
                sam_gradient(model, x, y, knob)
            else:
                gradient(model, x, y, knob if method == "softad" else None)
            optimizer.step()
        if measured:
            history.append(final_measures(model, data))
    return history
