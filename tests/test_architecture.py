"""The packages of softadlib import each other in one direction only.

The order is that of the design: a package may import those to its left, never one to its right.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from helpers.workspace import REPOSITORY

LAYERS = (
    ("_validation",),
    ("_files",),
    ("functional",),
    ("methods", "models"),
    ("losses", "optim", "calibration"),
    ("monitor",),
    ("data",),
    ("results",),
    ("training",),
    ("analysis",),
    ("experiments",),
    ("workbook",),
)
TRAINING = (
    ("recipe", "seeds", "device", "checkpoint", "evaluation"),
    ("engines.base", "engines.captured", "engines.layers"),
    ("engines.side_by_side", "engines.single_perceptron"),
    ("engines",),
    ("loop", "protocol"),
    ("params", "load_splits"),
    ("train_runs",),
    ("held_out_losses", "train_many", "study"),
    ("train_study",),
)
"""The modules of training/, each of which may import those above it."""
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
PUBLIC = {"__init__", "__main__"}
"""Modules at the root that may import anything: the public names and the command."""


def modules(root: Path) -> dict[str, Path]:
    """{dotted name below softadlib: file}; a package has the name of its folder."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of softadlib that a file imports anywhere in it, TYPE_CHECKING blocks included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: name the whole module"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, target = name.partition(".")
            if package == "softadlib":
                while target and target not in known:
                    target = target.rpartition(".")[0]
                if target:
                    yield target


def graph(root: Path) -> dict[str, set[str]]:
    """{module: modules that it imports}."""
    known = modules(root)
    return {name: set(imports(path, known)) - {name} for name, path in known.items()}


def upward(arrows: dict[str, set[str]]) -> list[str]:
    """Imports that go from a lower layer to a higher one, or to another package of the same."""
    lines = []
    for name, targets in arrows.items():
        package = name.split(".")[0]
        for target in targets:
            other = target.split(".")[0]
            if package not in PUBLIC and package != other and LEVEL[package] <= LEVEL[other]:
                lines.append(f"{name} imports {target}")
    return lines


ROOT = REPOSITORY / "softadlib"


def test_every_package_is_in_the_order():
    assert {name.split(".")[0] for name in modules(ROOT)} - PUBLIC == set(LEVEL)


def test_imports_go_one_way():
    assert upward(graph(ROOT)) == []


def test_inside_training_imports_go_one_way():
    level = {f"training.{name}": i for i, layer in enumerate(TRAINING) for name in layer}
    inside = {n: targets for n, targets in graph(ROOT).items() if n.startswith("training.")}
    assert set(inside) == set(level)
    arrows = [(n, t) for n, targets in inside.items() for t in targets if t in level]
    assert [(n, t) for n, t in arrows if level[t] >= level[n]] == []


def test_there_are_no_circles():
    TopologicalSorter(graph(ROOT)).prepare()  # raises CycleError with the circle


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("data/images.py", "from softadlib.training import study"),
        ("data/images.py", "def f():\n    from softadlib.training.study import run"),
        ("data/images.py", "import softadlib.training.study"),
        ("losses/__init__.py", "from softadlib.optim import SAM"),
    ],
)
def test_an_upward_import_is_found(tmp_path, place, line):
    files = {"training/__init__.py": "", "training/study.py": "", "optim/__init__.py": ""}
    for name, text in {**files, place: line}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert len(upward(graph(tmp_path))) == 1
