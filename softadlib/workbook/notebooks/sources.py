"""Which files of this package a notebook uses, found in its import statements."""

import ast
import functools
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import softadlib

PACKAGE = Path(softadlib.__file__).parent


def _code(notebook: Path) -> str:
    """Return the code of a notebook without the lines that only IPython reads."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = "\n".join(code).splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))


def missing_packages(notebook: Path) -> list[str]:
    """Return the packages that a notebook imports and that are not installed."""
    try:
        nodes = list(ast.walk(ast.parse(_code(notebook))))
    except SyntaxError:  # its execution will say what is wrong
        return []
    names = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
    packages = sorted({name.partition(".")[0] for name in names})
    return [name for name in packages if importlib.util.find_spec(name) is None]


def modules_used(notebook: Path) -> list[Path]:
    """Return the modules that a notebook imports, directly or not, and the package's tables."""
    try:
        waiting = set(_imports(_code(notebook)))
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
    return frozenset(_imports(path.read_text(encoding="utf-8")))


def _imports(text: str) -> Iterator[Path]:
    """Yield the package's files that a source text imports, by absolute names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield from _files(f"{node.module}.{alias.name}")


def _files(dotted: str) -> Iterator[Path]:
    """Yield the module that a dotted name leads to, and the packages on the way."""
    folder = PACKAGE.parent
    for name in dotted.split("."):
        module, folder = folder / f"{name}.py", folder / name
        if not folder.is_relative_to(PACKAGE):
            return
        for path in (module, folder / "__init__.py"):
            if path.exists():
                yield path
