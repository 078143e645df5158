"""Protocols for the tests of training."""

from helpers.workspace import TINY
from softadlib.training.protocol import Protocol


def tiny(**changes):
    """`TINY` on the CPU, with changes."""
    values = {"profile": "tiny", "dataset": "gaussian", "device": "cpu", **TINY}
    return Protocol(**{**values, **changes})
