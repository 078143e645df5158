"""environment.yml, pyproject.toml, README and the rest of the root agree with each other."""

import os
import re
import subprocess
import sys
import tomllib

import yaml
from homes import REPOSITORY

import softadlib

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def test_environment_lists_what_pyproject_asks_for():
    environment = yaml.safe_load((REPOSITORY / "environment.yml").read_text())
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["workbook"], *extras["test"]]
    (pip,) = [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    assert pip == [*wanted, "-e .[workbook,test]"], "same packages, same bounds, same order"
    assert environment["channels"][0] == "conda-forge"
    assert [d.split(">")[0] for d in environment["dependencies"] if isinstance(d, str)] == [
        "python",
        "pip",
    ]


def test_a_bare_install_needs_torch_and_numpy_alone():
    assert [re.split(r"[<>=]", d)[0] for d in PROJECT["dependencies"]] == ["torch", "numpy"]


def test_the_named_packages_are_there():
    wanted = {"jupyterlab", "torch", "torchvision", "papermill", "seaborn", "pandas", "nbval"}
    extras = PROJECT["optional-dependencies"]
    listed = {
        re.split(r"[<>=]", d)[0]
        for d in [*PROJECT["dependencies"], *extras["workbook"], *extras["test"]]
    }
    assert wanted <= listed


def test_one_version():
    assert softadlib.__version__ == PROJECT["version"]
    assert f"## [{softadlib.__version__}]" in (REPOSITORY / "CHANGELOG.md").read_text() or (
        "## [Unreleased]" in (REPOSITORY / "CHANGELOG.md").read_text()
    )


def test_types_travel_with_the_package_and_the_paper_is_cited():
    root = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert "py.typed" in root["tool"]["setuptools"]["package-data"]["softadlib"]
    assert (REPOSITORY / "softadlib" / "py.typed").exists()
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    paper = citation["preferred-citation"]
    assert paper["title"].startswith("Soft ascent-descent as a stable and flexible alternative")
    assert [a["family-names"] for a in paper["authors"]] == ["Holland", "Nakatani"]
    assert paper["year"] == 2024


def test_public_names_are_documented():
    for name in softadlib.__all__:
        if not name.startswith("__"):
            assert getattr(softadlib, name).__doc__, name


def test_doctests():
    import doctest

    from softadlib import losses, optimizers, parts

    for module in (losses, optimizers, parts):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0


def test_the_readme_names_what_exists():
    text = (REPOSITORY / "README.md").read_text()
    for path in re.findall(r"`((?:notebooks|softadlib|params|tests)/[\w./-]+)`", text):
        assert (REPOSITORY / path).exists(), path
    for link in re.findall(r"\]\((?!http|#)([^)]+)\)", text):
        assert (REPOSITORY / link).exists(), link
    for notebook in (REPOSITORY / "notebooks").glob("*.ipynb"):
        assert notebook.stem in text, f"{notebook.name} is missing from the map"


def test_the_readmes_example_runs():
    text = (REPOSITORY / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert blocks
    setup = (
        "import torch\nfrom torch import nn\nmodel = nn.Linear(2, 2)\n"
        "loader = [(torch.randn(8, 2), torch.randint(2, (8,))) for _ in range(3)]\n"
    )
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", setup + block],
            capture_output=True,
            text=True,
            env={**os.environ},
        )
        assert done.returncode == 0, done.stderr


def test_the_root_holds_what_it_should():
    tracked = subprocess.run(
        ["git", "-C", REPOSITORY, "ls-files"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    top = {line.split("/")[0] for line in tracked} or {p.name for p in REPOSITORY.iterdir()}
    assert {t for t in top if not t.startswith(".")} - {"assets"} <= {
        "notebooks", "softadlib", "params", "outputs", "tests", "environment.yml", "README.md", "pyproject.toml",
        "Makefile", "LICENSE", "CHANGELOG.md", "CITATION.cff", "softadlib.egg-info",
    }  # fmt: skip
