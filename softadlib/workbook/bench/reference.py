"""The study as published: DataLoader, one module, one optimizer, every measure at every epoch.

Written from the paper's description, with none of the library's training code: `softad bench` times
the library against it. Of the methods it knows ERM, SAM and SoftAD.
"""

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

MakeOptimizer = Callable[..., torch.optim.Optimizer]
"""Parameters → the optimizer that trains them."""


def backward(model: nn.Module, x: Tensor, y: Tensor, theta: float | None = None) -> None:
    """Set every gradient to that of the mean loss, or with `theta` of SoftAD's objective at σ = 1."""
    model.zero_grad()
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    if theta is not None:
        losses = torch.sqrt(1 + (losses - theta) ** 2) - 1
    losses.mean().backward()


def sam_gradient(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> None:
    """Set every gradient to that of the mean loss `radius` up the slope (Foret et al., 2021)."""
    backward(model, x, y)
    parameters = list(model.parameters())
    start = [p.detach().clone() for p in parameters]
    norm = torch.nn.utils.get_total_norm(p.grad for p in parameters if p.grad is not None).item()
    with torch.no_grad():
        for p in parameters:
            if p.grad is not None:
                p.add_(p.grad, alpha=radius / (norm + 1e-12))
    backward(model, x, y)
    with torch.no_grad():
        for p, old in zip(parameters, start):
            p.copy_(old)


def optimizers(name: str, lr: float, momentum: float = 0.0) -> MakeOptimizer:
    """Return what makes the optimizer, as plain as PyTorch has it."""
    if name == "adam":
        return lambda params: torch.optim.Adam(params, lr=lr)
    return lambda params: torch.optim.SGD(params, lr=lr, momentum=momentum)


def shuffled_loop(
    method: str,
    model: nn.Module,
    data: Mapping[str, tuple[Tensor, Tensor]],
    epochs: int,
    batch_size: int,
    make: MakeOptimizer,
    knob: float,
    eval_epochs: Collection[int],
) -> list[dict[str, float]]:
    """Train `model` in place on a shuffling DataLoader. Return its measures after `eval_epochs`."""
    optimizer = make(model.parameters())
    loader = DataLoader(TensorDataset(*data["train"]), batch_size, shuffle=True)
    history = []
    for epoch in range(epochs + 1):
        if epoch:
            model.train()
            for x, y in loader:
                if method == "sam":
                    sam_gradient(model, x, y, knob)
                else:
                    backward(model, x, y, knob if method == "softad" else None)
                optimizer.step()
        if epoch in eval_epochs:
            history.append(final_measures(model, data))
    return history


@torch.no_grad()
def final_measures(model: nn.Module, data: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return loss and accuracy of every part, as one batch each, and the norm of all parameters."""
    model.eval()
    measures = {"model_norm": nn.utils.parameters_to_vector(model.parameters()).norm().item()}
    for part, (x, y) in data.items():
        for inputs, targets in DataLoader(TensorDataset(x, y), len(y)):
            logits = model(inputs)
            measures[f"loss_{part}"] = nn.functional.cross_entropy(logits, targets).item()
            hits = logits.max(dim=1).indices == targets
            measures[f"acc_{part}"] = hits.double().mean().item()
    return measures
