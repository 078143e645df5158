"""A study on a dask cluster, of which a worker or the scheduler is killed: the rows are the same."""

import json
import subprocess
import sys
import time

import pandas as pd
import pytest
from distributed import Client
from helpers.protocols import store_of, train
from helpers.workspace import REPOSITORY, SECONDS, await_part, make_home
from readme_commands import commands

from softadlib.workbook.studies import results
from softadlib.workbook.studies.params import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_a_worker_is_killed_and_then_the_scheduler(
    start, study, undisturbed, tmp_path, monkeypatch
):
    """The command goes on with the other worker; without a scheduler it says so, and resumes."""
    file = tmp_path / "scheduler.json"
    dask = (sys.executable, "-m", "dask")
    place = ("--scheduler-file", str(file), "--no-dashboard")
    quiet = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = start(*dask, "scheduler", *place, "--port", "0", **quiet)
    alone = ("--nthreads", "1", "--no-nanny", "--death-timeout", "120")
    workers = [start(*dask, "worker", *place, *alone, **quiet) for _ in range(2)]
    while not (file.exists() and file.read_text().endswith("}")):  # written in two steps
        assert scheduler.poll() is None
        time.sleep(0.05)
    address = json.loads(file.read_text())["address"]
    with Client(address) as client:
        client.wait_for_workers(2, timeout=120)

    status, _ = train_and_kill(start, address, workers[0])
    assert status == 0
    pd.testing.assert_frame_equal(results.read("tiny"), undisturbed, check_exact=True)

    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path / "second", gaussian=SECONDS)))
    status, said = train_and_kill(start, address, scheduler)
    assert status == 2
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith(f"softad: the dask scheduler at {address!r} is gone;")
    rows = train(load("tiny", "gaussian"), "softad")
    pd.testing.assert_frame_equal(rows, undisturbed, check_exact=True)


def test_the_lines_of_the_readme_train_on_a_cluster(
    start, study, undisturbed, tmp_path, monkeypatch
):
    """As they stand there, but for the profile, the port, and two workers in place of eight."""
    text = (REPOSITORY / "params" / "README.md").read_text()
    lines = [line for line in commands(text) if "scheduler.json" in line]
    assert [line.split()[:2] for line in lines] == [
        ["dask", "scheduler"],
        ["dask", "worker"],
        ["softad", "train"],
    ]
    monkeypatch.chdir(tmp_path)  # where scheduler.json is written
    scheduler, worker, train = (line.replace("--nworkers 8", "--nworkers 2") for line in lines)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start(sys.executable, "-m", *scheduler.split(), "--port", "0", "--no-dashboard", **quiet)
    start(sys.executable, "-m", *worker.split(), "--no-dashboard", **quiet)
    with Client(scheduler_file="scheduler.json", timeout=120) as client:
        client.wait_for_workers(2, timeout=120)
    words = train.replace("paper", "tiny --method softad").split()[1:]
    command = start(sys.executable, "-m", "softadlib", *words, stderr=subprocess.PIPE)
    _, said = command.communicate()
    assert command.returncode == 0, said
    pd.testing.assert_frame_equal(results.read("tiny"), undisturbed, check_exact=True)


def train_and_kill(start, address, process):
    """Train on a scheduler and kill a process of the cluster; return the command's status and words."""
    train = (sys.executable, "-m", "softadlib", "train", "tiny", "--method", "softad")
    command = start(*train, "--scheduler", address, stderr=subprocess.PIPE)
    await_part(store_of(load("tiny", "gaussian"), "softad"), command)
    process.kill()
    _, said = command.communicate(timeout=200)
    return command.returncode, said
