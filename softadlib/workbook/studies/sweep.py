"""Which runs a profile asks for, and where they execute: nothing here changes what one run does."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from softadlib._validation import UserError, choose, real, whole
from softadlib.methods import METHODS, get_method
from softadlib.workbook.studies.schema import RunKey

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Size = Annotated[int, Field(ge=0, le=10_000_000)]
RENAMED = {"linked": "closed_form"}
"""Fields that older files call otherwise: old name → name."""


@dataclass(frozen=True, order=True)
class Run:
    """One training: a method at one value of its hyperparameter, on the data and initial weights of one trial."""

    method: str
    label_noise: float
    trial: int
    knob: float
    """NaN for a method without a hyperparameter to sweep."""

    @property
    def key(self) -> RunKey:
        """Identity within a method."""
        return RunKey.from_values(self.label_noise, self.trial, self.knob)


class Sweep(BaseModel):
    """The runs of one dataset: label noise × trial × value of each method's hyperparameter.

    Raises a one-line `UserError` for a bad value. The methods are ERM and those with a grid.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    profile: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """Name of the folder under `params/` and under `outputs/`."""
    trials: Annotated[int, Field(ge=1, le=10_000)] = 15
    """Repetitions, each with its own data, initial weights and order of samples."""
    label_noise: tuple[Share, ...] = (0.0,)
    """Fraction of flipped labels, or a list: in every part of a synthetic set, in training of a table."""
    grids: Mapping[str, tuple[float, ...]] = {}
    """Values of each method's hyperparameter: a list or `{linspace: [start, stop, count]}`."""
    ties: Literal["largest", "smallest", "loss"] = "largest"
    """What selects a value: validation accuracy, among equals the largest or smallest; or validation loss."""
    curves: Literal["selected", "all", "none"] = "selected"
    """The runs that are measured during training; the others are measured at the last epoch."""
    curve_every: Count = 1
    """Epochs between two points of a curve."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where networks are trained."""
    convolutional_at_once: Annotated[int, Field(ge=1, le=64)] = 1
    """Convolutional networks that a GPU trains side by side, each in a stream of its own."""
    checkpoint_every: Literal["auto"] | Size = "auto"
    """Epochs between two saved states of a training, 0 for none; `auto` saves about every minute."""

    def __init__(self, /, **values: Any):
        for name in values:
            check_name(name, self.names())
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _user_error(error) from None

    @field_validator("label_noise", mode="before")
    @classmethod
    def _distinct_noises(cls, value: Any) -> tuple[float, ...]:
        """Accept a fraction, or several different ones."""
        noises = value if isinstance(value, (list, tuple)) else [value]
        checked = tuple(real("label_noise", noise, low=0, high=1) for noise in noises)
        if not checked or len(set(checked)) != len(checked):
            raise UserError(
                f"label_noise must be a fraction or a list of different ones, got {value!r}"
            )
        return checked

    @field_validator("grids", mode="before")
    @classmethod
    def _sorted_grids(cls, value: Any) -> dict[str, tuple[float, ...]]:
        """Return the grids in the registry's order, their values sorted."""
        if not isinstance(value, Mapping):
            raise UserError(f"grids must map methods to lists of values, got {value!r}")
        swept = [m.name for m in METHODS.values() if m.hyperparameter]
        for method in value:
            choose("method in grids", method, swept)
        return {m: _parse_grid(m, value[m]) for m in swept if m in value}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the fields, in order: the keys a YAML file may hold."""
        return tuple(cls.model_fields)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings, as YAML and JSON hold them."""
        return self.model_dump(mode="json")

    @property
    def methods(self) -> tuple[str, ...]:
        """ERM and every method with a grid, in the registry's order."""
        return tuple(m for m in METHODS if m == "erm" or m in self.grids)

    def runs(self, method: str) -> tuple[Run, ...]:
        """Return every training of one method: label noise × trial × value."""
        choose("method", method, self.methods)
        values = self.grids[method] if get_method(method).hyperparameter else (math.nan,)
        runs = itertools.product(self.label_noise, range(self.trials), values)
        return tuple(Run(method, noise, trial, value) for noise, trial, value in runs)


def check_name(name: str, names: Sequence[str]) -> None:
    """Raise UserError, in one line, for a name that no field has, or has no more."""
    if name in RENAMED and name not in names:
        raise UserError(f"parameter {name!r} is called {RENAMED[name]!r} now")
    if name in ("extends", "methods"):
        raise UserError(
            f"{name!r} is a line of a profile's file alone, params/PROFILE/DATASET.yaml"
        )
    choose("parameter", name, names)


def _user_error(error: ValidationError) -> UserError:
    """Return the first of pydantic's errors as one line: name, what is wrong, value."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return cause
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return UserError(f"parameter {name!r} is missing")
    if first["type"] == "string_pattern_mismatch":
        return UserError(
            f"{name} must be letters, digits, '-', '_' and '.', a letter or digit first, got "
            f"{first['input']!r:.80}"
        )
    # A parameter that may be a number or a word has an error for each.
    messages = [one["msg"] for one in error.errors() if one["loc"][0] == name]
    message = " or ".join(text[0].lower() + text[1:] for text in messages)
    return UserError(f"{name}: {message}, got {first['input']!r:.80}")


def _parse_grid(method: str, values: Any) -> tuple[float, ...]:
    """Return the values of one method, sorted and unique, from a number, a list or {linspace: …}."""
    name, swept = f"grids.{method}", METHODS[method].hyperparameter
    if isinstance(values, Mapping):
        values = _linspace(name, values)
    elif isinstance(values, (int, float)) and not isinstance(values, bool):
        values = [values]
    if not isinstance(values, (list, tuple)):
        raise UserError(f"{name} must be a list of numbers, got {values!r}")
    if not values:
        raise UserError(f"{name} is empty; give at least one {swept}, or leave the method out")
    grid = [real(f"{swept} in {name}", v, **METHODS[method].bounds) for v in values]
    if len(set(grid)) != len(grid):
        raise UserError(f"{name} names a value twice: {values!r}")
    return tuple(sorted(grid))


def _linspace(name: str, values: Mapping[str, Any]) -> list[float]:
    """Return the values of {linspace: [start, stop, count]}."""
    ends = values.get("linspace")
    if set(values) != {"linspace"} or not isinstance(ends, (list, tuple)) or len(ends) != 3:
        raise UserError(
            f"{name} must be a list or {{linspace: [start, stop, count]}}, got {dict(values)!r}"
        )
    start, stop = (real(f"{name} {end}", v) for end, v in zip(("start", "stop"), ends))
    count = whole(f"{name} count", ends[2], 1)
    return [float(value) for value in np.linspace(start, stop, count)]
