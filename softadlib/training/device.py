"""The device: which one, how much of its memory is free, and how it computes."""

import contextlib
import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from softadlib._validation import UserError, choose


def pick_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is CUDA, then Apple's MPS, then the CPU.

    Raises UserError for an unknown name, and for a device that this machine does not have.
    """
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    choose("device", name, ["auto", *available])
    if name == "auto":
        return torch.device(next(d for d in ("cuda", "mps", "cpu") if available[d]))
    if not available[name]:
        raise UserError(
            f"device {name!r} is not available here; choose from auto, "
            f"{', '.join(d for d, ok in available.items() if ok)}"
        )
    return torch.device(name)


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on `device`; None where the system does not say."""
    if device.type == "cuda":
        # PyTorch's cache counts as used there, but is free for the next allocation.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    # Available, not free: the page cache gives way.
    kib = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(size) * 1024 for size in kib), None)


@contextlib.contextmanager
def deterministic_math(device: torch.device, precision: str, threads: int = 1) -> Iterator[None]:
    """Use `threads` on a CPU, and TF32 on CUDA only if `precision` is tf32; restore both on exit.

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


def machine(device: torch.device) -> dict[str, str]:
    """Describe what results are made on and with: device, torch, numpy, Python."""
    return {
        "device": device_name(device),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or the CPU's architecture and the instructions torch uses on it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"
