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
    ("_workspace",),
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
    ("recipe", "device", "checkpoint", "evaluation"),
    ("engines.base", "engines.captured", "engines.layers"),
    ("engines.vmap", "engines.perceptron"),
    ("engines",),
    ("loop", "protocol"),
    ("profiles", "data"),
    ("chunk",),
    ("heldout", "many", "plan"),
    ("study",),
)
"""The modules of training/, each of which may import those above it."""
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
PUBLIC = {"__init__", "__main__"}
"""Modules at the root that may import anything: the public names and the command."""


def modules(root: Path) -> dict[str, Path]:
    """{dotted name below softadlib: file}; a package has the name of its folder."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        found[name] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of softadlib that a file imports anywhere in it, TYPE_CHECKING blocks included."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = [] if package == ["__init__"] else package
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [a.name.split(".")[1:] for a in node.names if a.name.startswith("softadlib.")]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                base = base + (node.module.split(".") if node.module else [])
            elif (node.module or "").split(".")[0] == "softadlib":
                base = node.module.split(".")[1:]
            else:
                continue
            targets = [[*base, a.name] for a in node.names]
        else:
            continue
        for target in targets:
            while target and ".".join(target) not in known:
                target = target[:-1]
            if target:
                yield ".".join(target)


def graph(root: Path) -> dict[str, set[str]]:
    known = modules(root)
    return {name: set(imports(name, path, known)) - {name} for name, path in known.items()}


def upward(arrows: dict[str, set[str]]) -> list[str]:
    """Imports that go from a lower layer to a higher one."""
    lines = []
    for name, targets in arrows.items():
        if name in PUBLIC:
            continue
        for target in targets:
            levels = [LEVEL[n.split(".")[0]] for n in (name, target)]
            same_layer = levels[0] == levels[1] and name.split(".")[0] != target.split(".")[0]
            if levels[0] < levels[1] or same_layer:
                lines.append(f"{name} imports {target}")
    return lines


ROOT = REPOSITORY / "softadlib"


def test_every_package_is_in_the_order():
    names = {n.split(".")[0] for n in modules(ROOT)} - PUBLIC
    assert names == set(LEVEL)


def test_imports_go_one_way():
    assert upward(graph(ROOT)) == []


def test_inside_training_imports_go_one_way():
    level = {name: i for i, layer in enumerate(TRAINING) for name in layer}
    inside = {n[9:]: t for n, t in graph(ROOT).items() if n.startswith("training.")}
    assert set(inside) == set(level)
    arrows = [(n, t[9:]) for n, to in inside.items() for t in to if t.startswith("training.")]
    assert [pair for pair in arrows if level[pair[1]] >= level[pair[0]]] == []


def test_there_are_no_circles():
    TopologicalSorter(graph(ROOT)).prepare()  # raises CycleError with the circle


def write_package(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "line",
    [
        "from softadlib.training import study",
        "from softadlib.training.study import run",
        "import softadlib.training.study",
        "def f():\n    from ..training.study import run",
        "from ..training import study",
    ],
)
def test_an_upward_import_is_found(tmp_path, line):
    files = {
        "data/__init__.py": "",
        "data/images.py": line,
        "training/__init__.py": "",
        "training/study.py": "",
    }
    lines = upward(graph(write_package(tmp_path, files)))
    assert lines == ["data.images imports training.study"]


def test_packages_of_one_layer_do_not_import_each_other(tmp_path):
    files = {"losses/__init__.py": "from softadlib.optim import SAM", "optim/__init__.py": ""}
    assert upward(graph(write_package(tmp_path, files))) == ["losses imports optim"]
