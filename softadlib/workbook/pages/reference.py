"""What editors and `params/README.md` say of a profile's parameters: a schema, and tables.

`python -m softadlib.workbook.pages.reference` writes both after a change of methods, settings or models.
"""

import json
from typing import Any

from softadlib._files import params_dir, write
from softadlib._validation import describe_range
from softadlib.methods import METHODS
from softadlib.models import MODELS
from softadlib.workbook.pages.toc import write_between
from softadlib.workbook.studies.protocol import Protocol

MARKS = ("<!-- parameters -->", "<!-- end of parameters -->")
"""Lines of `params/README.md` between which its tables stand."""
GRID = {
    "anyOf": [
        {"type": "number"},
        {"type": "array", "items": {"type": "number"}},
        {"type": "object", "required": ["linspace"]},
    ]
}
"""What `grids` takes for a method."""


def schema() -> str:
    """Return `params/schema.json`, by which editors complete and check a profile's file."""
    document = Protocol.model_json_schema()
    document.pop("required")  # the path says profile and dataset
    extends = "PROFILE/DATASET whose values hold where this file has none."
    methods = "A Python file that adds methods of your own to `softadlib.methods.METHODS`."
    of_files = {
        "extends": {"type": "string", "description": extends},
        "methods": {"type": "string", "description": methods},
    }
    fields = of_files | document["properties"]
    document["properties"] = fields
    document["patternProperties"] = {r"^(grids|settings)\.": {}}
    # What validators accept and refuse besides the fields' types.
    fields["model"]["enum"] = list(MODELS)
    noise = fields["label_noise"]
    noise["anyOf"] = [noise["items"], {"type": noise.pop("type"), "items": noise.pop("items")}]
    fields["grids"] |= _entries({m.name: GRID for m in METHODS.values() if m.hyperparameter})
    settings = {}
    for method in METHODS.values():
        of_method = {
            name: {"default": setting.default, "description": setting.meaning}
            for name, setting in method.settings.items()
        }
        if of_method:
            settings[method.name] = {"type": "object", **_entries(of_method)}
    fields["settings"] |= _entries(settings)
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _entries(properties: dict[str, Any]) -> dict[str, Any]:
    """Say that an object has these properties and no others."""
    return {"additionalProperties": False, "properties": properties}


def tables() -> str:
    """Return the tables of `params/README.md`: every parameter, every setting, every method's values."""
    lines = ["| parameter | default | meaning |", "|---|---|---|"]
    for name, facts in json.loads(schema())["properties"].items():
        if name in ("extends", "methods"):
            continue
        has_default = "default" in facts and name != "settings"
        default = f"`{json.dumps(facts['default'])}`" if has_default else ""
        meaning = " ".join(facts["description"].split())
        if "enum" in facts:
            meaning += f" One of {', '.join(facts['enum'])}."
        lines.append(f"| `{name}` | {default} | {meaning} |")
    lines += ["", "Settings, `settings: {METHOD: {NAME: VALUE}}`:", ""]
    lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for method in METHODS.values():
        for name, setting in method.settings.items():
            bounds = describe_range(low=setting.low, above=setting.above)
            allowed = ", ".join(setting.choices) or bounds
            about = f"`{setting.default}` | {allowed} | {setting.meaning}"
            lines.append(f"| `{method.name}.{name}` | {about} |")
    title = "Hyperparameters, swept by `grids: {METHOD: VALUES}`, column `knob` of every table:"
    lines += ["", title, ""]
    lines += ["| method | hyperparameter | values |", "|---|---|---|"]
    for method in METHODS.values():
        if method.hyperparameter:
            bounds = describe_range(**method.bounds)
            lines.append(
                f"| `{method.name}` ({method.label}) | {method.axis or method.hyperparameter} | {bounds} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_between(params_dir() / "README.md", MARKS, f"\n{tables()}")
    write(params_dir() / "schema.json", schema())
