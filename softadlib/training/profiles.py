"""`params/<profile>/<dataset>.yaml` → checked protocols."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softadlib._validation import UserError, choose
from softadlib.training.protocol import DATASETS, Protocol


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping, or a UserError naming file and line."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or "not YAML"
        raise UserError(f"{path}{where}: broken YAML ({what})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict) or not all(isinstance(k, str) for k in values):
        raise UserError(f"{path} must hold `name: value` lines, got {type(values).__name__}")
    return values


def datasets_of(profile: str, params: Path) -> list[str]:
    """The datasets a profile has a file for, in `DATASETS` order."""
    profiles = sorted(p.name for p in params.iterdir() if p.is_dir()) if params.is_dir() else []
    if not profiles:
        raise UserError(
            f"no profiles under {params}; run inside the repository or set SOFTAD_HOME to it"
        )
    choose("profile", profile, profiles)
    files = {p.stem for p in (params / profile).glob("*.yaml")}
    return [d for d in DATASETS if d in files] + sorted(files - set(DATASETS))


def load(
    profile: str, dataset: str, params: Path, overrides: Mapping[str, Any] | None = None
) -> Protocol:
    """`params/<profile>/<dataset>.yaml`, with `overrides` on top.

    Raises UserError for an unknown profile or dataset, a broken file, a bad key or value.
    """
    choose("dataset", dataset, datasets_of(profile, params))
    path = params / profile / f"{dataset}.yaml"
    values = read_yaml(path)
    for key, expected in (("profile", profile), ("dataset", dataset)):
        if values.setdefault(key, expected) != expected:
            raise UserError(f"{path}: {key} is {values[key]!r} but the path says {expected!r}")
    try:
        Protocol.from_dict(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    for key in overrides or {}:
        choose("parameter", key, [n for n in Protocol.names() if n not in ("profile", "dataset")])
    return Protocol.from_dict({**values, **(overrides or {})})
