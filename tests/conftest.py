"""One thread, one fixed set of hypothesis examples, a small workbook, tests that need a GPU."""

import os
import re
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes that tests start; waiting threads spin

import pytest
import torch
from helpers.workspace import make_home

torch.set_num_threads(1)
try:
    from hypothesis import settings
except ModuleNotFoundError:

    def pytest_configure():
        install = "pip install -e '.[workbook,test]'"
        raise pytest.UsageError(f"the packages of the tests are not installed: {install}")
else:
    fixed = {"derandomize": True, "deadline": None, "database": None, "max_examples": 40}
    settings.register_profile("fixed", **fixed)
    settings.load_profile("fixed")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A workbook in a temporary folder, which SOFTAD_HOME names, with no data but its own."""
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    monkeypatch.delenv("SOFTAD_DATA", raising=False)
    return make_home(tmp_path)


FIRST = (
    "test_kill_sweep",
    "test_dask",
    "test_crashes",
    "test_execute",
    "test_cli",
    "test_reference_erm",
    "test_engines",
    "test_run_study",
)
"""Long modules to begin with, so that no process is left alone with one of them at the end."""
LAST = ("test_recipes", "test_book")
"""Other people's frameworks, and the book in a browser."""
FAST = (
    "functional",
    "losses",
    "optim",
    "test_models.py",
    "workbook/data/test_synthetic.py",
    "workbook/analysis/test_statistics.py",
    "workbook/studies/test_selection.py",
)
"""Folders and files of the mathematics, below tests/."""


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        inside = item.path.is_relative_to(here)
        if inside and item.path.relative_to(here).as_posix().startswith(FAST):
            item.add_marker("fast")
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
    place = {name: i for i, name in enumerate([*FIRST, None, *LAST])}
    items.sort(key=lambda item: place.get(Path(item.path).stem, place[None]))


def pytest_sessionfinish(session):
    """Where the variable SKIPS announces reasons, as a regular expression, another skip is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or "SKIPS" not in os.environ:
        return
    for report in reporter.stats.get("skipped", []):
        if not re.search(os.environ["SKIPS"], report.longrepr[2]):
            print(f"\nskipped, and not announced: {report.nodeid}: {report.longrepr[2]}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
