"""Errors and warnings for people, and the checks of choices and numbers. Imports no torch."""

import difflib
import inspect
import math
import operator
import warnings
from collections.abc import Iterable
from typing import Any

OURS = ("softadlib", "torch")


class UserError(ValueError):
    """Bad input: one line that names what was wrong, its value, the choices and what to do."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of thirty lines of this package; `%debug` has them."""
        return [f"{type(self).__name__}: {self}"]


class MissingData(UserError):
    """A dataset that is not on this machine; the message says how to get it."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the caller's line outside of this package and torch."""
    level = 1
    frame = inspect.currentframe()
    while frame and frame.f_back and frame.f_globals["__name__"].partition(".")[0] in OURS:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def choose(kind: str, value: object, choices: Iterable[object]) -> None:
    """Raise `UserError`, with the closest choice if any is close, unless `value` is one of `choices`."""
    allowed = list(choices)
    if value in allowed:
        return
    names = [str(choice) for choice in allowed]
    by_small = {name.casefold(): name for name in names}
    close = difflib.get_close_matches(str(value).casefold(), by_small, n=1)
    hint = f"; did you mean {by_small[close[0]]!r}?" if close else ""
    raise UserError(f"{kind} {value!r} unknown; choose from {', '.join(names)}{hint}")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return "1 row", "1,000 rows"; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def real(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> float:
    """Return `value` as a float within low ≤ value ≤ high and above < value < below.

    Takes plain numbers, numpy scalars and tensors of one element without gradient. Raises
    `UserError` for anything else, NaN, infinity, booleans and strings.
    """
    number = _as_float(value)
    if not (math.isfinite(number) and low <= number <= high and above < number < below):
        trained = getattr(value, "requires_grad", False) is True
        hint = f"; {name} cannot be learned: pass its value, {name}.item()" if trained else ""
        wanted = describe_range(low, high, above, below)
        raise UserError(f"{name} must be {wanted}, got {_one_line(value)}{hint}")
    return number


def whole(name: str, value: Any, low: int) -> int:
    """Return `value` as an int of at least `low`; raise `UserError` for anything else."""
    try:
        number = low - 1 if _is_bool(value) else operator.index(value)
    except TypeError:
        number = low - 1
    if number < low:
        raise UserError(f"{name} must be a whole number of at least {low}, got {_one_line(value)}")
    return number


def _as_float(value: Any) -> float:
    """Return `value` as a float, NaN where it is no number or carries a gradient."""
    if isinstance(value, (str, bytes)) or _is_bool(value) or getattr(value, "requires_grad", False):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def _is_bool(value: Any) -> bool:
    """Tell whether `value` is a boolean of Python, numpy or torch."""
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))


def describe_range(
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> str:
    """Return a range in words."""
    ends = {"of at least": low, "above": above, "and at most": high, "and below": below}
    bounds = [f"{word} {end:g}" for word, end in ends.items() if math.isfinite(end)]
    return f"a number {' '.join(bounds).removeprefix('and ')}" if bounds else "a finite number"


def _one_line(value: Any, limit: int = 120) -> str:
    """Return the repr of `value` on one line, cut at `limit` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
