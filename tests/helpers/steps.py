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


def closure_from(optimizer, loss):
    """The usual closure, of what `loss()` gives."""

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    return closure


def closure_of(model, optimizer, calls=None):
    """The usual closure; `calls` collects the parameters each evaluation was made at."""

    def loss():
        if calls is not None:
            calls.append([p.detach().clone() for p in model.parameters()])
        return nn.functional.cross_entropy(model(X), Y)

    return closure_from(optimizer, loss)
