"""A study of seconds that nothing disturbs, and processes that end with their test."""

import contextlib
import subprocess

import psutil
import pytest
from helpers.protocols import store_of, train
from helpers.workspace import SECONDS, make_home

from softadlib.workbook.studies.params import load


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """Return the rows of a study that nothing disturbs."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("undisturbed")
        patch.setenv("SOFTAD_HOME", str(make_home(folder, gaussian=SECONDS)))
        return train(load("tiny", "gaussian"), "softad")


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return the store of the same study in another workbook, of which nothing is done."""
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path / "study", gaussian=SECONDS)))
    return store_of(load("tiny", "gaussian"), "softad")


@pytest.fixture
def start():
    """Start processes; at the end of the test they are killed, with all that they started."""
    started = []

    def start(*command, **options):
        started.append(subprocess.Popen(command, text=True, **options))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        with process:  # closes its pipes and waits
            process.kill()
