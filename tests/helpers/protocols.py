"""Protocols for the tests of training."""

from helpers.workspace import TINY
from softadlib.training.protocol import Protocol
from softadlib.training.study import Study
from softadlib.training.train_study import run_study


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
