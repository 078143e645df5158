"""The mutants of `benchmarks/mutants.py` can be made: each text stands once in its file."""

from benchmarks.mutants import read_mutants


def test_every_mutant_can_be_made():
    assert read_mutants()
