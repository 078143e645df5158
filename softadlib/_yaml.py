"""YAML as profiles are written in it: numbers are decimal, and no key stands twice."""

import re
from pathlib import Path
from typing import Any

import yaml

from softadlib._validation import UserError


class _Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
    """YAML with numbers as in version 1.2, in which each key stands once.

    1e-3 is a number without a point. 010 is no octal number and 1:30 no ninety: both are texts.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if key.tag == "tag:yaml.org,2002:str"]
        for i, key in enumerate(keys):
            if key.value in [other.value for other in keys[:i]]:
                twice = f"{key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, twice, key.start_mark)
        return dict(super().construct_mapping(node, deep))


NUMBERS = {
    "int": r"[-+]?(0|[1-9][0-9_]*)",
    "float": r"[-+]?([0-9]+\.[0-9]*([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.[0-9]+([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))"
    r"|\.(nan|NaN|NAN)",
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in rules if tag.rpartition(":")[2] not in NUMBERS]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _form in NUMBERS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"^({_form})$"), list("-+.0123456789")
    )


def parse_yaml(text: str) -> Any:
    """Return the value that `text` stands for; raises `yaml.YAMLError`."""
    loader = _Loader(text)  # a SafeLoader: it makes plain values only
    try:
        return loader.get_single_data()
    except RecursionError:
        raise yaml.YAMLError("too many levels") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        # 2026-13-01, !!int x, and others that yaml itself does not catch
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise yaml.MarkedYAMLError(problem=what) from None
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
