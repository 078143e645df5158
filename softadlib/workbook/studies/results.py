"""Finished results of `outputs/` as tables, and the runs that a rule selects.

>>> from softadlib.workbook.studies import results
>>> rows = results.read("smoke", "gaussian", final=True)  # a row per run, its last epoch
>>> chosen = results.select(rows, "loss")  # of each trial the value with the lowest validation loss
"""

from softadlib._validation import MissingData
from softadlib.workbook.studies.parquet import outputs
from softadlib.workbook.studies.read import provenances, read, read_losses
from softadlib.workbook.studies.selection import RULES, best, curves, diverged, final, select

__all__ = [
    "RULES",
    "MissingData",
    "best",
    "curves",
    "diverged",
    "final",
    "outputs",
    "provenances",
    "read",
    "read_losses",
    "select",
]
