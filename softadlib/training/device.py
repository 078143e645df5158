"""The machine: which device, how much memory is free, how fast it is at its best."""

import contextlib
import functools
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from softadlib._validation import UserError, choose
from softadlib.training.engines.mlp_cpu import affine


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA, then Apple's MPS, then the CPU; any other name must be there."""
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    choose("device", name, ["auto", *there])
    if name == "auto":
        return torch.device(next(d for d in ("cuda", "mps", "cpu") if there[d]))
    if not there[name]:
        raise UserError(
            f"device {name!r} is not available here; choose from auto, "
            f"{', '.join(d for d, ok in there.items() if ok)}"
        )
    return torch.device(name)


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be had on `device`; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    # what is available, not what is free: the rest is files that give way
    kib = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(size) * 1024 for size in kib), None)


@contextlib.contextmanager
def numerics(device: torch.device, precision: str, threads: int = 1) -> Iterator[None]:
    """`threads` on a CPU, TF32 on CUDA only where `precision` asks for it; put back afterwards.

    On a CPU the order of additions, and with it the last bit, depends on the thread count.
    """
    if precision == "tf32" and device.type != "cuda":
        raise UserError("precision tf32 needs a CUDA GPU; choose fp32 or bf16, or another device")
    before_threads = torch.get_num_threads()
    conv = torch.backends.cudnn.conv  # type: ignore[attr-defined]  # put on by its module's class
    switches = (torch.backends.cuda.matmul, conv)
    before = [s.fp32_precision for s in switches]
    try:
        if device.type == "cpu":
            torch.set_num_threads(threads)
        for switch in switches:
            switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        torch.set_num_threads(before_threads)
        for switch, old in zip(switches, before):
            switch.fp32_precision = old


@functools.cache
def peak_gflops(device: torch.device) -> float:
    """GFLOP/s of a square float32 product at its best: all cores of a CPU, or one accelerator.

    One thread is timed and multiplied by the cores, so that a busy machine does not wait for itself.
    """
    on_cpu = device.type == "cpu"
    size = 1024 if on_cpu else 8192
    with numerics(device, "fp32"):
        a, b = (torch.randn(size, size, device=device) for _ in range(2))
        products = [lambda: a @ b, lambda: affine(a, b)] if on_cpu else [lambda: a @ b]
        seconds = min(_seconds(device, product) for product in products)
    return 2 * size**3 / seconds / 1e9 * ((os.cpu_count() or 1) if on_cpu else 1)


@functools.cache
def peak_gbps(device: torch.device) -> float:
    """GB/s read and written in a copy far larger than any cache; by one thread on a CPU."""
    with numerics(device, "fp32"):
        a, b = (torch.ones(2**25, device=device) for _ in range(2))
        return 2 * a.numel() * a.element_size() / _seconds(device, lambda: b.copy_(a)) / 1e9


def _seconds(device: torch.device, work: Callable[[], object], rounds: int = 5) -> float:
    """The shortest of a few rounds, after one that does not count."""
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def machine(device: torch.device) -> dict[str, str]:
    """What a result was made on and with, on the machine that is asked."""
    return {
        "device": device_name(device),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's architecture and the instructions torch uses on it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"
