"""Section 5: SoftAD around another loss: a regression with the squared error, a classifier with the hinge loss.

Small networks on data drawn here, every θ from the same weights. In float64, seconds each.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from softadlib import ERM, SoftAD
from softadlib._validation import choose
from softadlib.workbook.data.synthetic import sinusoid

NOISE = 0.3
"""Standard deviation of the regression's targets around their mean; 0.09 is the least squared error."""
LABEL_NOISE = 0.1
"""Fraction of flipped labels of the classification, in training and test."""
N_TRAIN = 40
N_TEST = 2000


@dataclass(frozen=True)
class Problem:
    """Inputs and targets of a training and a test part, the base loss, and the network's outputs."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    base: nn.Module
    outputs: int


def regression(rng: np.random.Generator) -> Problem:
    """Draw y = x₁ + N(0, 0.3²) with ten standard normal inputs; the base is the squared error."""

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = rng.standard_normal((count, 10))
        y = x[:, :1] + NOISE * rng.standard_normal((count, 1))
        return torch.from_numpy(x), torch.from_numpy(y)

    return Problem(draw(N_TRAIN), draw(N_TEST), nn.MSELoss(), outputs=1)


def classification(rng: np.random.Generator) -> Problem:
    """Draw the sinusoid with 10 % of all labels flipped; the base is torch's multi-class hinge loss."""

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x, y = sinusoid(count, LABEL_NOISE, rng)
        return torch.from_numpy(x).double(), torch.from_numpy(y)

    return Problem(draw(N_TRAIN), draw(N_TEST), nn.MultiMarginLoss(), outputs=2)


PROBLEMS = {"squared": regression, "hinge": classification}


def network(inputs: int, outputs: int, seed: int) -> nn.Module:
    """Make a perceptron with one hidden layer of 100 units, its weights from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(inputs, 100), nn.ReLU(), nn.Linear(100, outputs)]
    return nn.Sequential(*layers).double()


def train(model: nn.Module, criterion: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Take full-batch steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()


def another_loss_rows(
    loss: str,
    thetas: Iterable[float],
    *,
    trials: int = 5,
    steps: int = 300,
) -> pd.DataFrame:
    """Train ERM and SoftAD at every θ on a loss that is not cross-entropy: a row per run.

    Args:
        loss: "squared" or "hinge".
        thetas: thresholds of SoftAD in the unit of the loss.
        trials: repetitions, each with its own data and weights.
        steps: full-batch steps of Adam.

    Columns: `method`, `theta` (NaN for ERM), `trial`, and the mean loss after the last step, `loss_train`
    and `loss_test`; of the hinge loss `acc_test` too. Raises UserError for another loss.
    """
    choose("loss", loss, PROBLEMS)
    rows = []
    for trial in range(trials):
        problem = PROBLEMS[loss](np.random.default_rng([0, trial]))
        x, y = problem.train
        criteria: list[tuple[float, nn.Module]] = [(np.nan, ERM(base=problem.base))]
        criteria += [(theta, SoftAD(theta, base=problem.base)) for theta in thetas]
        for theta, criterion in criteria:
            model = network(x.shape[1], problem.outputs, trial)
            train(model, criterion, x, y, steps)
            method = "erm" if np.isnan(theta) else "softad"
            row = {"method": method, "theta": theta, "trial": trial}
            rows.append(row | measures(model, problem))
    return pd.DataFrame(rows)


@torch.no_grad()
def measures(model: nn.Module, problem: Problem) -> dict[str, float]:
    """Return the mean base loss on both parts, and the accuracy on the test part of a classifier."""
    x, y = problem.test
    scores = model(x)
    found = {
        "loss_train": problem.base(model(problem.train[0]), problem.train[1]).item(),
        "loss_test": problem.base(scores, y).item(),
    }
    if problem.outputs > 1:
        found["acc_test"] = (scores.argmax(1) == y).double().mean().item()
    return found
