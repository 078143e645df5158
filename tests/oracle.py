"""Training as anyone would write it: DataLoader, one module, one optimizer. Shares no code with us.

The formulas are written out again here, in other words than the library's.
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


def _backward(method, model, optimizer, x, y, knob, settings):
    optimizer.zero_grad()
    OBJECTIVES[method](CE(model(x), y), knob, **settings).backward()


def _sam_step(model, optimizer, x, y, radius, bn_update):
    """Climb, go back, the real update."""
    _backward("sam", model, optimizer, x, y, radius, {})
    start = [p.detach().clone() for p in model.parameters()]
    buffers = [b.clone() for b in model.buffers()]
    norm = sum((p.grad**2).sum() for p in model.parameters()) ** 0.5
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=radius / (norm.item() + 1e-12))
    _backward("sam", model, optimizer, x, y, radius, {})
    with torch.no_grad():
        for p, old in zip(model.parameters(), start):
            p.copy_(old)
        if bn_update == "first":
            for b, old in zip(model.buffers(), buffers):
                b.copy_(old)
    optimizer.step()


def plain_loop(method, model, data, orders, batch_size, make, knob, bn_update="both", **settings):
    """Train `model` in place over `orders`, one list of sample positions per epoch.

    `data`: {"train": (x, y), …}; `make`: parameters → optimizer. Returns the final measures.
    """
    optimizer = make(model.parameters())
    model.train()
    for order in orders:
        for x, y in DataLoader(TensorDataset(*data["train"]), batch_size, sampler=order):
            if method == "sam":
                _sam_step(model, optimizer, x, y, knob, bn_update)
            else:
                _backward(method, model, optimizer, x, y, knob, settings)
                optimizer.step()
    return final_measures(model, data)


@torch.no_grad()
def final_measures(model, data):
    """Loss and accuracy of every part in one batch each, and the norm of all parameters."""
    model.eval()
    measures = {"model_norm": nn.utils.parameters_to_vector(model.parameters()).norm().item()}
    for part, (x, y) in data.items():
        logits = model(x)
        measures[f"loss_{part}"] = nn.CrossEntropyLoss()(logits, y).item()
        measures[f"acc_{part}"] = (logits.max(dim=1).indices == y).double().mean().item()
    return measures
