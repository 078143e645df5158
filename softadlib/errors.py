"""The one exception a person should read instead of a traceback."""


class UserError(ValueError):
    """Bad input: one line that names what was wrong, its value, the choices and what to do."""


class MissingData(UserError):
    """A dataset that is not on this machine; the message says how to get it."""


def choose(kind: str, value: object, choices) -> None:
    """Raise `UserError` unless `value` is one of `choices`."""
    choices = list(choices)
    if value not in choices:
        raise UserError(f"{kind} {value!r} unknown; choose from {', '.join(map(str, choices))}")
