"""What processes inherit from the command that starts them."""

import os
import platform
import subprocess
import sys

import pytest

from softadlib.training.executors.processes import keep_freed_memory

PAGE_FAULTS = """
import resource
import torch

def allocate_and_free():
    blocks = [torch.ones(4_000_000) for _ in range(6)]  # 16 MB each

for _ in range(3):
    allocate_and_free()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
allocate_and_free()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the limits are glibc's")
def test_a_process_that_starts_later_takes_no_new_pages_for_memory_it_has_freed(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    keep_freed_memory()
    command = [sys.executable, "-c", PAGE_FAULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # with glibc's own limits about 23,000 of 4 KiB


def test_limits_that_the_user_has_set_stay(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=3")
    keep_freed_memory()
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.check=3"
