"""The study as published: DataLoader, one module, one optimizer, every measure at every epoch.

Our own plain writing of it, in other words than the library's and without any of its code: what the
tests compare the trainer with, and what `softad bench` times it against.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CE = nn.CrossEntropyLoss(reduction="none")


def _soft(losses, theta, sigma=1.0, scale="code", eta=1.0):
    z = (losses - theta) / sigma
    height = torch.sqrt(1 + z**2) - 1
    return eta * theta + (sigma**2 if scale == "code" else sigma) * height.mean()


def _cvar(losses, beta, **_):
    """The least value of the dual, which is at one of the losses."""
    excess = torch.relu(losses[None, :] - losses[:, None]).mean(dim=1)
    return (losses + excess / (1 - beta)).min()


def _chi2(losses, radius, **_):
    """The dual at its minimiser, found by halving an interval."""
    if radius == 0:
        return losses.mean()
    if len(losses) <= 1 + 2 * radius:
        return losses.max()
    values = losses.detach()
    low = min(values.min(), values.mean() - values.std(correction=0) / (2 * radius) ** 0.5)
    high = values.max()
    for _halving in range(200):
        middle = (low + high) / 2
        over = torch.relu(values - middle)
        if (1 + 2 * radius) ** 0.5 * over.mean() > (over**2).mean().sqrt():
            low = middle
        else:
            high = middle
    return low + ((1 + 2 * radius) * (torch.relu(losses - low) ** 2).mean()).sqrt()


def _tilted(losses, t, **_):
    return (t * losses).exp().mean().log() / t if t else losses.mean()


def _mean(losses, knob, **_):
    return losses.mean()


def _adaflood(losses, gamma, aux, **_):
    levels = -torch.log((1 - gamma) * torch.exp(-aux) + gamma)
    return torch.maximum(losses, 2 * levels - losses).mean()


OBJECTIVES: dict[str, Callable[..., torch.Tensor]] = {
    "erm": _mean,
    "flooding": lambda losses, theta, **_: abs(losses.mean() - theta) + theta,
    "iflood": lambda losses, theta, **_: torch.maximum(losses, 2 * theta - losses).mean(),
    "softad": _soft,
    "cvar": _cvar,
    "chi2": _chi2,
    "tilted": _tilted,
    "adaflood": _adaflood,
    **dict.fromkeys(("sam", "asam", "gnp", "fdgr"), _mean),
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


def sam_shifts(model, radius):
    """How far SAM moves each parameter, from the gradients that lie there."""
    norm = sum((p.grad**2).sum() for p in model.parameters()) ** 0.5
    return [radius / (norm.item() + 1e-12) * p.grad for p in model.parameters()]


def asam_shifts(model, radius, variant="official", eta=0.01, **_):
    """How far ASAM does; each parameter divided by its size, then SAM, then multiplied again."""
    sizes = []
    for name, p in model.named_parameters():
        adaptive = variant == "davda54" or "weight" in name
        size = p.detach().abs() if adaptive else torch.tensor(1.0, dtype=p.dtype)
        sizes.append(size + eta if adaptive and variant == "official" else size)
    squares = [(size * p.grad).square().sum() for size, p in zip(sizes, model.parameters())]
    return [
        radius * s * s * p.grad / sum(squares).sqrt() for s, p in zip(sizes, model.parameters())
    ]


def gradient_at(shifts, model, optimizer, x, y, bn_update):
    """Gradients of the mean loss with every parameter shifted, which are taken back afterwards."""
    start = [p.detach().clone() for p in model.parameters()]
    buffers = [b.clone() for b in model.buffers()]
    with torch.no_grad():
        for p, shift in zip(model.parameters(), shifts):
            p.add_(shift)
    backward("erm", model, optimizer, x, y, None, {})
    with torch.no_grad():
        for p, old in zip(model.parameters(), start):
            p.copy_(old)
        if bn_update == "first":
            for b, old in zip(model.buffers(), buffers):
                b.copy_(old)
    return [p.grad.clone() for p in model.parameters()]


def sharp_step(method, model, optimizer, x, y, knob, bn_update="both", **settings):
    """One step of ASAM, GNP or FD-GR: gradients here and there, the real update of their mix."""
    backward("erm", model, optimizer, x, y, None, {})
    here = [p.grad.clone() for p in model.parameters()]
    there = partial(gradient_at, model=model, optimizer=optimizer, x=x, y=y, bn_update=bn_update)
    if method == "asam":
        mixed = there(asam_shifts(model, knob, **settings))
    elif method == "gnp":
        mixed = _gnp(here, there, model, knob, **settings)
    else:
        mixed = _fdgr(here, there, knob, **settings)
    for p, g in zip(model.parameters(), mixed):
        p.grad.copy_(g)
    optimizer.step()


def _gnp(here, there, model, alpha, radius=0.1, mixing="paper", **_):
    climbed = there(sam_shifts(model, radius))
    norm = torch.cat([g.flatten() for g in here]).norm() if mixing == "official" else 1
    return [g / norm + alpha * (far - g / norm) for g, far in zip(here, climbed)]


def _fdgr(here, there, strength, step_size=0.01, scheme="forward", **_):
    ahead = there([step_size * g for g in here])
    back = there([-step_size * g for g in here]) if scheme == "centered" else here
    width = step_size * (2 if scheme == "centered" else 1)
    return [g + strength / width * (a - b) for g, a, b in zip(here, ahead, back)]


def one_epoch(method, model, optimizer, loader, knob, bn_update="both", **settings):
    """One pass over `loader`, in training mode; its third values are AdaFlood's held-out losses."""
    model.train()
    for x, y, *more in loader:
        if method == "sam":
            sam_step(model, optimizer, x, y, knob, bn_update)
        elif method in ("asam", "gnp", "fdgr"):
            sharp_step(method, model, optimizer, x, y, knob, bn_update, **settings)
        else:
            backward(method, model, optimizer, x, y, knob, settings | dict(zip(["aux"], more)))
            optimizer.step()


