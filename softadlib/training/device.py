"""The device: which one, how much of its memory is free, and how it computes."""

import contextlib
import json
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from softadlib import _workspace
from softadlib._validation import UserError, choose


def available_devices() -> list[str]:
    """Return the devices of this machine, the fastest first; the CPU is the last."""
    backends = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [*(name for name, is_available in backends.items() if is_available), "cpu"]


def synchronize(device: torch.device) -> None:
    """Wait until everything that was started on the device has ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def pick_device(name: str) -> torch.device:
    """Return the device of that name.

    `auto` is CUDA where `softad check-device` has passed on that kind of device with this torch;
    otherwise the CPU. Apple's MPS, which has no float64 to be checked in, is taken by name alone.
    Raises UserError for an unknown name, and for a device that this machine does not have.
    """
    available = available_devices()
    choose("device", name, ["auto", "cpu", "cuda", "mps"])
    if name == "auto":
        fastest = torch.device(available[0])
        if fastest.type != "cuda":
            return torch.device("cpu")
        if is_checked(fastest):
            return fastest
        warnings.warn(
            f"device auto takes the CPU: {device_name(fastest)} is not checked with torch "
            f"{torch.__version__}; run: softad check-device --device {fastest.type}",
            stacklevel=2,
        )
        return torch.device("cpu")
    if name not in available:
        raise UserError(
            f"device {name!r} is not available here; choose from auto, {', '.join(available)}"
        )
    return torch.device(name)


def _checked_file() -> Path:
    """Return the file that records the devices that passed `softad check-device`."""
    return _workspace.home() / "outputs" / ".checked-devices.json"


def _checked_devices() -> list[list[str]]:
    """Return [name, torch version] of each; none where the file is missing or damaged."""
    try:
        devices = json.loads(_checked_file().read_text())
    except (OSError, ValueError, UserError):
        return []
    return devices if isinstance(devices, list) else []


def is_checked(device: torch.device) -> bool:
    """Tell whether this kind of device has passed `softad check-device` with this torch."""
    return [device_name(device), torch.__version__] in _checked_devices()


def remember_checked(device: torch.device) -> None:
    """Remember that this kind of device has passed `softad check-device` with this torch."""
    if not is_checked(device):
        devices = [*_checked_devices(), [device_name(device), torch.__version__]]
        _workspace.write(_checked_file(), json.dumps(devices, indent=1) + "\n")


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on `device`; None where the system does not say."""
    if device.type == "cuda":
        # PyTorch's cache counts as used there, but is free for the next allocation.
        free, total = torch.cuda.mem_get_info(device)
        allocated = torch.cuda.memory_allocated(device)
        cached = torch.cuda.memory_reserved(device) - allocated
        # Tasks of a cluster that share a GPU are each limited to a fraction of it.
        limit = int(torch.cuda.get_per_process_memory_fraction(device) * total)
        return max(0, min(free + cached, limit - allocated))
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


def processor_name() -> str:
    """Return the processor's maker and model as the system gives them; empty where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    names = (facts.get(f"{key}\t", "").strip() for key in ("vendor_id", "model name"))
    return " ".join(name for name in names if name)
