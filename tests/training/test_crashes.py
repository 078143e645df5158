"""Accidents of the command, in real processes: the same command then ends with the same rows."""

import os
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest
from helpers.protocols import store_of, train
from helpers.workspace import SECONDS, make_home

from softadlib import results
from softadlib.training.profiles import load

WITH_WORKERS = (
    "from softadlib.training import study; from softadlib.workbook import cli; import sys; "
    "study.WORTH_WORKERS = 0; sys.exit(cli.main())"
)
"""The command, which starts workers for a study of seconds, too."""
TRAIN = ("-c", WITH_WORKERS, "train", "tiny", "--method", "softad", "-j")


@pytest.fixture
def study(tmp_path, monkeypatch, whole):
    """Return the store of a study, of which nothing is done."""
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path, gaussian=SECONDS)))
    return store_of(load("tiny", "gaussian"), "softad")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the rows of a study that nothing disturbs."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("whole")
        patch.setenv("SOFTAD_HOME", str(make_home(folder, gaussian=SECONDS)))
        return train(load("tiny", "gaussian"), "softad")


def start(*command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(command):
    """Wait for the end; return the exit status and the lines beside progress bars."""
    _, errors = command.communicate(timeout=300)
    return command.returncode, [line for line in errors.splitlines() if "run/s" not in line]


def await_parts(store, count, command):
    """Wait until `count` chunks of runs are stored."""
    while len(list(store.parts.glob("*.parquet"))) < count:
        assert command.poll() is None, command.communicate()
        time.sleep(0.005)


def assert_ends_with(whole, jobs="1"):
    status, lines = said(start(sys.executable, *TRAIN, jobs))
    assert status == 0, lines
    pd.testing.assert_frame_equal(results.read("tiny"), whole, check_exact=True)


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_command_with_one_line(study, whole):
    """As the system does where memory runs out."""
    command = start(sys.executable, *TRAIN, "2")
    await_parts(study, 1, command)
    children = psutil.Process(command.pid).children(recursive=True)
    next(child for child in children if "LokyProcess" in " ".join(child.cmdline())).kill()
    status, lines = said(command)
    assert status == 2
    assert lines[-1].startswith(
        "softad: a process was killed, as the system does where memory runs out;"
    )
    assert not any("Traceback" in line for line in lines)
    assert_ends_with(whole, "2")


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_once_there_is_room_the_command_goes_on(study, whole):
    """A limit of 2 kB on the size of files, which a part of the study exceeds."""
    limited = ("bash", "-c", 'ulimit -f 2; exec "$0" "$@"', sys.executable)
    status, lines = said(start(*limited, *TRAIN, "1"))
    assert status == 2
    (line,) = [line for line in lines if line.startswith("softad:")]
    assert line.startswith(f"softad: {study.parts}{os.sep}first-")
    assert line.endswith("cannot be written: File too large")
    assert not any("Traceback" in line for line in lines)
    assert list(study.parts.iterdir()) == [], "nothing half-written"
    assert_ends_with(whole)
