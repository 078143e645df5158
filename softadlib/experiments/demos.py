"""The small computations behind the demonstration figures: pure functions, float64 throughout."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from softadlib.data.splits import PARTS, Splits, from_arrays
from softadlib.data.synthetic import SYNTHETIC
from softadlib.methods import get_method
from softadlib.models import build
from softadlib.results.schema import COLUMNS
from softadlib.training.engines.base import RunBatch, TrainConfig
from softadlib.training.engines.vmap import VmapEngine

Sizes = tuple[int, int, int]
SIZES: Sizes = (100, 100, 20000)
"""Training, validation and test points of the paper's problems on the plane."""


def smoothed_abs(x: np.ndarray, sigma: float, scale: str = "code") -> np.ndarray:
    """σ²ρ(x/σ) under "code", σρ(x/σ) under "text", elementwise: one sample's criterion at θ = 0.

    As σ → ∞ "code" tends to x²/2; as σ → 0 "text" tends to |x|.
    """
    objective = get_method("softad").objective
    one = torch.vmap(lambda loss: objective(loss, 0.0, sigma=sigma, scale=scale))
    return one(torch.as_tensor(x, dtype=torch.float64)[:, None]).numpy()


def gradient_weights(
    method: str, losses: Tensor, theta: float, sigma: float = 1.0, scale: str = "text"
) -> Tensor:
    """n·∂objective/∂ℓ_i, (n,) → (n,): what a method multiplies each sample's gradient by.

    By automatic differentiation of the registered objective; positive descends, negative ascends.
    1 for ERM, sign(mean ℓ − θ) for Flooding, φ((ℓ−θ)/σ) for SoftAD under "text".
    """
    chosen = get_method(method)
    settings = {k: v for k, v in (("sigma", sigma), ("scale", scale)) if k in chosen.settings}
    return len(losses) * torch.func.grad(
        lambda values: chosen.objective(values, theta, **settings)
    )(losses)


def quadratic(x: np.ndarray) -> np.ndarray:
    """f(x) = x²/2, elementwise; f′(x) = x."""
    return np.square(x) / 2


def transformed_gradient(method: str, x: np.ndarray, theta: float, sigma: float) -> np.ndarray:
    """φ((f(x)−θ)/σ)·f′(x) for f(x) = x²/2, elementwise, (m,) → (m,).

    φ is 1 for "erm", sign for "flooding", ρ′ for "softad". Holland & Nakatani (2024), Fig. 1.
    """
    at = torch.as_tensor(x, dtype=torch.float64)
    alone = torch.vmap(lambda loss: gradient_weights(method, loss, theta, sigma))
    return (alone(at[:, None].square() / 2)[:, 0] * at).numpy()


def descend(
    method: str, start: float, theta: float, sigma: float, step: float, steps: int
) -> np.ndarray:
    """x ← x − α·φ((f(x)−θ)/σ)·f′(x) for f(x) = x²/2, `steps` times: (steps + 1,), `start` first."""
    path = [np.array([start], dtype=float)]
    for _ in range(steps):
        path.append(path[-1] - step * transformed_gradient(method, path[-1], theta, sigma))
    return np.concatenate(path)


def squared_distances(w: np.ndarray, points: np.ndarray) -> np.ndarray:
    """ℓ(w; z_i) = ‖w − z_i‖², (d,), (n, d) → (n,); their mean is least at the mean of the points."""
    return np.square(np.asarray(w) - points).sum(1)


def mean_updates(
    method: str,
    w: np.ndarray,
    points: np.ndarray,
    theta: float,
    step: float,
    sigma: float = 1.0,
    scale: str = "text",
) -> np.ndarray:
    """−α·(weight of z_i)·(w − z_i), (d,), (n, d) → (n, d); the update of w is their mean.

    Weights at ℓ_i = ‖w − z_i‖². w − z is half the gradient of that loss: the paper's arrows
    use it, so α = 0.75 there is 0.375 for the loss as stated. Holland & Nakatani (2024), Fig. 3.
    """
    losses = torch.as_tensor(squared_distances(w, points), dtype=torch.float64)
    weights = gradient_weights(method, losses, theta, sigma, scale).numpy()
    return -step * weights[:, None] * (np.asarray(w) - points)


def _draw(dataset: str, rng: np.random.Generator, sizes: Sizes) -> dict:
    return {part: SYNTHETIC[dataset](n, 0.0, rng) for part, n in zip(PARTS, sizes)}


