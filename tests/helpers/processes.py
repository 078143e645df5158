"""Two processes of one program, and what each has saved."""

import os
import subprocess
import sys

import torch


def run_two(worker, folder):
    """Run `worker` as rank 0 and rank 1 in `folder`; return what they saved as 0.pt and 1.pt."""
    command = [sys.executable, "-W", "ignore", worker.__file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in (0, 1)
    ]
    try:
        for process in running:
            _, said = process.communicate(timeout=500)
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in running:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]
