"""Changes of a profile's parameters, as people give them: on the command line and in a page."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml.error import YAMLError

from softadlib._validation import UserError, choose
from softadlib.methods import METHODS, PAPER
from softadlib.workbook.studies.params import load, parse_yaml, write_profile
from softadlib.workbook.studies.protocol import Protocol
from softadlib.workbook.studies.sweep import check_name
from softadlib.workbook.studies.work import derived_files

NUMBERS = re.compile(r"[-+.\deE\s]+(?:,[-+.\deE\s]+)+")
"""Two numbers or more with commas between them: a list without brackets."""
LONGEST_NAME = 60
"""Characters of a name that is made of changes; a longer one is shortened to a hash."""
INJECTED = "# Parameters"
"""First line of the cell that papermill writes."""
ASSIGNED = re.compile(r"^(\w+)(?:: \w+)? = ", re.MULTILINE)
"""The name in `lr = 0.1` or `lr: float = 0.1`."""


def parse(pairs: Sequence[str]) -> dict[str, Any]:
    """Read every `-p NAME=VALUE`. Raises UserError for an unknown name, and where the value is not YAML."""
    values = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name in ("dataset", "method"):
            raise UserError(f"{name} is no parameter; give it as --{name}")
        _refuse_unknown(name)
        values[name] = _parse_value(name, text)
    return values


def _parse_value(name: str, text: str) -> Any:
    """Return the value of a parameter from YAML; `0.1,0.2` is a list as `[0.1, 0.2]` is."""
    listed = f"[{text}]" if NUMBERS.fullmatch(text) else text
    try:
        return parse_yaml(listed)
    except (YAMLError, ValueError):
        raise UserError(f"parameter {name}: {text!r:.80} is not YAML") from None


def _refuse_unknown(name: str) -> None:
    """Raise UserError for what is no parameter, with the name to write where it can be told."""
    grids = [f"grids.{m.name}" for m in METHODS.values() if m.hyperparameter == name]
    settings = [f"settings.{m.name}.{name}" for m in METHODS.values() if name in m.settings]
    if grids or settings:
        choices = grids + settings
        likely = [choice for choice in choices if choice.split(".")[1] in PAPER] or choices
        example = f"{likely[-1]}=0.1,0.2" if likely[-1] in grids else f"{likely[-1]}=VALUE"
        raise UserError(
            f"{name} belongs to a method; give it as {', '.join(choices)}, such as -p {example}"
        )
    names = [field for field in Protocol.names() if field not in ("profile", "dataset")]
    try:
        check_name(name.partition(".")[0], names)
    except UserError as error:
        words = re.sub(r"[_-]", " ", name).lower()
        for field, facts in Protocol.model_fields.items():
            if "did you mean" not in str(error) and words in (facts.description or "").lower():
                raise UserError(f"{error}; did you mean {field!r}?") from None
        raise


def changed_protocol(
    profile: str,
    dataset: str,
    method: str,
    changes: Mapping[str, Any] | str | None = None,
    as_profile: str | None = None,
) -> Protocol:
    """Return the protocol of a dataset with the parameters that a page was given.

    A changed protocol is kept under another name, so that it never replaces or adds to the results of
    `profile`: `params/<name>/<dataset>.yaml` is written.

    Args:
        profile: the folder below `params/` to start from.
        dataset: the file in it.
        method: the method to train.
        changes: parameters by name, a mapping or a line of YAML such as "{lr: 0.01}".
        as_profile: where the results go. None: the profile itself without changes, else a name that
            is made of them, such as try-quick-lr-0.01.

    Raises:
        UserError: for an unknown parameter, a bad value, or a name that has other parameters.
    """
    wanted = _as_mapping(changes)
    for parameter in wanted:
        if parameter in ("profile", "dataset", "method"):
            raise UserError(f"{parameter} is a parameter of the page, not one of its changes")
        _refuse_unknown(parameter)
    protocol = load(profile, dataset, wanted)
    protocol.select_methods([method])
    name = as_profile or (name_of(profile, wanted) if wanted else profile)
    if name == profile:
        return protocol
    for path, content in derived_files(profile, name, [dataset], wanted).items():
        write_profile(path, content)
    return load(name, dataset)


def name_of(profile: str, changes: Mapping[str, Any]) -> str:
    """Return a name for these changes of a profile: the same changes have the same name.

    git ignores the profiles of this name.
    """
    words = ["try", profile]
    for key, value in sorted(changes.items()):
        words += [key.rpartition(".")[2], json.dumps(value)]
    name = re.sub(r"[^\w.]+", "-", "-".join(words), flags=re.ASCII).strip("-")
    if len(name) <= LONGEST_NAME:
        return name
    content = json.dumps(changes, sort_keys=True)
    return f"try-{profile}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _as_mapping(changes: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return changes as a dictionary, also from a line of YAML. Raises UserError for anything else."""
    values = _parse_value("changes", changes) if isinstance(changes, str) else changes
    if not isinstance(values or {}, Mapping):
        raise UserError(f"changes must be {{NAME: VALUE}}, got {changes!r:.80}")
    return dict(values or {})


def check_parameters() -> None:
    """Raise UserError in a page that papermill gave a parameter which the page does not have.

    papermill warns of it and goes on with the page's own values.
    """
    from IPython import get_ipython

    executed = [cell for cell in get_ipython().user_ns["In"] if cell.strip()]
    if len(executed) < 2:  # a kernel that keeps no history, as under nbval
        return
    own, injected = executed[0], executed[1]
    if injected.startswith(INJECTED):
        for name in ASSIGNED.findall(injected):
            if name in Protocol.names() and name not in ASSIGNED.findall(own):
                raise UserError(
                    f"parameter {name!r} is of the profile; give changes={{{name}: VALUE}}"
                )
            choose("parameter", name, ASSIGNED.findall(own))
