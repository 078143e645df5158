"""Protocols for the tests of training."""

from helpers.workspace import TINY
from softadlib.workbook.studies.protocol import Protocol
from softadlib.workbook.studies.run_study import run_study
from softadlib.workbook.studies.study import Study


def tiny(**changes):
    """`TINY` on the CPU, with changes."""
    values = {"profile": "tiny", "dataset": "gaussian", "device": "cpu", **TINY}
    return Protocol(**{**values, **changes})


def train(protocol, method, *, jobs=1, **options):
    """Train what is left of a study, and return its rows."""
    return run_study(Study(protocol, method, **options), jobs=jobs)


def store_of(protocol, method):
    """Return what is stored of a study."""
    return Study(protocol, method).store