def plain_loop(method, model, data, orders, batch_size, make, knob, bn_update="both", **settings):
    """Train `model` in place over `orders`, one list of sample positions per epoch.

    `data`: {"train": (x, y), …}, AdaFlood's held-out losses a third; `make`: parameters → optimizer.
    Returns the final measures.
    """
    optimizer = make(model.parameters())
    for order in orders:
        loader = DataLoader(TensorDataset(*data["train"]), batch_size, sampler=order)
        one_epoch(method, model, optimizer, loader, knob, bn_update, **settings)
    return final_measures(model, data)


def optimizers(name, lr, momentum=0.0):
    """Parameters → the optimizer, as plain as PyTorch has it."""
    if name == "adam":
        return lambda params: torch.optim.Adam(params, lr=lr)
    return lambda params: torch.optim.SGD(params, lr=lr, momentum=momentum)


def shuffled_loop(method, model, data, epochs, batch_size, make, knob, measure_at=None, **settings):
    """Train `model` in place on a shuffling DataLoader; all measures before and after each epoch.

    `measure_at` may name the epochs to measure at instead. Returns the measures in order.
    """
    optimizer = make(model.parameters())
    loader = DataLoader(TensorDataset(*data["train"]), batch_size, shuffle=True)
    history = []
    for epoch in range(epochs + 1):
        if epoch:
            one_epoch(method, model, optimizer, loader, knob, **settings)
        if measure_at is None or epoch in measure_at:
            history.append(final_measures(model, data))
    return history


@torch.no_grad()
def final_measures(model, data):
    """Loss and accuracy of every part, as one batch of a DataLoader each, and the norm of all parameters."""
    model.eval()
    measures = {"model_norm": nn.utils.parameters_to_vector(model.parameters()).norm().item()}
    for part, (x, y, *_) in data.items():
        for inputs, targets in DataLoader(TensorDataset(x, y), len(y)):
            logits = model(inputs)
            measures[f"loss_{part}"] = nn.CrossEntropyLoss()(logits, targets).item()
            hits = logits.max(dim=1).indices == targets
            measures[f"acc_{part}"] = hits.double().mean().item()
    return measures
