"""The library shelf stands without the workbook, and old import paths say where their modules are."""

import importlib
import os
import subprocess
import sys

import pytest
from helpers.workspace import REPOSITORY

LIBRARY = """
import importlib, pathlib, sys

import softadlib

root = pathlib.Path(softadlib.__file__).parent
moved = {"training", "results", "data", "analysis", "experiments", "__main__"}
names = [path.relative_to(root).with_suffix("").parts for path in root.rglob("*.py")]
library = [name for name in names if name[0] not in moved | {"workbook"}]
assert len(library) > 30
for name in library:
    importlib.import_module(".".join(["softadlib", *name]).removesuffix(".__init__"))
of_the_workbook = ("matplotlib", "pandas", "pyarrow", "pydantic", "scipy", "seaborn")
of_the_workbook += ("softadlib.workbook", "torchvision")
assert not [name for name in sys.modules if name.startswith(of_the_workbook)]
"""


def test_the_library_needs_torch_and_numpy_alone():
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", LIBRARY], env=env, check=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("softadlib.training.loop", "softadlib.trainer"),
        ("softadlib.results", "softadlib.workbook.studies.results"),
        ("softadlib.data.splits", "softadlib.trainer.splits"),
        ("softadlib.analysis.plots", "softadlib.workbook.analysis"),
        ("softadlib.experiments.toy", "softadlib.workbook.experiments"),
    ],
)
def test_an_old_import_path_names_the_new_one(old, new):
    with pytest.raises(ImportError, match=new):
        importlib.import_module(old)
