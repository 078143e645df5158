"""environment.yml, pyproject.toml, CHANGELOG, CITATION and README agree; public names are documented."""

import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from helpers.workspace import REPOSITORY

import softadlib

CONFIGURATION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
PROJECT = CONFIGURATION["project"]


def test_environment_installs_what_make_installs():
    environment = yaml.safe_load((REPOSITORY / "environment.yml").read_text())
    (pip,) = [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    makefile = (REPOSITORY / "Makefile").read_text()
    pair = re.search(r"^TORCH \?= (.*)$", makefile, re.M)[1].split()
    (nbval,) = [line for line in PROJECT["optional-dependencies"]["test"] if "nbval" in line]
    assert pip == [*pair, "-e .[workbook,recipes]", nbval]


def test_one_version_one_date_one_address():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    changes = (REPOSITORY / "CHANGELOG.md").read_text()
    version, date = re.search(r"^## (\S+) \((\S+)\)$", changes, re.M).groups()
    assert softadlib.__version__ == PROJECT["version"] == citation["version"] == version
    assert str(citation["date-released"]) == date
    address = PROJECT["urls"]["Repository"]
    assert citation["repository-code"] == address
    assert PROJECT["urls"]["Issues"] == f"{address}/issues"
    assert PROJECT["urls"]["Changelog"] == f"{address}/blob/main/CHANGELOG.md"


@pytest.mark.parametrize("name", [name for name in softadlib.__all__ if name != "__version__"])
def test_public_names_are_documented(name):
    assert inspect.getdoc(getattr(softadlib, name)), name


def test_every_pattern_of_package_data_has_files():
    """Of the metadata of a wheel; `tests/test_wheel.py` looks into one."""
    package_data = CONFIGURATION["tool"]["setuptools"]["package-data"]
    for package, patterns in package_data.items():
        folder = REPOSITORY / package.replace(".", "/")
        assert [pattern for pattern in patterns if not list(folder.glob(pattern))] == [], package


WITH_EXAMPLES = sorted(
    p for p in (REPOSITORY / "softadlib").rglob("*.py") if ">>> " in p.read_text()
)


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.stem)
def test_doctests(path):
    names = path.relative_to(REPOSITORY).with_suffix("").parts
    result = doctest.testmod(importlib.import_module(".".join(names)))
    assert result.attempted
    assert result.failed == 0


def test_the_readmes_shell_commands_are_known():
    """`make readme` runs them; here each softad command is parsed."""
    from readme_commands import LEFT_OUT, commands
    from typer.main import get_command

    from softadlib.workbook import cli

    def parse(command, words):
        """Read the words as a command does, without running it; raises for what it does not know."""
        context = command.make_context("softad", words)
        if hasattr(command, "commands"):
            name, *rest = words
            parse(command.commands[name], rest)
        return context

    lines = commands((REPOSITORY / "README.md").read_text())
    assert lines
    for line in lines:
        words = line.split()
        if words[0] == "softad" and not LEFT_OUT.search(line) and len(words) > 1:
            asked = re.split(r"\s*(?:&&|>|\|)\s*", line)[0]
            parse(get_command(cli.app), asked.split()[1:])


def make(*arguments):
    """The lines that make prints."""
    # These tests are started by make; a make within a make has its options, and says where it works.
    apart = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", *arguments], cwd=REPOSITORY, env=apart, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_make_help_has_a_line_for_every_target():
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split())
    assert {line.split()[1] for line in make("help")} == targets - {"tests-and-notebooks"}


def test_make_lab_opens_a_page_and_passes_options_on():
    last = make("--dry-run", "lab", "LAB=--no-browser --port 8889")[-1]
    assert "jupyter lab" in last
    (page,) = re.findall(r"default_url=/lab/tree/(\S+)", last)
    assert (REPOSITORY / page).is_file()
    assert last.endswith("--no-browser --port 8889")


def test_the_readmes_example_runs():
    text = (REPOSITORY / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert blocks
    setup = (
        "import torch\nfrom torch import nn\nmodel = nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "loader = [(torch.randn(8, 2), torch.randint(2, (8,))) for _ in range(3)]\n"
        "val_logits, val_targets = torch.randn(40, 2), torch.arange(40) % 2\n"
    )
    for block in blocks:
        exec(compile(setup + block, "README.md", "exec"), {})


def test_pytest_without_the_packages_of_the_tests_says_what_to_install(tmp_path):
    missing = "raise ModuleNotFoundError('hypothesis', name='hypothesis')"
    (tmp_path / "hypothesis.py").write_text(missing)
    (tmp_path / "_hypothesis_pytestplugin.py").write_text("")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:timeout", "tests/test_methods.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    (line,) = filter(None, (done.stdout + done.stderr).splitlines())
    assert "the packages of the tests are not installed: pip install -e '.[workbook,test]'" in line
    assert done.returncode == 4


def test_help_lists_the_public_names_where_torch_and_numpy_are_alone():
    code = (
        "import sys\n"
        "for name in ('pandas', 'pyarrow', 'pydantic', 'matplotlib', 'typer'): sys.modules[name] = None\n"
        "import inspect, pydoc, softadlib\n"
        "inspect.getmembers(softadlib)\n"
        "print(pydoc.plain(pydoc.render_doc(softadlib)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [name for name in softadlib.__all__ if name not in done.stdout] == []
