"""Every method in a plain loop: one module, one optimizer of torch, one sample order.

Written in other words than the library's and without its mathematics: the engines' rows are compared
with these.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

CE = nn.CrossEntropyLoss(reduction="none")
SHARP = ("sam", "asam", "gnp", "fdgr")


def _soft(losses, theta, sigma=1.0, scale="code", eta=1.0):
    z = (losses - theta) / sigma
    height = torch.sqrt(1 + z**2) - 1
    return eta * theta + (sigma**2 if scale == "code" else sigma) * height.mean()


def _width(losses, sigma, theta=0.01):
    return (torch.sqrt(sigma**2 + (losses - theta) ** 2) - sigma).mean()


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


def _focal(losses, gamma, **_):
    p = torch.exp(-losses)
    return ((1 - p) ** gamma * losses).mean()


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
    "focal": _focal,
    "softad-width": _width,
    "msam": _mean,
    **dict.fromkeys((*SHARP, "decay"), _mean),
}


def backward(method, model, optimizer, x, y, knob, settings):
    optimizer.zero_grad()
    if method == "smoothing":
        nn.CrossEntropyLoss(label_smoothing=knob)(model(x), y).backward()
    else:
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


def msam_step(model, optimizer, x, y, radius):
    """One step of MSAM: the gradient is taken `radius` along the step's direction, which momentum has."""
    average = "momentum_buffer" if isinstance(optimizer, torch.optim.SGD) else "exp_avg"
    momentum = [optimizer.state.get(p, {}).get(average) for p in model.parameters()]
    if any(m is None for m in momentum):
        backward("erm", model, optimizer, x, y, None, {})
    else:
        norm = torch.cat([m.flatten() for m in momentum]).norm()
        shifts = [-radius / (norm + 1e-12) * m for m in momentum]
        gradient_at(shifts, model, optimizer, x, y, "both")
    optimizer.step()


def torch_optimizer(recipe, parameters, decay=0.0):
    """torch's own; with `decay` AdamW in place of Adam."""
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
    if decay:
        return torch.optim.AdamW(parameters, recipe.lr, weight_decay=decay)
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimizer]
    return make(parameters, recipe.lr, weight_decay=recipe.weight_decay)


def plain_loop(method, model, data, seed, recipe, knob, bn_update="both", **settings):
    """Train `model` in place by a `Recipe`; return its measures at every epoch, 0 included.

    `data`: {"train": (x, y), …}, of AdaFlood the held-out losses a third.
    """
    decay = knob if method == "decay" else 0.0
    optimizer = torch_optimizer(recipe, model.parameters(), decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs)
    measured, n = [final_measures(model, data)], len(data["train"][1])
    for epoch in range(1, recipe.epochs + 1):
        model.train()
        order = np.random.default_rng([seed, epoch]).permutation(n)
        for batch in np.split(order, range(recipe.batch_size, n, recipe.batch_size)):
            x, y, *aux = (values[batch] for values in data["train"])
            if method in SHARP:
                sharp_step(method, model, optimizer, x, y, knob, bn_update, **settings)
                continue
            if method == "msam":
                msam_step(model, optimizer, x, y, knob)
                continue
            backward(method, model, optimizer, x, y, knob, settings | dict(zip(["aux"], aux)))
            if decay and recipe.optimizer == "sgd":
                with torch.no_grad():
                    for p in model.parameters():
                        p -= optimizer.param_groups[0]["lr"] * decay * p
            optimizer.step()
        if recipe.lr_schedule == "cosine":
            schedule.step()
        measured.append(final_measures(model, data))
    return measured


@torch.no_grad()
def final_measures(model, data):
    """Loss and accuracy of every part, as one batch each, and the norm of all parameters."""
    model.eval()
    measures = {}
    for part, (x, y, *_) in data.items():
        logits = model(x)
        measures[f"loss_{part}"] = nn.functional.cross_entropy(logits, y).item()
        measures[f"acc_{part}"] = (logits.argmax(1) == y).double().mean().item()
    measures["model_norm"] = nn.utils.parameters_to_vector(model.parameters()).norm().item()
    return measures
