"""Falling through θ: a sample whose loss a fast step carries far below θ climbs back slowly."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from scipy.integrate import solve_ivp
from torch import nn

from softadlib._validation import choose
from softadlib.functional import phi
from softadlib.losses import SoftAD
from softadlib.models import build
from softadlib.trainer.device import numerics


def weight(losses: np.ndarray | float, theta: float) -> np.ndarray:
    """Return SoftAD's weight φ(ℓ − θ) of a sample's gradient at σ = 1."""
    return np.asarray(phi(torch.as_tensor(losses, dtype=torch.float64) - theta))


def climb(loss: float, theta: float, times: np.ndarray) -> np.ndarray:
    """Follow gradient flow on the margin of one sample of two classes from a loss below θ.

    ℓ(m) = log(1 + e^−m), dm/dt = −φ(ℓ − θ) ℓ′(m), hence dℓ/dt = −φ(ℓ − θ) (1 − e^−ℓ)².

    Args:
        loss: ℓ at time 0, in nats.
        theta: θ in nats.
        times: increasing times (n,) from 0 on, in units of 1 / learning rate.

    Returns:
        ℓ at these times, (n,).
    """

    def slope(_: float, log: np.ndarray) -> np.ndarray:
        now = np.exp(log)
        return np.asarray(-weight(now, theta) * np.expm1(-now) ** 2 / now)

    span = (0.0, float(times[-1]))
    flow = solve_ivp(
        slope, span, [np.log(loss)], t_eval=times, method="LSODA", rtol=1e-8, atol=1e-8
    )
    return np.asarray(np.exp(flow.y[0]))


def escape_time(loss: float, theta: float) -> float:
    """Return 1 / (ℓ₀ |φ(−θ)|), the time in which a loss ℓ₀ far below θ climbs back to it.

    For small ℓ, dℓ/dt = |φ(−θ)| ℓ², so 1/ℓ falls in a straight line.
    """
    return float(1 / (loss * abs(weight(0.0, theta))))


def train_digits(
    theta: float, epochs: Sequence[int], *, optimizer: str = "sgd", lr: float = 0.1, seed: int = 0
) -> pd.DataFrame:
    """Train mlp1x1000 with SoftAD on 1,000 of scikit-learn's digits in batches of 100, in float64.

    Returns columns epoch, mean, median, and `held`, the share of training losses above θ/2, after the
    given epochs, in evaluation mode. SGD has momentum 0.9.
    """
    from sklearn.datasets import load_digits

    choose("optimizer", optimizer, ("sgd", "adam"))
    x, y = load_digits(return_X_y=True)
    inputs, targets = torch.from_numpy(x[:1000] / 16), torch.from_numpy(y[:1000])
    model = build("mlp1x1000", (64,), 10, seed).double()
    criterion, weights = SoftAD(theta), list(model.parameters())
    stepper: torch.optim.Optimizer = torch.optim.SGD(weights, lr, momentum=0.9)
    if optimizer == "adam":
        stepper = torch.optim.Adam(weights, lr)
    order = torch.Generator().manual_seed(seed)
    lines = []
    with numerics(torch.device("cpu"), "fp32"):  # one thread: such layers are too small for more
        for epoch in range(1, max(epochs) + 1):
            model.train()
            for batch in torch.randperm(1000, generator=order).split(100):
                stepper.zero_grad()
                loss: torch.Tensor = criterion(model(inputs[batch]), targets[batch])
                loss.backward()
                stepper.step()
            if epoch in epochs:
                with torch.no_grad():
                    logits = model.eval()(inputs)
                    losses = nn.functional.cross_entropy(logits, targets, reduction="none")
                held = (losses > theta / 2).double().mean()
                lines.append((epoch, float(losses.mean()), float(losses.median()), float(held)))
    return pd.DataFrame(lines, columns=["epoch", "mean", "median", "held"])
