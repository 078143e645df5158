"""Every method in a plain loop: DataLoader, one module, one optimizer.

Written in other words than the library's and without its mathematics: the engines' rows are compared
with these.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from softadlib.workbook.bench.reference import final_measures

CE = nn.CrossEntropyLoss(reduction="none")


def _soft(losses, theta, sigma=1.0, scale="code", eta=1.0):
    z = (losses - theta) / sigma
    height = torch.sqrt(1 + z**2) - 1
    return eta * theta + (sigma**2 if scale == "code" else sigma) * height.mean()


def _cvar(losses, beta, **_):
    """The minimum of the dual, which is at one of the losses."""
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


def sam_shifts(model, radius):
    """How far SAM moves each parameter, from its gradient."""
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
    return [p.grad for p in model.parameters()]


def sharp_step(method, model, optimizer, x, y, knob, bn_update="both", **settings):
    """One step of SAM, ASAM, GNP or FD-GR: gradients at both points, the real update of their mix."""
    backward("erm", model, optimizer, x, y, None, {})
    first = [p.grad for p in model.parameters()]
    shifted = partial(gradient_at, model=model, optimizer=optimizer, x=x, y=y, bn_update=bn_update)
    if method == "sam":
        mixed = shifted(sam_shifts(model, knob))
    elif method == "asam":
        mixed = shifted(asam_shifts(model, knob, **settings))
    elif method == "gnp":
        mixed = _gnp(first, shifted, model, knob, **settings)
    else:
        mixed = _fdgr(first, shifted, knob, **settings)
    for p, g in zip(model.parameters(), mixed):
        p.grad = g
    optimizer.step()


def _gnp(first, shifted, model, alpha, radius=0.1, mixing="paper", **_):
    climbed = shifted(sam_shifts(model, radius))
    norm = torch.cat([g.flatten() for g in first]).norm() if mixing == "official" else 1
    return [g / norm + alpha * (far - g / norm) for g, far in zip(first, climbed)]


def _fdgr(first, shifted, strength, step_size=0.01, scheme="forward", **_):
    ahead = shifted([step_size * g for g in first])
    back = shifted([-step_size * g for g in first]) if scheme == "centered" else first
    width = step_size * (2 if scheme == "centered" else 1)
    return [g + strength / width * (a - b) for g, a, b in zip(first, ahead, back)]


def one_epoch(method, model, optimizer, loader, knob, bn_update="both", **settings):
    """One pass over `loader`, in training mode; its third values are AdaFlood's held-out losses."""
    model.train()
    for x, y, *more in loader:
        if method in ("sam", "asam", "gnp", "fdgr"):
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
    return final_measures(model, {part: values[:2] for part, values in data.items()})
