"""One thread, one fixed set of hypothesis examples, a workbook of one's own, tests that need a GPU."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes that tests start; waiting threads spin

import pytest
import torch
from helpers.workspace import make_home
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=40)
settings.load_profile("fixed")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A workbook in a temporary folder, which SOFTAD_HOME names."""
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path)


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
