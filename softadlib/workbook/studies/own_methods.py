"""Methods of your own: a profile's key `methods` names a Python file that adds them to `METHODS`."""

import hashlib
import importlib.util
import os
from pathlib import Path

from softadlib._files import home
from softadlib._validation import UserError
from softadlib.methods import METHODS

_MODULES: dict[str, set[str]] = {}
"""Path of each file that was read → names of the methods that it added."""


def register(file: str) -> None:
    """Run a Python file once; a relative path starts at the workbook's root.

    Raises UserError for a file that is not there or fails, that adds no method, and that replaces one.
    """
    path = str(home() / os.path.expanduser(file))
    if path in _MODULES:
        return
    before = dict(METHODS)
    spec = importlib.util.spec_from_file_location(f"methods_of_{Path(path).stem}", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise UserError(f"methods: {path} is no Python file")
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"methods: {path} cannot be read ({what})") from error
    replaced = [name for name, method in before.items() if METHODS.get(name) is not method]
    added = set(METHODS) - set(before)
    if replaced or not added:
        METHODS.clear()
        METHODS.update(before)
        what = f"replaces {replaced[0]!r}; choose another name" if replaced else "adds no method"
        raise UserError(f"methods: {path} {what}: METHODS[NAME] = Method(NAME, LABEL, …)")
    _MODULES[path] = added


def modules() -> list[str]:
    """Return the files that were read, for processes that need the same methods."""
    return list(_MODULES)


def digest(method: str) -> str:
    """Return a hash of the file that a method is from; "" for one of the library."""
    for path, names in _MODULES.items():
        if method in names:
            return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return ""