def linear_rows(
    dataset: str,
    methods: Sequence[str],
    *,
    theta: float,
    sigma: float = 1.0,
    scale: str = "code",
    seed: int,
    sizes: Sizes = SIZES,
    epochs: int = 200,
    every: int = 1,
    lr: float = 0.1,
    dtype: torch.dtype = torch.float64,
) -> pd.DataFrame:
    """Full-batch SGD of a linear classifier, every method from the same weights on the same data.

    One row per method and epoch 0, `every`, 2·`every` …; the columns are `metrics.COLUMNS`. `theta`
    and `sigma` in nats; `sizes` of train, val and test, drawn in this order from `default_rng(seed)`.
    Holland & Nakatani (2024), App. C.2.
    """
    splits = from_arrays([_draw(dataset, np.random.default_rng(seed), sizes)], classes=2)
    splits = splits.to("cpu", dtype)
    recipe, rows = TrainConfig("sgd", lr, batch_size=sizes[0], epochs=epochs), []
    for method in methods:
        knob = theta if get_method(method).knob else math.nan
        network = build("linear", (2,), 2, seed).to(dtype)
        settings = {"sigma": sigma, "scale": scale}
        batch = RunBatch(get_method(method), [network], splits, [0], [knob], settings)
        stack = VmapEngine(batch)
        for epoch, measured in stack.train(recipe, [seed], range(0, epochs + 1, every)).items():
            facts = {"dataset": dataset, "method": method, "trial": 0, "knob": knob, "epoch": epoch}
            rows.append(facts | {name: values[0] for name, values in measured.items()})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def linear_sensitivity(
    method: str,
    thetas: Sequence[float],
    sigmas: Sequence[float] = (1.0,),
    scales: Sequence[str] = ("code",),
    *,
    seed: int,
    dataset: str = "gaussian",
    repeats: int = 1,
    sizes: Sizes = SIZES,
    epochs: int = 200,
    lr: float = 0.1,
    stack: int = 250,
) -> pd.DataFrame:
    """The linear classifier on fresh data at every (θ, σ): one row per run, final epoch.

    Columns method, scale, theta, sigma, repeat, loss_test, acc_test. Cell (i, j) and repeat k draw
    data and weights from `SeedSequence(seed, spawn_key=(i, j, k))`, the same for every scale, so
    scales are compared in pairs. A method without σ takes the default single column and ignores it.
    `stack` runs are trained side by side; it bounds memory, not results.
    """
    cells = [
        (i, j, k) for i in range(len(thetas)) for j in range(len(sigmas)) for k in range(repeats)
    ]
    recipe, frames = TrainConfig("sgd", lr, batch_size=sizes[0], epochs=epochs), []
    for start in range(0, len(cells), stack):
        chunk = cells[start : start + stack]
        splits, networks, seeds = _fresh(dataset, chunk, seed, sizes)
        theta = np.array([thetas[i] for i, _, _ in chunk])
        sigma = np.array([sigmas[j] for _, j, _ in chunk])
        for scale in scales:
            settings = {"sigma": torch.as_tensor(sigma), "scale": scale}
            own = range(len(chunk))
            batch = RunBatch(get_method(method), networks, splits, own, theta.tolist(), settings)
            measured = VmapEngine(batch).train(recipe, seeds, [epochs])[epochs]
            facts = {"method": method, "scale": scale, "theta": theta, "sigma": sigma}
            facts |= {"repeat": [k for _, _, k in chunk]}
            frames.append(pd.DataFrame(facts | {m: measured[m] for m in ("loss_test", "acc_test")}))
    return pd.concat(frames, ignore_index=True)


def _fresh(
    dataset: str, cells: Sequence[tuple[int, ...]], seed: int, sizes: Sizes
) -> tuple[Splits, list[torch.nn.Module], list[int]]:
    """Data, linear networks and shuffling seeds of the cells, each from its own seed sequence."""
    sequences = [np.random.SeedSequence(seed, spawn_key=cell) for cell in cells]
    trials = [_draw(dataset, np.random.default_rng(sequence), sizes) for sequence in sequences]
    seeds = [int(sequence.generate_state(1)[0]) for sequence in sequences]
    networks = [build("linear", (2,), 2, s).to(torch.float64) for s in seeds]
    return from_arrays(trials, classes=2).to("cpu", torch.float64), networks, seeds
