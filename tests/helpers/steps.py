"""A small network with its data, and the closures that optimizers of several passes step with."""

import numpy as np
import torch
from torch import nn

X = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32))
Y = torch.tensor([0, 1, 2] * 4)


def network(batch_norm=False):
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(6)] if batch_norm else []
    return nn.Sequential(nn.Linear(4, 6), *norm, nn.Tanh(), nn.Linear(6, 3))


def loss_of(model):
    """Cross-entropy of the data, in the precision of the model."""
    return nn.functional.cross_entropy(model(X.to(model[0].weight.dtype)), Y)


def weights(model):
    """A copy of all parameters, in one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def closure_from(optimizer, loss, scaler=None):
    """The usual closure, of what `loss()` gives."""

    def closure():
        optimizer.zero_grad()
        value = loss()
        (value if scaler is None else scaler.scale(value)).backward()
        return value

    return closure


def closure_of(model, optimizer, calls=None, scaler=None):
    """The usual closure; `calls` collects the parameters each evaluation was made at."""

    def loss():
        if calls is not None:
            calls.append([p.detach().clone() for p in model.parameters()])
        return loss_of(model)

    return closure_from(optimizer, loss, scaler)


def step(model, optimizer, times=1):
    """Make some steps; return the weights after them."""
    for _ in range(times):
        optimizer.step(closure_of(model, optimizer))
    return weights(model)
