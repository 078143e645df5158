"""What editors and readers are told of profiles is what the protocol takes."""

import json

import jsonschema
import pytest
from helpers.workspace import REPOSITORY

from softadlib._yaml import read_yaml
from softadlib.methods import METHODS
from softadlib.training.protocol import Protocol
from softadlib.workbook import schema

PARAMS = REPOSITORY / "params"
FILES = sorted(PARAMS.glob("*/*.yaml"))


def test_both_files_are_current():
    """`python -m softadlib.workbook.schema` writes them."""
    assert json.loads((PARAMS / "schema.json").read_text()) == schema.schema()
    readme = (PARAMS / "README.md").read_text()
    assert schema.with_reference(readme) == readme


def test_the_reference_names_every_parameter_and_setting():
    readme = (PARAMS / "README.md").read_text()
    settings = [f"{m.name}.{name}" for m in METHODS.values() for name in m.settings]
    for name in (*Protocol.names(), *settings):
        assert f"| `{name}` |" in readme


def test_the_whole_file_shown_is_the_papers():
    shown = (PARAMS / "README.md").read_text().split("```yaml\n")[1].split("```")[0]
    written = (PARAMS / "paper" / "gaussian.yaml").read_text().splitlines(keepends=True)
    told = [line for line in written if "language-server" in line or not line.startswith("#")]
    assert shown == "".join(told)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_profile_is_valid_and_names_the_schema(path):
    jsonschema.validate(read_yaml(path), schema.schema())
    assert path.read_text().startswith("# yaml-language-server: $schema=../schema.json\n")


@pytest.mark.parametrize(
    "values",
    [
        {"epoch": 3},
        {"epochs": 0},
        {"model": "resnet99"},
        {"label_noise": 2},
        {"settings": {"softad": {"sigma": 0}}},
        {"settings": {"sam": {"sigma": 1}}},
        {"grids": {"sam": "auto"}},
        {"grids": {"sam": [-0.1]}},
        {"grids": {"cvar": [1]}},
        {"grids": {"adaflood": [1.5]}},
        {"grids": {"nosuch": [1]}},
    ],
    ids=str,
)
def test_an_editor_marks_what_the_protocol_refuses(values):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, schema.schema())
