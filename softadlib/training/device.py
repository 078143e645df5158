"""The device: which one, and how it computes."""

import contextlib
import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from softadlib._validation import UserError, choose


def available_devices() -> list[str]:
    """Return the devices of this machine, the fastest first; the CPU is the last."""
    backends = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [*(name for name, is_available in backends.items() if is_available), "cpu"]


def pick_device(name: str) -> torch.device:
    """Return the device of that name.

    `auto` is CUDA where it is there, otherwise the CPU. Apple's MPS, which has no float64, is taken by
    name alone. Raises UserError for an unknown name, and for a device that this machine does not have.
    """
    available = available_devices()
    choose("device", name, ["auto", "cpu", "cuda", "mps"])
    if name == "auto":
        return torch.device("cuda" if "cuda" in available else "cpu")
    if name not in available:
        raise UserError(
            f"device {name!r} is not available here; choose from auto, {', '.join(available)}"
        )
    return torch.device(name)


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


def processor_name() -> str:
    """Return the processor's maker and model as the system gives them; empty where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    names = (facts.get(f"{key}\t", "").strip() for key in ("vendor_id", "model name"))
    return " ".join(name for name in names if name)
