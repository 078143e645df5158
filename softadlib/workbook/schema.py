"""`params/schema.json` and `params/README.md`: what a profile may hold, for editors and for people.

`python -m softadlib.workbook.schema` writes both from the protocol and the registry of methods.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from softadlib import _workspace
from softadlib._validation import describe_range
from softadlib.data.images import dataset_names
from softadlib.methods import METHODS, Method, Setting
from softadlib.models import MODELS
from softadlib.training.checks import AUTO, allowed
from softadlib.training.protocol import Protocol

MARKS = re.compile(r"(<!-- parameters -->\n).*?(<!-- end of parameters -->)", re.DOTALL)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a file `params/<profile>/<dataset>.yaml`."""
    document = Protocol.model_json_schema()
    document.pop("required")  # the path says profile and dataset
    fields = document["properties"]
    for facts in fields.values():
        facts.pop("title", None)
    fields["model"]["enum"] = list(MODELS)
    fields["dataset"]["examples"] = dataset_names()
    fraction = {"type": "number", "minimum": 0, "maximum": 1}
    fields["label_noise"] |= {"anyOf": [fraction, {"type": "array", "items": fraction}]}
    fields["label_noise"].pop("type")
    fields["label_noise"].pop("items")
    methods = [m for m in METHODS.values() if m.settings]
    fields["settings"]["properties"] = {m.name: _settings_schema(m) for m in methods}
    fields["settings"] |= {"additionalProperties": False, "default": {}}
    swept = [m for m in METHODS.values() if m.knob]
    fields["grids"]["properties"] = {m.name: _grid_schema(m) for m in swept}
    fields["grids"]["additionalProperties"] = False
    words = "PROFILE/DATASET whose values hold where this file has none."
    document["properties"] = {"extends": {"type": "string", "description": words}, **fields}
    document["patternProperties"] = {r"^(grids|settings)\.": {}}
    return document


def _grid_schema(method: Method) -> dict[str, Any]:
    """Return the schema of the grid of one method."""
    bounds = {
        "minimum": method.least,
        "maximum": method.most,
        "exclusiveMaximum": method.below,
    }
    items = {"type": "number"} | {n: bound for n, bound in bounds.items() if math.isfinite(bound)}
    values: dict[str, Any] = {"type": "array", "items": items}
    linspace = {"type": "object", "required": ["linspace"], "additionalProperties": False}
    linspace["properties"] = {"linspace": {"type": "array", "minItems": 3, "maxItems": 3}}
    words = [{"enum": list(AUTO)}] if method.knob == "theta" else []
    return {"description": f"Values of {method.knob}.", "anyOf": [values, linspace, *words]}


def _settings_schema(method: Method) -> dict[str, Any]:
    """Return the schema of the settings of one method."""
    fields = {name: setting_schema(setting) for name, setting in method.settings.items()}
    return {"type": "object", "properties": fields, "additionalProperties": False}


def setting_schema(setting: Setting) -> dict[str, Any]:
    """Return one setting as a property of the JSON schema."""
    facts: dict[str, Any] = {"description": setting.meaning, "default": setting.default}
    if setting.choices:
        return {**facts, "enum": list(setting.choices)}
    facts["type"] = "integer" if isinstance(setting.default, int) else "number"
    bounds = {"minimum": setting.low, "exclusiveMinimum": setting.above}
    return facts | {name: bound for name, bound in bounds.items() if math.isfinite(bound)}


@dataclass(frozen=True)
class Description:
    """What one parameter may be, in words."""

    default: str
    values: str
    meaning: str


def describe() -> dict[str, Description]:
    """Describe every parameter by its dotted name: `lr`, `settings.softad.sigma`, `grids.softad`."""
    described = {}
    for name, facts in schema()["properties"].items():
        field = Protocol.model_fields.get(name)
        default = "" if field is None or field.is_required() else _json(field.default)
        described[name] = Description(default, _values(name, facts), facts["description"])
    for method in METHODS.values():
        for name, setting in method.settings.items():
            values = _values(name, setting_schema(setting))
            described[f"settings.{method.name}.{name}"] = Description(
                _json(setting.default), values, setting.meaning
            )
    for method in METHODS.values():
        if method.knob:
            values = describe_range(**method.knob_bounds)
            described[f"grids.{method.name}"] = Description("", values, f"Values of {method.axis}.")
    return described


def reference() -> str:
    """Return the tables of `params/README.md`: every parameter, every setting, every knob."""
    described = describe()
    lines = ["| parameter | default | values | meaning |", "|---|---|---|---|"]
    lines += [_entry(name, about) for name, about in described.items() if "." not in name]
    lines += ["", "Settings of methods, `settings: {METHOD: {NAME: VALUE}}`:", ""]
    lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, about in described.items():
        if name.startswith("settings."):
            lines.append(_entry(name.removeprefix("settings."), about))
    lines += ["", "Knobs, swept by `grids: {METHOD: VALUES}`:", ""]
    lines += ["| method | knob | axis | values |", "|---|---|---|---|"]
    for method in METHODS.values():
        if method.knob:
            values = described[f"grids.{method.name}"].values
            lines.append(_row(f"`{method.name}`", method.knob, method.axis, values))
    return "\n".join(lines) + "\n"


def _entry(name: str, about: Description) -> str:
    """Return one line of the reference."""
    default = f"`{about.default}`" if about.default else ""
    return _row(f"`{name}`", default, about.values, about.meaning)


def _json(value: object) -> str:
    """Return a default as YAML writes it."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _values(name: str, facts: dict[str, Any]) -> str:
    """Say what a parameter may be."""
    special = {
        "extends": "PROFILE/DATASET",
        "dataset": f"{', '.join(dataset_names())}, or your own",
        "folder": "a path",
        "label_noise": "a fraction, or a list of them",
        "grids": "see below",
        "settings": "see below",
    }
    return special.get(name) or allowed(facts)


def _row(*cells: str) -> str:
    """Return one line of a Markdown table."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def with_reference(readme: str) -> str:
    """Return the text of `params/README.md` with the tables between its marks."""
    return MARKS.sub(lambda match: f"{match[1]}{reference()}{match[2]}", readme)


def write() -> None:
    """Write both files of this workbook, the reference between the marks of the README."""
    params = _workspace.params_dir()
    text = json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
    _workspace.write(params / "schema.json", text)
    readme = (params / "README.md").read_text(encoding="utf-8")
    _workspace.write(params / "README.md", with_reference(readme))


if __name__ == "__main__":
    write()
