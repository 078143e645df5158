"""Processes of one program, and what each has saved."""

import os
import subprocess
import sys

import torch


def run_ranks(worker, folder, ranks=2):
    """Run `worker` as rank 0, 1, … in `folder`; return what they saved as 0.pt, 1.pt, …"""
    command = [sys.executable, "-W", "ignore", worker.__file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(ranks)
    ]
    try:
        for process in running:
            _, said = process.communicate(timeout=500)
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in running:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]
