"""A study on a dask cluster, of which a worker or the scheduler is killed: the rows are the same."""

import json
import subprocess
import sys
import time

import pandas as pd
import pytest
from distributed import Client
from helpers.protocols import store_of, train
from helpers.workspace import SECONDS, make_home

from softadlib import results
from softadlib.training.profiles import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """Return the rows of an undisturbed study; a workbook in which nothing is trained is left set."""
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path / "whole", gaussian=SECONDS)))
    rows = train(load("tiny", "gaussian"), "softad")
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path / "tiny", gaussian=SECONDS)))
    return rows


def await_part():
    """Wait until a chunk of runs is stored."""
    parts, until = store_of(load("tiny", "gaussian"), "softad").parts, time.monotonic() + 120
    while not list(parts.glob("*.parquet")) and time.monotonic() < until:
        time.sleep(0.005)


@pytest.fixture
def cluster(tmp_path):
    """Return the processes of a scheduler and two workers, and the scheduler's address."""
    file = tmp_path / "scheduler.json"
    dask = (sys.executable, "-m", "dask")
    place = ("--scheduler-file", str(file))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    worker = (*dask, "worker", *place, "--nthreads", "1", "--no-nanny", "--no-dashboard")
    commands = [(*dask, "scheduler", *place, "--port", "0", "--no-dashboard"), worker, worker]
    processes = [subprocess.Popen(command, cwd=tmp_path, **quiet) for command in commands]
    try:
        while not (file.exists() and file.read_text().endswith("}")):  # written in two steps
            assert processes[0].poll() is None
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        with Client(address) as client:
            client.wait_for_workers(2, timeout=120)
        yield processes, address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def train_and_kill(process, address):
    """Train on a scheduler and kill a process of the cluster; return the command's status and words."""
    train = (sys.executable, "-m", "softadlib.workbook.cli", "train", "tiny", "--method", "softad")
    softad = subprocess.Popen((*train, "--scheduler", address), stderr=subprocess.PIPE, text=True)
    await_part()
    process.kill()
    _, said = softad.communicate(timeout=200)
    return softad.returncode, said


def test_the_command_on_a_scheduler_one_of_whose_two_workers_is_killed(whole, cluster):
    processes, address = cluster
    assert train_and_kill(processes[1], address)[0] == 0
    pd.testing.assert_frame_equal(results.read("tiny"), whole, check_exact=True)


def test_the_command_whose_scheduler_is_killed_says_so_in_a_line_and_resumes(whole, cluster):
    processes, address = cluster
    status, said = train_and_kill(processes[0], address)
    assert status == 2
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith(f"softad: the dask scheduler at {address!r} is gone;")
    rows = train(load("tiny", "gaussian"), "softad")
    pd.testing.assert_frame_equal(rows, whole, check_exact=True)
