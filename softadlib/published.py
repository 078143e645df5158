"""The study as published: DataLoader, one module, one optimizer, every measure at every epoch.

Our own plain writing of it, in other words than the library's and without any of its code: what the
tests compare the trainer with, and what `softad bench` times it against.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CE = nn.CrossEntropyLoss(reduction="none")


def _soft(losses, theta, sigma=1.0, scale="code"):
    z = (losses - theta) / sigma
    height = torch.sqrt(1 + z**2) - 1
    return theta + (sigma**2 if scale == "code" else sigma) * height.mean()


OBJECTIVES = {
    "erm": lambda losses, knob, **_: losses.mean(),
    "flooding": lambda losses, theta, **_: abs(losses.mean() - theta) + theta,
    "iflood": lambda losses, theta, **_: torch.maximum(losses, 2 * theta - losses).mean(),
    "softad": _soft,
    "sam": lambda losses, knob, **_: losses.mean(),
}


def backward(method, model, optimizer, x, y, knob, settings):
    optimizer.zero_grad()
    OBJECTIVES[method](CE(model(x), y), knob, **settings).backward()


def sam_step(model, optimizer, x, y, radius, bn_update):
    """Climb, go back, the real update."""
    backward("sam", model, optimizer, x, y, radius, {})
    start = [p.detach().clone() for p in model.parameters()]
    buffers = [b.clone() for b in model.buffers()]
    norm = sum((p.grad**2).sum() for p in model.parameters()) ** 0.5
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=radius / (norm.item() + 1e-12))
    backward("sam", model, optimizer, x, y, radius, {})
    with torch.no_grad():
        for p, old in zip(model.parameters(), start):
            p.copy_(old)
        if bn_update == "first":
            for b, old in zip(model.buffers(), buffers):
                b.copy_(old)
    optimizer.step()


def one_epoch(method, model, optimizer, loader, knob, bn_update="both", **settings):
    """One pass over `loader`, in training mode."""
    model.train()
    for x, y in loader:
        if method == "sam":
            sam_step(model, optimizer, x, y, knob, bn_update)
        else:
            backward(method, model, optimizer, x, y, knob, settings)
            optimizer.step()


def plain_loop(method, model, data, orders, batch_size, make, knob, bn_update="both", **settings):
    """Train `model` in place over `orders`, one list of sample positions per epoch.

    `data`: {"train": (x, y), …}; `make`: parameters → optimizer. Returns the final measures.
    """
    optimizer = make(model.parameters())
    for order in orders:
        loader = DataLoader(TensorDataset(*data["train"]), batch_size, sampler=order)
        one_epoch(method, model, optimizer, loader, knob, bn_update, **settings)
    return final_measures(model, data)


def shuffled_loop(method, model, data, epochs, batch_size, make, knob, **settings):
    """Train `model` in place on a shuffling DataLoader; all measures before and after each epoch."""
    optimizer = make(model.parameters())
    loader = DataLoader(TensorDataset(*data["train"]), batch_size, shuffle=True)
    history = [final_measures(model, data)]
    for _ in range(epochs):
        one_epoch(method, model, optimizer, loader, knob, **settings)
        history.append(final_measures(model, data))
    return history


@torch.no_grad()
def final_measures(model, data):
    """Loss and accuracy of every part, as one batch of a DataLoader each, and the norm of all parameters."""
    model.eval()
    measures = {"model_norm": nn.utils.parameters_to_vector(model.parameters()).norm().item()}
    for part, (x, y) in data.items():
        for inputs, targets in DataLoader(TensorDataset(x, y), len(y)):
            logits = model(inputs)
            measures[f"loss_{part}"] = nn.CrossEntropyLoss()(logits, targets).item()
            hits = logits.max(dim=1).indices == targets
            measures[f"acc_{part}"] = hits.double().mean().item()
    return measures
