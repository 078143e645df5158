"""The identity of a result: a hash of what one run does, and how older versions wrote the same facts."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from softadlib.methods import METHODS

NUMERICS_VERSION = 3
"""Raised by hand whenever the same protocol would give other numbers: old results are set aside."""

RUNTIME_FIELDS = ("device", "stack", "checkpoint_every")
"""Fields that may change where and how fast a run is made, never its numbers."""
SELECTION_FIELDS = ("profile", "trials", "label_noise", "grids", "ties", "curves", "curve_every")
"""Fields that say which runs and rows there are, never what one run does."""
LEGACY_SETTINGS: dict[str, tuple[str, ...]] = {
    "sigma": ("softad",),
    "scale": ("softad",),
    "bn_update": ("sam", "asam", "gnp", "fdgr"),
    "variant": ("asam",),
    "eta": ("asam",),
    "radius": ("gnp",),
    "mixing": ("gnp",),
    "step_size": ("fdgr",),
    "scheme": ("fdgr",),
    "aux": ("adaflood",),
    "aux_folds": ("adaflood",),
}
"""Settings that were fields of the protocol once, and their methods. Fingerprints hash them as fields."""
LEGACY_DEFAULTS = {"aux": "folds", "aux_folds": 5, "folder": ""}
"""Fields that are newer than the oldest results, with the values that those were made with."""


def fingerprint(values: Mapping[str, Any], method: str) -> str:
    """Hash what one run of `method` does, given all fields of a protocol.

    The method's own settings enter as they did in the results that exist: the older ones as fields,
    the others only where they differ from their default. Those of other methods do not count.
    """
    skip = {*RUNTIME_FIELDS, *SELECTION_FIELDS, "settings"}
    facts = {name: value for name, value in values.items() if name not in skip}
    own = values["settings"].get(method, {})
    for name, methods in LEGACY_SETTINGS.items():
        if methods[0] in METHODS:
            facts[name] = own[name] if method in methods else METHODS[methods[0]].defaults[name]
    for name, value in own.items():
        is_field = method in LEGACY_SETTINGS.get(name, ())
        if not is_field and value != METHODS[method].defaults[name]:
            facts[f"{method}.{name}"] = value
    facts = {k: v for k, v in facts.items() if LEGACY_DEFAULTS.get(k) != v}
    text = json.dumps([NUMERICS_VERSION, facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def current_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a stored protocol, its settings moved to their methods."""
    settings = {method: dict(v) for method, v in values.get("settings", {}).items()}
    for name, methods in LEGACY_SETTINGS.items():
        for method in methods if name in values else ():
            settings.setdefault(method, {})[name] = values[name]
    current = {name: value for name, value in values.items() if name not in LEGACY_SETTINGS}
    return {**current, "settings": settings}


def where_to_write(name: str, value: Any) -> str:
    """Say where to write a setting that was a field of the protocol once."""
    settings = " or ".join(f"{{{m}: {{{name}: {value}}}}}" for m in LEGACY_SETTINGS[name])
    return (
        f"parameter {name!r} belongs to a method; write settings: {settings}, "
        f"on the command line -p settings.{LEGACY_SETTINGS[name][0]}.{name} {value}"
    )
