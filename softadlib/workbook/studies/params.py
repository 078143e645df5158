"""`params/<profile>/<dataset>.yaml` → checked protocols."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from softadlib import _files
from softadlib._validation import UserError, choose
from softadlib.workbook.data.datasets import dataset_names
from softadlib.workbook.studies import own_methods
from softadlib.workbook.studies.protocol import Protocol
from softadlib.workbook.studies.sweep import check_name


def parse_yaml(text: str) -> Any:
    """Return the plain value that YAML 1.2 `text` stands for. Raises ruamel.yaml's YAMLError."""
    return YAML(typ="safe", pure=True).load(text)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping, or raise a UserError that names file and line."""
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or "not YAML"
        raise UserError(f"{path}{where}: broken YAML ({' '.join(what.split())})") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict) or not all(isinstance(k, str) for k in values):
        raise UserError(f"{path} must hold `name: value` lines, got {type(values).__name__}")
    return values


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with `changes` on top.

    A dotted key such as `grids.softad` changes one entry and leaves the others; null removes it.
    Raises UserError for a key that leads into no mapping, and for null where there is no entry.
    """
    merged = copy.deepcopy(dict(values))
    # Whole values first: in one file `grids.softad` changes an entry of `grids`, wherever it stands.
    for key, value in sorted(changes.items(), key=lambda item: "." in item[0]):
        *parents, last = key.split(".")
        target = merged
        for name in parents:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise UserError(f"{key} cannot be set: {name} is {target!r}, no mapping")
        if parents and value is None:
            choose(f"entry of {'.'.join(parents)} to remove", last, list(target))
            del target[last]
        else:
            target[last] = value
    return merged


def write_profile(path: Path, values: Mapping[str, Any]) -> None:
    """Write a profile's file, one value per line; JSON is YAML."""
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items()]
    _files.write(path, "".join(lines))


def read_profile(path: Path, extended: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read the values of a profile's file, on top of those of the file that it extends.

    `extended`: the files that lead here. Raises UserError for a file that is not there, and for
    one that extends itself.
    """
    changes, inherited = read_yaml(path), {}
    if (file := changes.pop("methods", None)) is not None:
        try:
            own_methods.register(str(file))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    base = changes.pop("extends", None)
    if base is not None:
        params = _files.params_dir()
        base_path = params / f"{base}.yaml"
        if not base_path.resolve().is_relative_to(params.resolve()):
            raise UserError(f"{path}: extends {base!r}, which leads out of {params}")
        if base_path in (path, *extended):
            raise UserError(f"{path}: extends {base!r}, which extends it in turn; break the circle")
        if not base_path.is_file():
            raise UserError(
                f"{path}: extends {base!r}, but {base_path} is not there; name it PROFILE/DATASET"
            )
        inherited = read_profile(base_path, (path, *extended))
        inherited = {k: v for k, v in inherited.items() if k not in ("profile", "dataset")}
    try:
        return merge(inherited, changes)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def profile_names() -> list[str]:
    """List the folders of profiles. Hidden ones are others', such as JupyterLab's copies.

    Raises UserError where there is none.
    """
    params = _files.params_dir()
    folders = sorted(params.iterdir()) if params.is_dir() else []
    names = [path.name for path in folders if path.is_dir() and path.name[0] != "."]
    if not names:
        raise UserError(
            f"no profiles under {params}; run inside the repository or set SOFTAD_HOME to it"
        )
    return names


def datasets_of(profile: str) -> list[str]:
    """List the datasets that a profile has a file for, the known ones first.

    Raises UserError for an unknown profile and for one without a file.
    """
    params = _files.params_dir()
    choose("profile", profile, profile_names())
    files = {p.stem for p in (params / profile).glob("*.yaml") if p.name[0] != "."}
    if not files:
        raise UserError(
            f"{params / profile} has no DATASET.yaml (.yml is not read); copy one from another profile"
        )
    return [d for d in dataset_names() if d in files] + sorted(files - set(dataset_names()))


def load(profile: str, dataset: str, overrides: Mapping[str, Any] | None = None) -> Protocol:
    """Read `params/<profile>/<dataset>.yaml`, with `overrides` on top as `merge` puts them.

    Raises UserError for an unknown profile or dataset, a broken file, a bad key or value, and
    MissingData where your own images are not there.
    """
    choose("dataset", dataset, datasets_of(profile))
    path = _files.params_dir() / profile / f"{dataset}.yaml"
    values = read_profile(path)
    for key, expected in (("profile", profile), ("dataset", dataset)):
        if values.setdefault(key, expected) != expected:
            raise UserError(f"{path}: {key} is {values[key]!r} but the path says {expected!r}")
    try:
        protocol = Protocol(**values)
    except UserError as error:
        raise type(error)(f"{path}: {error}") from None
    names = [n for n in Protocol.names() if n not in ("profile", "dataset")]
    for key in overrides or {}:
        check_name(key.partition(".")[0], names)
    return Protocol(**merge(values, overrides)) if overrides else protocol
