"""`params/<profile>/<dataset>.yaml` → checked protocols."""

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from softadlib import _workspace
from softadlib._validation import UserError, choose
from softadlib.data.images import dataset_names
from softadlib.results.fingerprint import LEGACY_SETTINGS
from softadlib.training.protocol import Protocol


class _Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
    """YAML that reads 1e-3 and 1e2 as numbers (YAML 1.1 wants a point and a sign), and names each key once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if key.tag == "tag:yaml.org,2002:str"]
        for i, key in enumerate(keys):
            if key.value in [other.value for other in keys[:i]]:
                twice = f"{key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, twice, key.start_mark)
        return dict(super().construct_mapping(node, deep))


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str) -> Any:
    """Return the value that `text` stands for; raises `yaml.YAMLError`."""
    loader = _Loader(text)  # a SafeLoader: it makes plain values only
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping, or raise a UserError that names file and line."""
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
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


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with `changes` on top.

    A dotted key such as `grids.softad` changes one entry and leaves the others; null removes it.
    """
    merged = copy.deepcopy(dict(values))
    for key, value in changes.items():
        *parents, last = key.split(".")
        target = merged
        for name in parents:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise UserError(f"{key} cannot be set: {name} is {target!r}, no mapping")
        if parents and value is None:
            target.pop(last, None)
        else:
            target[last] = value
    return merged


def read_profile(path: Path, extended: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read the values of a profile's file, on top of those of the file that it extends.

    `extended`: the files that lead here. Raises UserError for a file that is not there, and for
    one that extends itself.
    """
    return _resolve(read_yaml(path), str(path), (path, *extended))


def from_parameters(values: Mapping[str, Any]) -> Protocol:
    """Return the protocol of a notebook's parameters; those that are None come from the file `extends`."""
    names = ("extends", *Protocol.names())
    given = {name: values[name] for name in names if values.get(name) is not None}
    return Protocol.from_dict(_resolve(given, "the parameters", ()))


def _resolve(values: Mapping[str, Any], source: str, files: tuple[Path, ...]) -> dict[str, Any]:
    """Return `values`, read from `source`, on top of those of the file that they extend."""
    changes = dict(values)
    base = changes.pop("extends", None)
    if base is None:
        return merge({}, changes)
    base_path = _workspace.params_dir() / f"{base}.yaml"
    if base_path in files:
        raise UserError(f"{source}: extends {base!r}, which extends it in turn; break the circle")
    if not base_path.is_file():
        raise UserError(
            f"{source}: extends {base!r}, but {base_path} is not there; name it PROFILE/DATASET"
        )
    inherited = read_profile(base_path, files)
    return merge({k: v for k, v in inherited.items() if k not in ("profile", "dataset")}, changes)


def datasets_of(profile: str) -> list[str]:
    """List the datasets that a profile has a file for, the known ones first."""
    params = _workspace.params_dir()
    profiles = sorted(p.name for p in params.iterdir() if p.is_dir()) if params.is_dir() else []
    if not profiles:
        raise UserError(
            f"no profiles under {params}; run inside the repository or set SOFTAD_HOME to it"
        )
    choose("profile", profile, profiles)
    files = {p.stem for p in (params / profile).glob("*.yaml")}
    return [d for d in dataset_names() if d in files] + sorted(files - set(dataset_names()))


def load(profile: str, dataset: str, overrides: Mapping[str, Any] | None = None) -> Protocol:
    """Read `params/<profile>/<dataset>.yaml`, with `overrides` on top as `merge` puts them.

    Raises UserError for an unknown profile or dataset, a broken file, a bad key or value.
    """
    choose("dataset", dataset, datasets_of(profile))
    path = _workspace.params_dir() / profile / f"{dataset}.yaml"
    values = read_profile(path)
    for key, expected in (("profile", profile), ("dataset", dataset)):
        if values.setdefault(key, expected) != expected:
            raise UserError(f"{path}: {key} is {values[key]!r} but the path says {expected!r}")
    try:
        protocol = Protocol.from_dict(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    names = [n for n in Protocol.names() if n not in ("profile", "dataset")]
    for key in overrides or {}:
        if key not in LEGACY_SETTINGS:
            choose("parameter", key.partition(".")[0], names)
    return Protocol.from_dict(merge(values, overrides)) if overrides else protocol
