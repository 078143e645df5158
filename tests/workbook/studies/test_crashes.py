"""Accidents of the command, in real processes: the same command then ends with the same rows."""

import os
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest
from helpers.protocols import train
from helpers.workspace import await_part

from softadlib.workbook.studies.params import load

TRAIN = (sys.executable, "-m", "softadlib", "train", "tiny", "--method", "softad", "-j")

pytestmark = pytest.mark.slow


def said(command):
    """Wait for the end; return the lines beside progress bars of a command that found bad input."""
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 2
    assert "Traceback" not in errors
    return [line for line in errors.splitlines() if line.startswith("softad:")]


def assert_resumes(undisturbed):
    rows = train(load("tiny", "gaussian"), "softad")
    pd.testing.assert_frame_equal(rows, undisturbed, check_exact=True)


def test_a_worker_that_is_killed_ends_the_command_with_one_line(start, study, undisturbed):
    """As the system does where memory runs out."""
    command = start(*TRAIN, "2", stderr=subprocess.PIPE)
    await_part(study, command)
    children = psutil.Process(command.pid).children(recursive=True)
    next(child for child in children if "LokyProcess" in " ".join(child.cmdline())).kill()
    assert said(command)[-1].startswith("softad: a process was killed, as the system does where")
    assert_resumes(undisturbed)


def test_workers_end_with_a_command_that_is_killed(start, study):
    """As a kernel is whose `softad run` was stopped: no worker trains on for nobody."""
    command = start(*TRAIN, "2", "-p", "epochs=100000", stderr=subprocess.DEVNULL)
    workers = []
    deadline = time.monotonic() + 120
    while len(workers) < 2 and time.monotonic() < deadline:
        children = psutil.Process(command.pid).children(recursive=True)
        workers = [child for child in children if "LokyProcess" in " ".join(child.cmdline())]
        time.sleep(0.2)
    assert len(workers) == 2
    time.sleep(10)  # they import torch, then train for minutes
    command.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


def test_a_full_disk_is_one_line_and_once_there_is_room_the_command_goes_on(
    start, study, undisturbed
):
    """A limit of 2 kB on the size of files, which a part of the study exceeds."""
    limited = ("bash", "-c", 'ulimit -f 2; exec "$0" "$@"')
    (line,) = said(start(*limited, *TRAIN, "1", stderr=subprocess.PIPE))
    assert line.startswith(f"softad: {study.chunks_folder}{os.sep}first-")
    assert line.endswith("cannot be written: File too large")
    assert list(study.chunks_folder.iterdir()) == [], "nothing half-written"
    assert_resumes(undisturbed)
