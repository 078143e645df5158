"""The wheel: its contents, its metadata, and its examples where torch and numpy alone can be imported.

It is built here, or taken from where the variable WHEEL says, as `make wheel` and the release do.
`.ci/library` installs it into an environment of its own and runs the library's tests there.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.workspace import REPOSITORY

import softadlib

HIDDEN = [
    "pandas",
    "scipy",
    "sklearn",
    "yaml",
    "matplotlib",
    "torchvision",
    "pydantic",
    "lightning",
]
LOOK = """
import doctest, importlib, json, pkgutil, sys
sys.path.insert(0, sys.argv[1])
sys.modules.update(dict.fromkeys(sys.argv[2:]))  # their import fails
import softadlib
names = [
    name
    for package in ("functional", "losses", "optim")
    for _, name, _ in pkgutil.walk_packages(
        importlib.import_module(f"softadlib.{package}").__path__, f"softadlib.{package}."
    )
]
tests = {n: doctest.testmod(importlib.import_module(n)) for n in names}
print(json.dumps({
    "file": softadlib.__file__,
    "version": softadlib.__version__,
    "public": [n for n in softadlib.__all__ if getattr(softadlib, n) is not None],
    "attempted": sum(t.attempted for t in tests.values()),
    "failed": {n: t.failed for n, t in tests.items() if t.failed},
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if os.environ.get("WHEEL"):
        return Path(os.environ["WHEEL"]).resolve()
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "softadlib", source / "softadlib", ignore=ignore)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", built]
    subprocess.run([*pip, "wheel", source, *options], check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_runs_with_torch_and_numpy_alone(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    command = [sys.executable, "-I", "-W", "error::UserWarning", "-c", LOOK, tmp_path, *HIDDEN]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["file"].startswith(str(tmp_path))
    assert said["failed"] == {}, done.stdout
    assert said["attempted"] > 40
    assert said["version"] == softadlib.__version__
    assert said["public"] == softadlib.__all__
    names = zipfile.ZipFile(wheel).namelist()
    for path in (REPOSITORY / "softadlib").glob("*.py*"):
        assert f"softadlib/{path.name}" in names
    assert "softadlib/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [n for n in names if not n.startswith("softadlib")]
    assert not [n for n in names if "/book/" in n or n.endswith((".ipynb", ".parquet"))]
