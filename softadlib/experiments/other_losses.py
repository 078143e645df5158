"""SoftAD, Flooding and iFlood around losses other than cross-entropy: small data, a plain loop, rows."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from torch import Tensor, nn

from softadlib.analysis.plotting.curves import PALETTE, legend_handles
from softadlib.losses.flooding import ERM, CalibrationWarning, Flooding, IFlood, SoftAD
from softadlib.losses.levels import Levels
from softadlib.training.evaluation import model_norm

Part = tuple[Tensor, Tensor]
PerSample = Callable[[Tensor, Tensor], Tensor]
"""(input, target) → one value per sample."""
CRITERIA = {"flooding": Flooding, "iflood": IFlood, "softad": SoftAD}
PARTS = ("train", "val", "test")


def rmse(output: Tensor, target: Tensor) -> Tensor:
    """Return √mean (f − y)², in standard deviations of the training targets."""
    return (output - target).square().mean().sqrt()


def mae(output: Tensor, target: Tensor) -> Tensor:
    """Return mean |f − y|, in standard deviations of the training targets."""
    return (output - target).abs().mean()


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of rows whose greatest score is the target's."""
    return (output.argmax(1) == target).double().mean()


def _split(
    x: np.ndarray, y: np.ndarray, seed: int, sizes: tuple[int, int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    order = np.random.default_rng(seed).permutation(len(x))
    return [(x[part], y[part]) for part in np.split(order, np.cumsum(sizes))]


def diabetes(seed: int, sizes: tuple[int, int] = (150, 100)) -> dict[str, Part]:
    """Load scikit-learn's diabetes set, (n, 10) → (n, 1), standardised by its training part.

    `sizes` of the training and validation part; the test part is what remains of 442.
    """
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    parts = _split(x, y, seed, sizes)
    x, y = parts[0]
    standardised = {}
    for name, (u, v) in zip(PARTS, parts):
        u, v = (u - x.mean(0)) / x.std(0), (v - y.mean()) / y.std()
        standardised[name] = torch.as_tensor(u), torch.as_tensor(v)[:, None]
    return standardised


def digits(seed: int, sizes: tuple[int, int] = (200, 300)) -> dict[str, Part]:
    """Load scikit-learn's digits, (n, 64) in [0, 1] → (n,) classes; the test part remains of 1,797."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    parts = _split(images, labels, seed, sizes)
    return {
        name: (torch.as_tensor(x) / 16, torch.as_tensor(y).long())
        for name, (x, y) in zip(PARTS, parts)
    }


def network(inputs: int, outputs: int, seed: int, width: int = 64) -> nn.Module:
    """Make one hidden layer, weights by `seed`, drawn in float64: float32 draws differ between CPUs."""
    wide = torch.float64
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, last = nn.Linear(inputs, width, dtype=wide), nn.Linear(width, outputs, dtype=wide)
    return nn.Sequential(first, nn.ReLU(), last)


def train(net: nn.Module, criterion: nn.Module, part: Part, epochs: int, lr: float) -> nn.Module:
    """Train by full-batch Adam, as any PyTorch loop would use a criterion; return `net`."""
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    x, y = part
    for _ in range(epochs):
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
    return net


@dataclass(frozen=True)
class Task:
    """One loss on one data set, and what its users would look at."""

    base: nn.Module
    """(output, target) → one loss per sample."""
    data: Callable[[int], dict[str, Part]]
    outputs: int
    score: Callable[[Tensor, Tensor], Tensor]

    @property
    def sign(self) -> int:
        """1 where a larger score is better, −1 where a smaller one is."""
        return 1 if self.score is accuracy else -1


TASKS = {
    "squared error": Task(nn.MSELoss(reduction="none"), diabetes, 1, rmse),
    "Huber": Task(nn.HuberLoss(reduction="none"), diabetes, 1, mae),
    "hinge": Task(nn.MultiMarginLoss(reduction="none"), digits, 10, accuracy),
    "label smoothing": Task(
        nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), digits, 10, accuracy
    ),
}
"""The losses of the notebook `other_losses`: PyTorch's own."""


@torch.no_grad()
def measure(net: nn.Module, task: Task, parts: Mapping[str, Part]) -> dict[str, float]:
    """Return mean base loss and score of each part, the gap (test minus train base loss), the norm."""
    row = {}
    for name, (x, y) in parts.items():
        output = net(x)
        row[f"loss_{name}"] = task.base(output, y).mean().item()
        row[f"score_{name}"] = task.score(output, y).item()
    gap = row["loss_test"] - row["loss_train"]
    return row | {"gap": gap, "norm": model_norm(dict(net.named_parameters())).item()}


def sweep(
    thetas: Mapping[str, Sequence[float]], trials: int, epochs: int, lr: float
) -> pd.DataFrame:
    """Train every method at every θ of every loss in `thetas`: a row per run, columns as in `measure`.

    A trial has one split and one start for all methods. ERM stands once a trial, with θ NaN. Values
    of θ above ln 2 are meant here, so `CalibrationWarning` is silenced.
    """
    rows = []
    for name, grid in thetas.items():
        task = TASKS[name]
        settings = [("erm", math.nan)] + [(m, t) for m in CRITERIA for t in grid]
        for trial in range(trials):
            parts = task.data(trial)
            for method, theta in settings:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", CalibrationWarning)
                    criterion_type = CRITERIA.get(method)
                    criterion = (
                        criterion_type(theta, base=task.base) if criterion_type else ERM(task.base)
                    )
                net = network(parts["train"][0].shape[1], task.outputs, trial)
                train(net, criterion, parts["train"], epochs, lr)
                key = {"loss": name, "method": method, "trial": trial, "theta": theta}
                rows.append(key | measure(net, task, parts))
    return pd.DataFrame(rows)


def selected(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the run of best validation score per loss, method and trial; the smallest θ among equals."""
    signs = rows["loss"].map({name: task.sign for name, task in TASKS.items()})
    ranked = rows.assign(rank=-signs * rows["score_val"]).sort_values(["rank", "theta"])
    return ranked.drop(columns="rank").drop_duplicates(["loss", "method", "trial"]).sort_index()


def claims(runs: pd.DataFrame) -> pd.DataFrame:
    """Count the trials of `selected` runs in which SoftAD does what the paper says of it, per loss: "k/n"."""
    counts = {}
    for name, part in runs.groupby("loss", sort=False):
        sign, table = TASKS[name].sign, part.set_index(["method", "trial"]).unstack("trial")
        score, gap, norm = sign * table["score_test"], table["gap"], table["norm"]
        holds = {
            "SoftAD's test score beats ERM's": score.loc["softad"] > score.loc["erm"],
            "Flooding's test score beats ERM's": score.loc["flooding"] > score.loc["erm"],
            "SoftAD's test score beats Flooding's": score.loc["softad"] > score.loc["flooding"],
            "SoftAD's gap is below ERM's": gap.loc["softad"] < gap.loc["erm"],
            "SoftAD's gap is the smallest": gap.idxmin() == "softad",
            "SoftAD's norm is below ERM's": norm.loc["softad"] < norm.loc["erm"],
        }
        counts[name] = {claim: f"{yes.sum()}/{len(yes)}" for claim, yes in holds.items()}
    return pd.DataFrame(counts)


def by_level(rows: pd.DataFrame, levels: Mapping[str, Levels]) -> pd.DataFrame:
    """Return training accuracy of iFlood's and SoftAD's runs, per loss and interval of θ between its levels."""
    tables = {}
    for name, level in levels.items():
        part = rows[(rows["loss"] == name) & rows["method"].isin(["iflood", "softad"])]
        edges = [-math.inf, level.calibrated_below, level.uniform, math.inf]
        labels = ["below `calibrated below`", "between", "above equal scores"]
        interval = pd.cut(part["theta"], edges, right=False, labels=labels)
        accuracy = part.groupby(interval.astype(object).rename(None), sort=False)["score_train"]
        order = [label for label in labels if label in accuracy.groups]
        statistics = {"runs": "size", "least": "min", "mean": "mean", "greatest": "max"}
        tables[name] = accuracy.agg(**statistics).loc[order]
    return pd.concat(tables)


LEVEL_STYLES = (":", "-.", "--")
"""Line styles of a loss's marked levels, from the lowest."""


def loss_panels(
    rows: pd.DataFrame, scores: Mapping[str, str], marks: Mapping[str, Mapping[str, float]]
) -> Figure:
    """Draw rows of `sweep`: mean over trials, band from min to max, ERM's mean dashed.

    `scores`: loss → axis label of its test score. `marks`: loss → named levels of θ, drawn upright.
    """
    panels = {"score_test": None, "gap": "gap, test − train loss", "norm": "model norm"}
    size: dict[str, Any] = {"figsize": (9.5, 2.5 * len(scores) + 0.4), "squeeze": False}
    fig: Figure
    fig, axes = plt.subplots(len(scores), len(panels), **size)
    for line, (loss, score) in zip(axes, scores.items()):
        part = rows[rows["loss"] == loss]
        swept, erm = part[part["theta"].notna()], part[part["theta"].isna()]
        for ax, (column, label) in zip(line, panels.items()):
            hue = {"hue": "method", "palette": PALETTE, "legend": False}
            dots = {"marker": "o", "markersize": 4, "errorbar": ("pi", 100)}
            sns.lineplot(swept, x="theta", y=column, ax=ax, **hue, **dots)
            ax.axhline(erm[column].mean(), color=PALETTE["erm"], linestyle="--", linewidth=1.2)
            ax.set(xscale="log", xlabel="θ", ylabel=label or score)
            ax.xaxis.set_major_locator(FixedLocator(sorted(swept["theta"].unique())))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            for style, (name, level) in zip(LEVEL_STYLES, marks.get(loss, {}).items()):
                ax.axvline(level, color="0.35", linestyle=style, linewidth=1.2, label=name)
        line[0].set_title(loss, loc="left")
        if marks.get(loss):
            line[0].legend(fontsize="x-small", frameon=True, edgecolor="none", framealpha=1)
    handles = legend_handles(rows.assign(epoch=0))
    handles[0].set_linestyle("--")
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return fig


def _gaussian(sd: float, points: int = 4001) -> tuple[Tensor, Tensor]:
    """Return values of Gaussian noise, evenly spaced to 8 sd, and their probabilities."""
    z = torch.linspace(-8, 8, points, dtype=torch.float64)
    density = torch.exp(-z.square() / 2)
    return sd * z, density / density.sum()


def bias(criterion: PerSample, sd: float = 1.0, limit: float = 3.0) -> float:
    """Return the b in [0, `limit`·sd] that minimises E criterion(b + u, 0) for noise u of N(0, sd²).

    What a regression does at a point where it has all data: 0 is the conditional mean. `criterion`
    takes (input, target) and gives one value per sample (`reduction="none"`).
    """
    noise, weight = _gaussian(sd)
    shifts = torch.linspace(0, limit * sd, 301, dtype=torch.float64)
    input = shifts[:, None] + noise
    risk = (criterion(input, torch.zeros_like(input)) * weight).sum(1)
    return float(shifts[risk.argmin()])


def unbiased_below(
    criterion_at: Callable[[float], PerSample], sd: float = 1.0, limit: float = 20.0
) -> float:
    """Return the θ from which the conditional mean is no minimum of E criterion_at(θ)(b + u, 0), u ~ N(0, sd²).

    There the second derivative in b, E f(u)·(u²/sd² − 1)/sd², changes sign. Squared error:
    iFlood sd² times the median of χ² with 3 degrees of freedom, 2.366; SoftAD 3·sd² as σ → ∞.
    """
    noise, weight = _gaussian(sd)
    curvature_weight = weight * ((noise / sd).square() - 1)

    def curvature(theta: float) -> float:
        return float((criterion_at(theta)(noise, torch.zeros_like(noise)) * curvature_weight).sum())

    low, high = 0.0, limit * sd**2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if curvature(middle) > 0 else (low, middle)
    return low
