"""All that is wrong in data, in one message."""

from collections.abc import Sequence

from softadlib._validation import UserError


def raise_all(faults: Sequence[str], most: int = 6) -> None:
    """Raise one UserError if there are faults; it names the first `most`."""
    if faults:
        more = f"; and {len(faults) - most} more" if len(faults) > most else ""
        raise UserError("; ".join(faults[:most]) + more)
