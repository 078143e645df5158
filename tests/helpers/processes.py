"""Processes of one program, and what each has saved."""

import os
import subprocess
import sys
import time

import torch


def run_ranks(worker, folder, ranks=2):
    """Run `worker` as rank 0, 1, … in `folder`; return what they saved as 0.pt, 1.pt, …

    One that fails is told of at once, with its words: the others would wait for it.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = []
    for rank in range(ranks):
        command = [sys.executable, "-W", "ignore", worker.__file__, str(rank), str(folder)]
        with open(folder / f"{rank}.txt", "w") as words:
            running.append(subprocess.Popen(command, stderr=words, env=environment))
    try:
        while any(process.poll() is None for process in running):
            for rank, process in enumerate(running):
                assert not process.poll(), (folder / f"{rank}.txt").read_text()[-3000:]
            time.sleep(0.05)
        for rank, process in enumerate(running):
            assert process.returncode == 0, (folder / f"{rank}.txt").read_text()[-3000:]
    finally:
        for process in running:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]
