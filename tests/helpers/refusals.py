"""A refusal is one line that has the value and the way out; its other words are free."""

import pytest


def refused(call, *words, kind=ValueError):
    """Assert that `call()` raises a `kind` of one line with all `words` in it."""
    with pytest.raises(kind) as error:
        call()
    said = str(error.value)
    assert [word for word in words if word not in said] == [], said
    assert "\n" not in said
