"""The one exception a person should read instead of a traceback."""

from collections.abc import Iterable


class UserError(ValueError):
    """Bad input: one line that names what was wrong, its value, the choices and what to do."""


class MissingData(UserError):
    """A dataset that is not on this machine; the message says how to get it."""


def choose(kind: str, value: object, choices: Iterable[object]) -> None:
    """Raise `UserError` unless `value` is one of `choices`."""
    known = list(choices)
    if value not in known:
        raise UserError(f"{kind} {value!r} unknown; choose from {', '.join(map(str, known))}")
