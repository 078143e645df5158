"""SoftAD with cross-entropy against cross-entropy alone, forward and backward, on one thread.

    python tests/benchmarks/criteria.py

The minimum of many short rounds that take turns: load on the machine interrupts long ones.
Limits: 2.2 times at 200 × 10, 1.10 at 8,192 × 1,000.
"""

import time

import torch
from torch import nn

from softadlib import SoftAD

SIZES = ((200, 10, 2000, 2), (8192, 1000, 30, 1))
"""Samples, classes, rounds, calls a round."""


def main() -> None:
    torch.set_num_threads(1)
    criteria = {
        "cross-entropy": nn.CrossEntropyLoss(),
        "SoftAD(0.1)": SoftAD(0.1),
        "SoftAD(0.1, sigma=2)": SoftAD(0.1, sigma=2.0),
    }
    for samples, classes, rounds, calls in SIZES:
        logits = torch.randn(samples, classes, requires_grad=True)
        targets = torch.randint(classes, (samples,))
        least = dict.fromkeys(criteria, float("inf"))
        for _ in range(rounds):
            for name, criterion in criteria.items():
                started = time.perf_counter()
                for _ in range(calls):
                    logits.grad = None
                    criterion(logits, targets).backward()
                least[name] = min(least[name], (time.perf_counter() - started) / calls)
        for name, seconds in least.items():
            ratio = seconds / least["cross-entropy"]
            print(f"{samples} × {classes}  {name:22} {1e6 * seconds:9.1f} µs  {ratio:.2f}")


if __name__ == "__main__":
    main()
