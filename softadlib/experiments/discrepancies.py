"""What the paper says, what its code did, what is done here: the register, and arithmetic on it."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import combinations_with_replacement

import numpy as np
import pandas as pd
import torch
from torch import nn

from softadlib.data.synthetic import gaussian
from softadlib.experiments import sharpness
from softadlib.experiments.pointwise import gradient_weights, transform
from softadlib.experiments.theory import problems, runs
from softadlib.experiments.theory.algorithms import momentum_bounds
from softadlib.models import mlp
from softadlib.results.selection import select
from softadlib.training.engines.base import TrainConfig

PARTS = ("theory", "training", "tables")
BASES = (
    "computed here",
    "read in the authors' code",
    "read in their stored outputs",
    "read in the paper",
)
"""What a row rests on."""


def register() -> pd.DataFrame:
    """Read all rows, indexed by number: part, subject, paper, code, here, where (a path), basis."""
    with (
        files("softadlib.experiments").joinpath("discrepancies.csv").open(encoding="utf-8") as file
    ):
        return pd.read_csv(file, index_col="row")


def as_markdown(rows: pd.DataFrame) -> str:
    """Return a table of rows of the register: what paper, code and workbook have, and what that rests on."""
    head = ["", "", "paper", "code", "here", "known how"]
    cells = [
        [str(number), row.subject, row.paper, row.code, f"{row.here} (`{row['where']}`)", row.basis]
        for number, row in rows.iterrows()
    ]
    lines = [head, [":--"] * len(head), *cells]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def summary(checks: Mapping[int, bool]) -> pd.DataFrame:
    """Return the register's subjects with what each rests on, and the result of its check."""
    words = {True: "confirmed", False: "NOT CONFIRMED", None: "–"}
    rows = register()[["subject", "basis"]]
    return rows.assign(check=[words[checks.get(i)] for i in rows.index])


def grid_samples(
    grid: Sequence[float], trials: int, mean: float, sd: float, digits: int = 2
) -> list[tuple[float, ...]]:
    """List the multisets of `trials` grid values whose mean and SD (ddof = 1) round to the printed ones."""
    half, samples = 0.5 * 10.0**-digits + 1e-9, []
    for values in combinations_with_replacement(sorted(grid), trials):
        near = abs(np.mean(values) - mean) <= half
        if near and abs(np.std(values, ddof=1) - sd) <= half:
            samples.append(tuple(float(round(v, 6)) for v in values))
    return samples


def samples_by_trials(
    cells: Iterable[tuple[float, float]], grid: Sequence[float], trials: Iterable[int]
) -> pd.DataFrame:
    """Count the multisets that give each printed "mean (sd)", a column per number of trials."""
    return pd.DataFrame(
        {n: [len(grid_samples(grid, n, *cell)) for cell in cells] for n in trials},
        index=[f"{mean:.2f} ({sd:.2f})" for mean, sd in cells],
    )


def weights(losses: Sequence[float], theta: float, sigma: float) -> pd.DataFrame:
    """Return what multiplies ∇ℓ, a row per loss: SoftAD in both conventions at σ and at 1, iFlood, |ℓ − θ|.

    The last is what the paper's remark would make of iFlood; "Flooding" is of the loss alone.
    """
    values, columns = torch.as_tensor(losses, dtype=torch.float64), {}
    for scale in ("code", "text"):
        for s in (sigma, 1.0):
            softad = gradient_weights("softad", values, theta, s, scale)
            columns[f"SoftAD, {scale}, σ = {s:g}"] = softad.numpy()
    columns["iFlood"] = gradient_weights("iflood", values, theta).numpy()
    columns["Flooding"] = transform("flooding", values.numpy(), theta)[1]
    columns["|ℓ − θ|"] = (values - theta).abs().numpy()
    return pd.DataFrame(columns, index=pd.Index(losses, name="ℓ"))


def theory_numbers(seed: int = 7) -> pd.Series:
    """Compute rows 4 and 5 in one number each: the two-step identity, SAM, and the three propositions."""
    risk = sharpness.plane_risk("gaussian", 100, seed)
    w = risk.start(0)
    line, start = problems.hardest_iflood(0.5)
    second = runs.iflood_rows(line, 0.5, start, [1], runs=1, seed=seed).iloc[0]
    rough = problems.Distances(problems.cloud(20, 2, seed), radius=5.0)
    third = runs.zeroth_rows(
        rough, 1.0, (-1.2, 1.0), [100], radius=0.1, rule="paper", runs=5, seed=seed
    )
    coefficient = momentum_bounds(10**4, 0, 1, 0, 0.1)["corrected"] * 10
    numbers = {
        "two steps / α²∇½‖∇R‖²": sharpness.two_step_ratio(risk, w, 1e-3),
        "a = λ = r against SAM": sharpness.sam_gap(risk, w, 0.05, 0.05),
        "Prop. 3: coefficient of L_AD by eq. (20) at T = 10⁴": coefficient,
        "Prop. 4: measured / stated at T = 1": second["mean"] / second["stated"],
        "Prop. 6: share clipped by the paper's γ": third["clipped"].iloc[0],
    }
    return pd.Series(numbers)


def tie_example() -> dict[str, float]:
    """Return what each tie rule selects of θ = 0.06 and 0.57 at equal validation accuracy."""
    case = {"dataset": "gaussian", "label_noise": 0.0, "method": "softad", "trial": 0, "epoch": 1}
    runs = pd.DataFrame([{**case, "knob": knob, "acc_val": 1.0} for knob in (0.06, 0.57)])
    return {rule: float(select(runs, rule)["knob"].item()) for rule in ("largest", "smallest")}


def adam_betas() -> tuple[float, float]:
    """Return the betas of the protocols' Adam."""
    betas: tuple[float, float] = (
        TrainConfig("adam", 1e-3, 50, 1).build([torch.zeros(1)]).defaults["betas"]
    )
    return betas


def flip_count(n: int, noise: float, seed: int = 0) -> int:
    """Count how many of the n labels of the two Gaussians the noise flips."""
    clean, noisy = (gaussian(n, q, np.random.default_rng(seed))[1] for q in (0.0, noise))
    return int((clean != noisy).sum())


def rescaled_gradient(factor: float, width: int = 100, n: int = 200, seed: int = 0) -> float:
    """Return the relative L2 change of a network's gradient when its inputs in [0, 1] are multiplied.

    One bias-free layer of `width` and batch norm, as for FashionMNIST, at its initial weights.
    """
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 64, generator=draw, dtype=torch.float64)
    y = torch.randint(10, (n,), generator=draw)
    network = mlp((64,), 10, width=width, depth=1).double()
    for p in network.parameters():
        if p.ndim == 2:
            p.data = torch.randn(p.shape, generator=draw, dtype=p.dtype) / p.shape[1] ** 0.5
    gradients = []
    for scale in (1.0, factor):
        loss = nn.functional.cross_entropy(network(scale * x), y)
        parts = torch.autograd.grad(loss, tuple(network.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    return float((gradients[1] - gradients[0]).norm() / gradients[0].norm())


def norm_shares(network: nn.Module) -> pd.Series:
    """Return the squared L2 norm of all parameters by kind: matrices, batch norm's γ, biases and β."""
    kinds = {"matrices": 0.0, "batch norm γ": 0.0, "biases": 0.0}
    for name, p in network.named_parameters():
        kind = "matrices" if p.ndim > 1 else "batch norm γ" if name.endswith("weight") else "biases"
        kinds[kind] += float(p.detach().square().sum())
    return pd.Series(kinds)
