"""The method at a glance: what weight a loss gets, and where the losses end up after training."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import nn

from softadlib.analysis.plotting.curves import PALETTE
from softadlib.data.synthetic import SYNTHETIC
from softadlib.experiments.pointwise import transform
from softadlib.losses import ERM, Flooding, IFlood, SoftAD
from softadlib.losses.base import Criterion
from softadlib.methods import METHODS
from softadlib.models import build

CRITERIA: dict[str, Callable[[float], Criterion]] = {
    "erm": lambda theta: ERM(),
    "flooding": Flooding,
    "iflood": IFlood,
    "softad": SoftAD,
}
"""Method → its criterion at θ; in the order in which they are drawn, SoftAD last and on top."""
DASHES: dict[str, Any] = {
    "erm": "-",
    "flooding": (0, (1, 1.2)),
    "iflood": (0, (5, 2)),
    "softad": "-",
}


def final_losses(dataset: str, theta: float, *, epochs: int, seed: int) -> pd.DataFrame:
    """Train mlp4x500 on 100 points of a synthetic set with each criterion, Adam, batches of 50.

    Returns one row per training sample and one column per method: its final cross-entropy in nats,
    in evaluation mode, as everything that the workbook reports. float64; the same initial weights
    and order of samples for every method.
    """
    x, y = SYNTHETIC[dataset](100, 0.0, np.random.default_rng(seed))
    inputs, targets = torch.from_numpy(x).double(), torch.from_numpy(y)
    columns = {}
    for method, criterion_at in CRITERIA.items():
        model = build("mlp4x500", tuple(inputs.shape[1:]), 2, seed).double()
        criterion = criterion_at(theta)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        order = torch.Generator().manual_seed(seed)
        for _ in range(epochs):
            for batch in torch.randperm(len(inputs), generator=order).split(50):
                optimizer.zero_grad()
                criterion(model(inputs[batch]), targets[batch]).backward()
                optimizer.step()
        with torch.no_grad():
            logits = model.eval()(inputs)
        columns[method] = nn.functional.cross_entropy(logits, targets, reduction="none").numpy()
    return pd.DataFrame(columns)


def concentration(losses: pd.DataFrame, theta: float, within: float = 0.1) -> pd.DataFrame:
    """Return per method: the share of losses within `within` of θ, quartiles, and the share below θ/2."""
    table = pd.DataFrame(
        {
            f"within {within:g} of θ": (losses - theta).abs().le(within).mean(),
            "lower quartile": losses.quantile(0.25),
            "upper quartile": losses.quantile(0.75),
            "below θ/2": losses.lt(theta / 2).mean(),
        }
    )
    return table.rename(index={name: METHODS[name].label for name in table.index})


def reading(losses: pd.DataFrame, theta: float, within: float = 0.1) -> str:
    """Say in one sentence how much of each method's losses lie within `within` of θ, in order."""
    shares = (losses - theta).abs().le(within).mean().sort_values(ascending=False, kind="stable")
    parts = [f"{METHODS[name].label} {share:.0%}" for name, share in shares.items()]
    return f"Training losses within {within:g} nats of θ = {theta:g}: {', '.join(parts)}."


def draw_weights(ax: Axes, theta: float, methods: Sequence[str] = tuple(CRITERIA)) -> None:
    """Draw the weight of a sample's gradient against its loss; of Flooding, against the batch's mean loss."""
    x = np.linspace(0, 2, 801)
    for method in methods:
        label = METHODS[method].label + (" (mean of the batch)" if method == "flooding" else "")
        style: dict[str, Any] = {"color": PALETTE[method], "linestyle": DASHES[method]}
        ax.plot(x, transform(method, x, theta)[1], label=label, linewidth=2, **style)
    ax.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    ax.axvline(theta, color="0.5", linestyle=":", linewidth=1.2, zorder=0)
    ax.set(xlabel="loss (nats)", ylabel="weight of the gradient")
    ax.text(theta, -1.02, " θ", color="0.35")
    ax.legend(fontsize="small", loc="center right", bbox_to_anchor=(1, 0.32))


def draw_losses(ax: Axes, losses: pd.DataFrame, theta: float) -> None:
    """Draw the share of training samples whose final loss is at most x, one line per method."""
    for method in losses:
        values = np.sort(losses[method].to_numpy())
        shares = np.arange(1, len(values) + 1) / len(values)
        style: dict[str, Any] = {"color": PALETTE[method], "linestyle": DASHES[method]}
        ax.step(values, shares, where="post", label=METHODS[method].label, linewidth=2, **style)
    ax.axvline(theta, color="0.5", linestyle=":", linewidth=1.2, zorder=0)
    ax.set(
        xscale="log", xlabel="final training loss (nats)", ylabel="share of samples", ylim=(0, 1.02)
    )
    ax.text(theta, 0.02, " θ", color="0.35")
