"""Which files of this package a notebook uses, found in its import statements."""

import ast
import functools
import json
from collections.abc import Iterator
from pathlib import Path

import softadlib

PACKAGE = Path(softadlib.__file__).parent


def modules_used(notebook: Path) -> list[Path]:
    """Return the modules that a notebook imports, directly or not, and the package's tables."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = "\n".join(code).splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))
    try:
        waiting = set(_imports(text, PACKAGE))
    except SyntaxError:  # its execution will say what is wrong
        waiting = set(PACKAGE.rglob("*.py"))
    used: set[Path] = set()
    while waiting:
        path = waiting.pop()
        used.add(path)
        waiting |= _imports_of(path) - used
    return sorted([*used, *PACKAGE.rglob("*.csv")])


@functools.cache
def _imports_of(path: Path) -> frozenset[Path]:
    return frozenset(_imports(path.read_text(encoding="utf-8"), path.parent))


def _imports(text: str, folder: Path) -> Iterator[Path]:
    """Yield the package's files that a source text in `folder` imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(PACKAGE.parent, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = folder.parents[node.level - 2] if node.level > 1 else folder
            start = start if node.level else PACKAGE.parent
            names = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _files(start, [*names, alias.name])


def _files(start: Path, names: list[str]) -> Iterator[Path]:
    """Yield the module that dotted names lead to, and the packages on the way."""
    folder = start
    for name in names:
        module, folder = folder / f"{name}.py", folder / name
        if not folder.is_relative_to(PACKAGE):
            return
        for path in (module, folder / "__init__.py"):
            if path.exists():
                yield path
