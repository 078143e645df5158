"""Changes of a profile's parameters, as people give them: on the command line and in a page."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml.error import YAMLError

from softadlib._validation import UserError, choose
from softadlib.methods import METHODS, PAPER, get_method
from softadlib.workbook.studies.params import load, parse_yaml, write_profile
from softadlib.workbook.studies.protocol import Protocol
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
    """Read every `-p NAME=VALUE`. Raises UserError where the value is not YAML."""
    values = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        _point_to_methods(name)
        values[name] = _parse_value(name, text)
    return values


def _parse_value(name: str, text: str) -> Any:
    """Return the value of a parameter from YAML; `0.1,0.2` is a list as `[0.1, 0.2]` is."""
    listed = f"[{text}]" if NUMBERS.fullmatch(text) else text
    try:
        return parse_yaml(listed)
    except (YAMLError, ValueError):
        raise UserError(f"parameter {name}: {text!r:.80} is not YAML") from None


def _point_to_methods(name: str) -> None:
    """Raise UserError for a method's hyperparameter without the method, and for what is an option."""
    if name in ("dataset", "method"):
        raise UserError(f"{name} is no parameter; give it as --{name}")
    if name in Protocol.names():
        return
    grids = [f"grids.{m.name}" for m in METHODS.values() if m.knob == name]
    settings = [f"settings.{m.name}.{name}" for m in METHODS.values() if name in m.settings]
    if grids or settings:
        choices = grids + settings
        likely = [choice for choice in choices if choice.split(".")[1] in PAPER] or choices
        example = f"{likely[-1]}=0.1,0.2" if likely[-1] in grids else f"{likely[-1]}=VALUE"
        raise UserError(
            f"{name} belongs to a method; give it as {', '.join(choices)}, such as -p {example}"
        )


def changed_protocol(
    profile: str,
    dataset: str,
    method: str,
    given: Mapping[str, Any],
    changes: Mapping[str, Any] | str | None = None,
    as_profile: str | None = None,
) -> Protocol:
    """Return the protocol of a dataset with the parameters that a page was given.

    A changed protocol is kept under another name, so that it never replaces or adds to the results of
    `profile`: `params/<name>/<dataset>.yaml` is written.

    Args:
        profile: the folder below `params/` to start from.
        dataset: the file in it.
        method: the method to train; `theta` is its threshold.
        given: parameters by name; those that are None stay as the profile has them.
        changes: further parameters, a mapping or a line of YAML such as "{dtype: float32}".
        as_profile: where the results go. None: the profile itself without changes, else a name that
            is made of them, such as quick-lr-0.01.

    Raises:
        UserError: for an unknown parameter, a bad value, or a name that has other parameters.
    """
    wanted = {name: value for name, value in given.items() if value is not None}
    wanted |= _as_mapping(changes)
    if "theta" in wanted:
        theta = wanted.pop("theta")
        values = _parse_value("theta", theta) if isinstance(theta, str) else theta
        wanted[_name_of_theta(method)] = values
    protocol = load(profile, dataset, wanted)
    protocol.select_methods([method])
    name = as_profile or (name_of(profile, wanted) if wanted else profile)
    if name == profile:
        return protocol
    for path, content in derived_files(profile, name, [dataset], wanted).items():
        write_profile(path, content)
    return load(name, dataset)


def name_of(profile: str, changes: Mapping[str, Any]) -> str:
    """Return a profile's name for these changes: the same changes have the same name."""
    words = [profile]
    for key, value in sorted(changes.items()):
        words += [key.rpartition(".")[2], json.dumps(value)]
    name = re.sub(r"[^\w.]+", "-", "-".join(words), flags=re.ASCII).strip("-")
    if len(name) <= LONGEST_NAME:
        return name
    content = json.dumps(changes, sort_keys=True)
    return f"{profile}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _as_mapping(changes: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return changes as a dictionary, also from a line of YAML. Raises UserError for anything else."""
    values = _parse_value("changes", changes) if isinstance(changes, str) else changes
    if not isinstance(values or {}, Mapping):
        raise UserError(f"changes must be {{NAME: VALUE}}, got {changes!r:.80}")
    return dict(values or {})


def _name_of_theta(method: str) -> str:
    """Return the parameter that holds a method's θ. Raises UserError where it has none."""
    chosen = get_method(method)
    if chosen.knob == "theta":
        return f"grids.{method}"
    if "theta" in chosen.settings:
        return f"settings.{method}.theta"
    if chosen.knob is None:
        raise UserError(f"theta: {method} has no hyperparameter; leave theta out")
    instead = f"changes={{grids.{method}: VALUES}}"
    raise UserError(f"theta: {method} has {chosen.knob} in place of it; give {instead}")


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
            choose("parameter", name, ASSIGNED.findall(own))
