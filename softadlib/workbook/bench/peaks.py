"""What the device can do at its best: operations and bytes per second, and the step's own products."""

import functools
import os
import time
from collections.abc import Callable

import torch
from torch import Tensor

from softadlib.training.device import deterministic_math, synchronize
from softadlib.training.engines.mlp_layers import linear

STEP_SAMPLES, STEP_WIDTH = 50, 500
"""Batch and width of the perceptron on the synthetic sets."""


@functools.cache
def peak_gflops(device: torch.device) -> float:
    """Return GFLOP/s of a square float32 product at its best: all cores of a CPU, or one accelerator.

    Times one thread and multiplies by the cores, because a busy machine would wait for itself.
    """
    on_cpu = device.type == "cpu"
    size = 1024 if on_cpu else 8192
    with deterministic_math(device, "fp32"):
        a, b = (torch.randn(size, size, device=device) for _ in range(2))
        products = [lambda: a @ b, lambda: linear(a, b)] if on_cpu else [lambda: a @ b]
        seconds = min(_seconds(device, product) for product in products)
    return 2 * size**3 / seconds / 1e9 * ((os.cpu_count() or 1) if on_cpu else 1)


@functools.cache
def step_products() -> dict[str, float]:
    """Return GFLOP/s of one core in the three products of a 500 × 500 layer, by library.

    They are the forward pass and the gradients in the input and the weight of 50 samples, in float32.
    The published loop takes MKL. The engine for perceptrons takes oneDNN, but for the gradients of
    large weights on Intel's processors.
    """
    n, width = STEP_SAMPLES, STEP_WIDTH
    x, g, weight = torch.randn(n, width), torch.randn(n, width), torch.randn(width, width)

    def gflops(product: Callable[[Tensor, Tensor], Tensor]) -> float:
        def layer() -> None:
            product(x, weight)
            product(g, weight.mT)
            product(g.mT, x.mT)

        return 6 * n * width**2 / _seconds(torch.device("cpu"), layer, rounds=50) / 1e9

    with deterministic_math(torch.device("cpu"), "fp32"):
        return {"mkl": gflops(torch.nn.functional.linear), "onednn": gflops(linear)}


@functools.cache
def peak_gbps(device: torch.device) -> float:
    """Return GB/s read and written in a copy larger than any cache; by one thread on a CPU."""
    with deterministic_math(device, "fp32"):
        a, b = (torch.ones(2**25, device=device) for _ in range(2))
        return 2 * a.numel() * a.element_size() / _seconds(device, lambda: b.copy_(a)) / 1e9


def _seconds(device: torch.device, work: Callable[[], object], rounds: int = 5) -> float:
    """Return the shortest of a few rounds, after one that does not count."""
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])
