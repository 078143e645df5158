"""Proposition 6: gradients from values alone, along random directions, and the smoothed objective."""

import math

import numpy as np

from softadlib.workbook.experiments.theory.problems import Function, norms


def directions(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw uniformly from the unit sphere, `shape` = (…, d)."""
    normal = rng.standard_normal(shape)
    return np.asarray(normal / norms(normal))


def zeroth_gradient(
    f: Function, w: np.ndarray, direction: np.ndarray, radius: float, points: int = 1
) -> np.ndarray:
    """Return (d/r)·f(w + rU)·U at w (…, d) along unit vectors U (…, d): Prop. 6's gradient from values alone.

    Unbiased for the gradient of f averaged over the ball of radius r (Flaxman et al. 2004).
    `points` = 2 takes (d/2r)(f(w + rU) − f(w − rU))U, of the same mean and far smaller variance.
    """
    value = f(w + radius * direction)
    if points == 2:
        value = (value - f(w - radius * direction)) / 2
    return np.asarray(w.shape[-1] / radius * value[..., None] * direction)


def zeroth_gamma(
    steps: int, d: int, radius: float, lipschitz: float, v: float, rule: str = "corrected"
) -> float:
    """Return the clipping radius T^(1/4)·(d/r)√V, or under "paper" T^(1/4)·√(dL/r).

    The paper puts a smoothness constant where Prop. 3 has a second moment: its γ is so small
    that it clips every gradient to one length, and their mean then says nothing of f.
    """
    ratio = d / radius
    size = ratio * lipschitz if rule == "paper" else ratio**2 * v
    return float(steps**0.25 * math.sqrt(size))


def smoothed_gradient(f: Function, w: np.ndarray, radius: float, nodes: int = 128) -> np.ndarray:
    """Return (d/r)·E f(w + rU)U on the circle (d = 2) by `nodes` equal angles, (…, 2) → (…, 2)."""
    angle = 2 * np.pi * (np.arange(nodes) + 0.5) / nodes
    u = np.stack([np.cos(angle), np.sin(angle)], -1)
    values = f(w[..., None, :] + radius * u)
    return np.asarray(2 / radius * (values[..., None] * u).mean(-2))


def smoothed_value(f: Function, w: np.ndarray, radius: float, nodes: int = 32) -> np.ndarray:
    """Return E f(w + rV), V uniform on the disc, by `nodes` rings of equal area × angles, (…, 2) → (…,)."""
    rings = np.sqrt((np.arange(nodes) + 0.5) / nodes)
    angle = 2 * np.pi * (np.arange(nodes) + 0.5) / nodes
    v = rings[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    return np.asarray(f(w[..., None, None, :] + radius * v).mean((-1, -2)))
