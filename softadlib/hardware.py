"""The machine: which device, how much memory is free, how fast it is at its best."""

import contextlib
import os
from collections.abc import Iterator

import torch

from .errors import UserError, choose


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
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


@contextlib.contextmanager
def numerics(device: torch.device, precision: str) -> Iterator[None]:
    """One thread on a CPU, TF32 on CUDA only where `precision` asks for it; put back afterwards.

    On a CPU the order of additions, and with it the last bit, depends on the thread count.
    """
    if precision == "tf32" and device.type != "cuda":
        raise UserError("precision tf32 needs a CUDA GPU; choose fp32 or bf16, or another device")
    threads = torch.get_num_threads()
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [s.fp32_precision for s in switches]
    try:
        if device.type == "cpu":
            torch.set_num_threads(1)
        for switch in switches:
            switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        torch.set_num_threads(threads)
        for switch, old in zip(switches, before):
            switch.fp32_precision = old
