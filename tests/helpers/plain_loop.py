"""Every method of the library in one plain loop: one network, one optimizer of PyTorch, one order of samples.

This is the file to read to see what a method does. It is written without the library's mathematics, in other
words, and the tests hold the library's engines and optimizers against it:

- `plain_loop` is the training: epochs, batches, one step per batch.
- `OBJECTIVES` are the methods that change what is minimised: from the losses of a batch's samples to one number.
  A registered method that is not among them has its registered objective here.
- `sharp_step` and `msam_step` are the methods that change where the gradient is taken, such as SAM.

Nothing here is fast, and nothing is checked.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from softadlib.methods import METHODS

CE = nn.CrossEntropyLoss(reduction="none")
SHARP = ("sam", "asam", "gnp", "fdgr")
"""Methods with two or more gradients per step."""


# The training


def plain_loop(method, model, data, seed, recipe, knob, bn_update="both", **settings):
    """Train `model` in place and return its measures at every epoch; epoch 0 is before any step.

    Args:
        method: its name, as in `softadlib.methods.METHODS`.
        model: a network, with its initial weights.
        data: {"train": (inputs, targets), "val": …, "test": …}.
        seed: of the order of samples.
        recipe: a `softadlib.trainer.recipe.Recipe`: optimizer, learning rate, batch size, epochs.
        knob: the method's hyperparameter: θ, a radius, …
        bn_update: "first" leaves batch norm's running statistics as the first pass of a step made them.
        settings: what the method takes beside its knob.
    """
    decay = knob if method == "decay" else 0.0
    optimizer = torch_optimizer(recipe, model.parameters(), decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs)
    n = len(data["train"][1])
    measured = [final_measures(model, data)]
    for epoch in range(1, recipe.epochs + 1):
        model.train()
        order = np.random.default_rng([seed, epoch]).permutation(n)
        for batch in np.split(order, range(recipe.batch_size, n, recipe.batch_size)):
            x, y = (values[batch] for values in data["train"])
            if method in SHARP:
                sharp_step(method, model, optimizer, x, y, knob, bn_update, **settings)
            elif method == "msam":
                msam_step(model, optimizer, x, y, knob)
            else:
                backward(method, model, optimizer, x, y, knob, settings)
                if decay and recipe.optimizer == "sgd":
                    shrink(model, optimizer, decay)
                optimizer.step()
        if recipe.lr_schedule == "cosine":
            schedule.step()
        measured.append(final_measures(model, data))
    return measured


def torch_optimizer(recipe, parameters, decay=0.0):
    """Return PyTorch's own optimizer. Adam with `decay` is AdamW."""
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
    if decay:
        return torch.optim.AdamW(parameters, recipe.lr, weight_decay=decay)
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimizer]
    return make(parameters, recipe.lr, weight_decay=recipe.weight_decay)


@torch.no_grad()
def shrink(model, optimizer, decay):
    """Decoupled weight decay, for SGD: weights × (1 − learning rate × decay)."""
    for p in model.parameters():
        p -= optimizer.param_groups[0]["lr"] * decay * p


@torch.no_grad()
def final_measures(model, data):
    """Return loss and accuracy of every part, each as one batch, and the norm of all parameters."""
    model.eval()
    measures = {}
    for part, (x, y, *_) in data.items():
        logits = model(x)
        measures[f"loss_{part}"] = nn.functional.cross_entropy(logits, y).item()
        measures[f"acc_{part}"] = (logits.argmax(1) == y).double().mean().item()
    measures["model_norm"] = nn.utils.parameters_to_vector(model.parameters()).norm().item()
    return measures


# Gradients and steps


def backward(method, model, optimizer, x, y, knob, settings):
    """Set every gradient to that of the method's objective on one batch."""
    optimizer.zero_grad()
    if method == "smoothing":
        nn.CrossEntropyLoss(label_smoothing=knob)(model(x), y).backward()
    else:
        objective = OBJECTIVES.get(method) or METHODS[method].objective
        objective(CE(model(x), y), knob, **settings).backward()


def sam_shifts(model, radius):
    """How far SAM moves each parameter: `radius` along the gradient."""
    norm = sum((p.grad**2).sum() for p in model.parameters()) ** 0.5
    return [radius / (norm.item() + 1e-12) * p.grad for p in model.parameters()]


def asam_shifts(model, radius, variant="official", eta=0.01, **_):
    """How far ASAM moves each parameter: SAM for weights divided by their sizes, then multiplied again."""
    sizes = []
    for name, p in model.named_parameters():
        adaptive = variant == "davda54" or "weight" in name
        size = p.detach().abs() if adaptive else torch.tensor(1.0, dtype=p.dtype)
        sizes.append(size + eta if adaptive and variant == "official" else size)
    squares = [(size * p.grad).square().sum() for size, p in zip(sizes, model.parameters())]
    norm = sum(squares).sqrt() + (1e-12 if variant == "davda54" else 1e-16)
    return [radius * s * s * p.grad / norm for s, p in zip(sizes, model.parameters())]


