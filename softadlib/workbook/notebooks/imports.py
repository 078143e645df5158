"""Imports of notebook packages without what takes a second and serves no notebook."""

import contextlib
import sys
from collections.abc import Iterator

IRI_GRAMMAR = "rfc3987_syntax"
"""Parsed by `jsonschema` when it is imported, to check international addresses."""


@contextlib.contextmanager
def skip_iri_grammar() -> Iterator[None]:
    """Import nbformat, nbconvert or papermill inside: `jsonschema` then goes without that grammar."""
    if IRI_GRAMMAR in sys.modules:
        yield
        return
    sys.modules[IRI_GRAMMAR] = None  # type: ignore[assignment]  # its import then is an ImportError
    try:
        yield
    finally:
        sys.modules.pop(IRI_GRAMMAR, None)
