"""The device: which one, how it computes, and what is said where its memory runs out."""

import contextlib
import platform
from collections.abc import Iterator

import numpy as np
import torch

from softadlib._validation import UserError, choose

NO_MEMORY = ("out of memory", "alloc_failed", "can't allocate memory", "cudaerrormemoryallocation")
"""Words, in lower case, in errors of torch, CUDA graphs, cuBLAS and cuDNN where memory ran out."""


def pick_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is CUDA if there is one, otherwise the CPU.

    Raises UserError for an unknown name, and for a device that this machine does not have.
    """
    choose("device", name, ("auto", "cpu", "cuda"))
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device 'cuda' is not available here; choose cpu, or auto")
    return torch.device(name)


@contextlib.contextmanager
def numerics(device: torch.device, precision: str) -> Iterator[None]:
    """Compute with one thread on a CPU, on CUDA with TF32 only if `precision` is tf32.

    On a CPU the order of additions, and with it the last bit, depends on the number of threads. Both
    settings are put back on exit.
    """
    if device.type == "cuda":
        # Put on by its module's class, where mypy does not see it.
        convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
        switches = (torch.backends.cuda.matmul, convolutions)
        before = [switch.fp32_precision for switch in switches]
        for switch in switches:
            switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        try:
            yield
        finally:
            for switch, old in zip(switches, before):
                switch.fp32_precision = old
        return
    check_precision(device, precision)
    before_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before_threads)


def check_precision(device: torch.device, precision: str) -> None:
    """Raise UserError for a precision that a device does not have."""
    if precision == "tf32" and device.type != "cuda":
        raise UserError(
            "precision tf32 needs a CUDA GPU; give precision=fp32 or bf16, or another device"
        )


@contextlib.contextmanager
def memory_in_one_line(device: torch.device) -> Iterator[None]:
    """Raise a UserError where memory runs out: torch calls that by several names."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        named = any(words in first_line.lower() for words in NO_MEMORY)
        if not named and not isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            raise
        raise UserError(
            f"the memory of {device_name(device)} ran out ({first_line:.120}); choose a smaller "
            "batch_size or model, end what else uses that memory, or take another device"
        ) from None


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