def gradient_at(shifts, model, optimizer, x, y, bn_update):
    """Return the gradients of the mean loss with every parameter shifted; then shift them back."""
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
    """One step of SAM, ASAM, GNP or FD-GR: gradients at both points, and a step along their mix."""
    backward("erm", model, optimizer, x, y, None, {})
    first = [p.grad for p in model.parameters()]
    shifted = partial(gradient_at, model=model, optimizer=optimizer, x=x, y=y, bn_update=bn_update)
    if method == "sam":
        mixed = shifted(sam_shifts(model, knob))
    elif method == "asam":
        mixed = shifted(asam_shifts(model, knob, **settings))
    elif method == "gnp":
        mixed = gnp_mix(first, shifted, model, knob, **settings)
    else:
        mixed = fdgr_mix(first, shifted, knob, **settings)
    for p, g in zip(model.parameters(), mixed):
        p.grad = g
    optimizer.step()


def gnp_mix(first, shifted, model, alpha, radius=0.1, mixing="paper", **_):
    """(1 − α) × the gradient + α × that of SAM."""
    climbed = shifted(sam_shifts(model, radius))
    norm = torch.cat([g.flatten() for g in first]).norm() + 1e-12 if mixing == "official" else 1
    return [g / norm + alpha * (far - g / norm) for g, far in zip(first, climbed)]


def fdgr_mix(first, shifted, strength, step_size=0.01, scheme="forward", **_):
    """The gradient + λ × its finite difference along itself."""
    ahead = shifted([step_size * g for g in first])
    back = shifted([-step_size * g for g in first]) if scheme == "centered" else first
    width = step_size * (2 if scheme == "centered" else 1)
    return [g + strength / width * (a - b) for g, a, b in zip(first, ahead, back)]


def msam_step(model, optimizer, x, y, radius):
    """One step of MSAM: the gradient is taken `radius` ahead, where the momentum leads."""
    average = "momentum_buffer" if isinstance(optimizer, torch.optim.SGD) else "exp_avg"
    momentum = [optimizer.state.get(p, {}).get(average) for p in model.parameters()]
    if any(m is None for m in momentum):
        backward("erm", model, optimizer, x, y, None, {})
    else:
        norm = torch.cat([m.flatten() for m in momentum]).norm()
        shifts = [-radius / (norm + 1e-12) * m for m in momentum]
        gradient_at(shifts, model, optimizer, x, y, "both")
    optimizer.step()


# Objectives: (losses of the samples of a batch, knob, **settings) → the number that is minimised


def softad(losses, theta, sigma=1.0, scale="code", eta=1.0):
    """η θ + σ² times the mean of √(1 + z²) − 1, z = (ℓ − θ)/σ; σ in place of σ² at scale "text"."""
    z = (losses - theta) / sigma
    height = torch.sqrt(1 + z**2) - 1
    return eta * theta + (sigma**2 if scale == "code" else sigma) * height.mean()


def softad_width(losses, sigma, theta=0.01):
    """The mean of √(σ² + (ℓ − θ)²) − σ: SoftAD whose width is the hyperparameter."""
    return (torch.sqrt(sigma**2 + (losses - theta) ** 2) - sigma).mean()


def softad_logcosh(losses, theta):
    """The mean of ln cosh(ℓ − θ)."""
    return torch.log(torch.cosh(losses - theta)).mean()


def softad_no_ascent(losses, theta):
    """SoftAD of losses that are raised to θ where they are lower."""
    return (torch.sqrt(1 + (torch.clamp(losses, min=theta) - theta) ** 2) - 1).mean()


def cvar(losses, beta, **_):
    """The mean of the largest losses: the minimum of the dual, which is at one of the losses."""
    excess = torch.relu(losses[None, :] - losses[:, None]).mean(dim=1)
    return (losses + excess / (1 - beta)).min()


def chi2(losses, radius, **_):
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


def tilted(losses, t, **_):
    """ln of the mean of e^(tℓ), divided by t."""
    return (t * losses).exp().mean().log() / t if t else losses.mean()


def mean(losses, knob, **_):
    """The mean loss."""
    return losses.mean()


def focal(losses, gamma, **_):
    """The mean of (1 − p)^γ ℓ, p the probability of the right class."""
    p = torch.exp(-losses)
    return ((1 - p) ** gamma * losses).mean()


OBJECTIVES: dict[str, Callable[..., torch.Tensor]] = {
    "erm": mean,
    "flooding": lambda losses, theta, **_: abs(losses.mean() - theta) + theta,
    "iflood": lambda losses, theta, **_: torch.maximum(losses, 2 * theta - losses).mean(),
    "softad": softad,
    "cvar": cvar,
    "chi2": chi2,
    "tilted": tilted,
    "focal": focal,
    "softad-width": softad_width,
    "softad-logcosh": softad_logcosh,
    "softad-no-ascent": softad_no_ascent,
    "iflood-no-ascent": lambda losses, theta: torch.clamp(losses, min=theta).mean(),
    "msam": mean,
    **dict.fromkeys((*SHARP, "decay"), mean),
}
