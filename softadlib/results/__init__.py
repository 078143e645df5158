"""Finished results of `outputs/` as tables, and the runs that a rule selects.

>>> from softadlib import results
>>> rows = results.read("smoke", "gaussian", final=True)  # a row per run, its last epoch
>>> chosen = results.select(rows, "loss")  # of each trial the value with the lowest validation loss
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softadlib.results.reader import provenances, read
    from softadlib.results.sample_losses import read as read_losses
    from softadlib.results.selection import RULES, curves, final, select

__all__ = ["RULES", "curves", "final", "provenances", "read", "read_losses", "select"]
_MODULES = {"provenances": "reader", "read": "reader", "read_losses": "sample_losses"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the registry of methods must not wait for pandas."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_MODULES.get(name, 'selection')}", __name__)
    return getattr(module, "read" if name == "read_losses" else name)
