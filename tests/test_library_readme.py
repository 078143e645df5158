"""softadlib/README.md: its example runs, and it names every public class and function."""

import re

import pytest
from helpers.workspace import REPOSITORY

import softadlib

TEXT = (REPOSITORY / "softadlib" / "README.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", TEXT, re.S))
def test_the_example_runs(block):
    exec(compile(block, "README.md", "exec"), {})


def test_every_public_name_is_in_it():
    names = [n for n in softadlib.__all__ if not n.startswith("__") and not n.endswith("Warning")]
    assert [n for n in names if n not in TEXT] == []


def test_it_names_files_that_exist():
    for path in map("".join, re.findall(r"`(tests/[\w./]+)`|\]\(\.\./([\w./]+)\)", TEXT)):
        assert (REPOSITORY / path).exists(), path
