"""Checks of a protocol's values, and their errors in one line: grids, batch sizes, what pydantic finds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import ValidationError

from softadlib._validation import UserError, choose, real, whole
from softadlib.methods import METHODS

AUTO = {"auto": "theta", "auto-low": "theta_low", "auto-high": "theta_high"}
"""Words that stand for a grid of θ, and what each takes of `suggest_theta` in every trial."""
MOST_VALUES = 10_000
"""Longest grid that {linspace: …} makes."""


def check_batches(n_train: int, batch_size: int) -> None:
    """Raise UserError where the last batch would be a single sample, on which batch norm cannot train."""
    if n_train % batch_size == 1:
        raise UserError(
            f"batch_size {batch_size} leaves a last batch of one of {n_train} samples, "
            "on which batch norm cannot train; choose another batch_size"
        )


def parse_grid(method: str, values: Any) -> tuple[float, ...] | str:
    """Return knob values of one method, sorted and unique, from a list or {linspace: [start, stop, count]}.

    Of θ also a word of `AUTO`.
    """
    name, knob = f"grids.{method}", METHODS[method].knob
    if isinstance(values, str):
        if knob != "theta":
            takers = ", ".join(m.name for m in METHODS.values() if m.knob == "theta")
            raise UserError(
                f"{name} must be a list of numbers, got {values!r}; {takers} take a word"
            )
        choose(f"word for {name} in place of a list of numbers", values, AUTO)
        return values
    if isinstance(values, Mapping):
        values = _linspace(name, values)
    if not isinstance(values, (list, tuple)):
        raise UserError(f"{name} must be a list of numbers, got {values!r}")
    if not values:
        raise UserError(f"{name} is empty; give at least one {knob}, or leave the method out")
    bounds = METHODS[method].knob_bounds
    grid = [real(f"{knob} in {name}", v, **bounds) for v in values]
    if len(set(grid)) != len(grid):
        raise UserError(f"{name} names a value twice: {values!r}")
    return tuple(sorted(grid))


def _linspace(name: str, values: Mapping[str, Any]) -> list[float]:
    """Return the values of {linspace: [start, stop, count]}."""
    ends = values.get("linspace")
    if set(values) != {"linspace"} or not isinstance(ends, (list, tuple)):
        raise UserError(
            f"{name} must be a list or {{linspace: [start, stop, count]}}, got {dict(values)!r}"
        )
    if len(ends) != 3:
        raise UserError(f"{name}.linspace takes start, stop, count, got {ends!r}")
    start, stop = (real(f"{name} {end}", v) for end, v in zip(("start", "stop"), ends))
    count = whole(f"{name} count", ends[2], 1)
    if count > MOST_VALUES:
        raise UserError(f"{name} count must be at most {MOST_VALUES:,}, got {count}")
    return [float(value) for value in np.linspace(start, stop, count)]


def user_error(error: ValidationError, schema: Mapping[str, Any]) -> UserError:
    """Return the first of pydantic's errors as one line: name, what the schema allows, value."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return cause
    name, value, properties = str(first["loc"][0]), first["input"], schema["properties"]
    if first["type"] == "missing":
        return UserError(f"parameter {name!r} is missing")
    try:
        choose("parameter", name, properties)
        choose(name, value, properties[name].get("enum", [value]))
    except UserError as refusal:
        return refusal
    return UserError(f"{name} must be {allowed(properties[name])}, got {value!r}{_hint(value)}")


def allowed(facts: Mapping[str, Any]) -> str:
    """Say what a property of the JSON schema allows."""
    if "anyOf" in facts:
        return ", or ".join(allowed(part) for part in facts["anyOf"])
    if "const" in facts or "enum" in facts:
        return ", ".join(map(str, facts.get("enum", [facts.get("const")])))
    if "pattern" in facts:
        return "a plain folder name"
    kinds = {"integer": "a whole number", "number": "a number", "string": "a text"}
    words = [kinds.get(facts.get("type", ""), "a mapping")]
    if "minimum" in facts:
        words.append(f"of at least {_number(facts['minimum'])}")
    if "exclusiveMinimum" in facts:
        words.append(f"above {_number(facts['exclusiveMinimum'])}")
    if "maximum" in facts:
        words.append(f"and at most {_number(facts['maximum'])}")
    return " ".join(words)


def _number(x: float) -> str:
    """Write a bound: 10,000,000 or 0.5."""
    return f"{int(x):,}" if x == int(x) else f"{x:g}"


def _hint(value: Any) -> str:
    """Say what to do about a number or a list that stands in quotes."""
    import yaml

    from softadlib._yaml import parse_yaml

    try:
        quoted = isinstance(value, str) and isinstance(parse_yaml(value), (int, float, list, dict))
    except yaml.YAMLError:
        quoted = False
    return " (a text: write it without quotes)" if quoted else ""
