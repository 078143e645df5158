"""What is trained: a frozen `Protocol` from YAML, checked whole, and the runs it asks for."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from softadlib._validation import UserError, choose, real, whole
from softadlib.data.images import IMAGES, known_images
from softadlib.data.synthetic import HALVES, SYNTHETIC
from softadlib.functional import LN2
from softadlib.methods import METHODS, Method, get_method
from softadlib.models import MODELS
from softadlib.results.schema import RunKey
from softadlib.training.engines.base import TrainConfig

NUMERICS_VERSION = 3
"""Raised by hand whenever the same protocol would give other numbers: old results are set aside."""

DATASETS = (*SYNTHETIC, *IMAGES)
AUTO = {"auto": "theta", "auto-low": "theta_low", "auto-high": "theta_high"}
"""Words that stand for a grid of θ, and what each takes of `suggest_theta` in every trial."""
RUNTIME_FIELDS = ("device", "stack", "folder", "checkpoint_every")
"""Fields that may change where and how fast a run is made, never its numbers."""
SELECTION_FIELDS = ("profile", "trials", "label_noise", "grids", "ties", "curves", "curve_every")
"""Fields that say which runs and rows there are, never what one run does."""
LEGACY_SETTINGS: dict[str, tuple[str, ...]] = {
    "sigma": ("softad",),
    "scale": ("softad",),
    "bn_update": ("sam", "asam", "gnp", "fdgr"),
    "variant": ("asam",),
    "eta": ("asam",),
    "radius": ("gnp",),
    "mixing": ("gnp",),
    "step_size": ("fdgr",),
    "scheme": ("fdgr",),
    "aux": ("adaflood",),
    "aux_folds": ("adaflood",),
}
"""Settings that were fields of the protocol once, and whose they are; fingerprints have them so."""
LEGACY_DEFAULTS = {"aux": "folds", "aux_folds": 5}
"""Fields that came after results were made, and what those were made with."""

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, order=True)
class Run:
    """One training: a method at one knob value, on the data and initial weights of one trial."""

    method: str
    label_noise: float
    trial: int
    knob: float
    """NaN for a method without a knob, and for θ that is yet to be suggested."""

    @property
    def key(self) -> RunKey:
        """Identity within a method."""
        return RunKey.from_values(self.label_noise, self.trial, self.knob)


def trial_seeds(n: int) -> tuple[int, ...]:
    """The authors' trial seeds; the first n of one fixed sequence."""
    return tuple(np.random.default_rng(17264272852322).integers(1, 2**20, size=n).tolist())


class Protocol(BaseModel):
    """Every fact that decides the numbers of one dataset's study; frozen, and checked when made.

    Build with `from_dict` or `load`. Raises a one-line `UserError` for a bad value. The methods of a
    protocol are ERM and those with a grid.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    profile: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """Name of the folder under `params/` and under `outputs/`."""
    dataset: str
    """Name of the data: a synthetic set, an image set, or one of your own."""
    folder: str = ""
    """Images of your own, `train/<class>/*` and `test/<class>/*`; empty for the known sets."""
    model: str = "mlp4x500"
    """The network."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """The base optimizer."""
    lr: Positive = 1e-3
    """Learning rate, the same in every epoch."""
    momentum: Share = 0.0
    """Momentum of SGD."""
    weight_decay: NonNegative = 0.0
    """Weight decay, added to the gradient."""
    batch_size: Annotated[int, Field(ge=2)] = 50
    """Samples per step; batch norm cannot train on a single one."""
    epochs: Count = 500
    """Epochs of every run."""
    trials: Count = 15
    """Repetitions, each with its own data, initial weights and order of samples."""
    label_noise: tuple[Share, ...] = (0.0,)
    """Fraction of flipped labels in every part of a synthetic set, or a list of fractions."""
    n_train: Size = 100
    """Training samples; 0 takes 80 % of an image set's training part."""
    n_val: Size = 100
    """Validation samples; 0 takes 20 % of an image set's training part."""
    n_test: Size = 20000
    """Test samples; 0 takes all of an image set's test part."""
    settings: Mapping[str, Mapping[str, Any]] = Field({}, validate_default=True)
    """What methods take beside their knobs: `{softad: {sigma: 2}}`; each is listed below."""
    grids: Mapping[str, tuple[float, ...] | str] = {}
    """Knob values of each method: a list or `{linspace: [start, stop, count]}`. Of θ also `auto`,
    `auto-low` or `auto-high`, which take it from an ordinary run of each trial."""
    ties: Literal["largest", "smallest"] = "largest"
    """The knob selected among those of equal validation accuracy."""
    curves: Literal["selected", "all", "none"] = "selected"
    """The runs that are measured along the way; the others are measured at the end."""
    curve_every: Count = 1
    """Epochs between two points of a curve."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of weights and inputs."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Of matrix products and convolutions in float32: tf32 on CUDA, bf16 by autocast anywhere."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where networks are trained."""
    checkpoint_every: Literal["auto"] | Size = "auto"
    """Epochs between two saved states of a training, 0 for none; auto saves about every minute."""
    stack: Size = 0
    """Runs handed out together; 0 chooses. A GPU trains them side by side, a CPU one by one."""

    def __init__(self, **values: Any):
        for name in values:
            if name in LEGACY_SETTINGS:
                raise UserError(_moved(name, values[name]))
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _user_error(error) from None

    @field_validator("model", mode="before")
    @classmethod
    def _known_model(cls, value: Any) -> Any:
        """Look the name up when a protocol is made: models can be registered later than here."""
        choose("model", value, MODELS)
        return value

    @field_validator("label_noise", mode="before")
    @classmethod
    def _distinct_noises(cls, value: Any) -> tuple[float, ...]:
        """A fraction, or several different ones."""
        noises = value if isinstance(value, (list, tuple)) else [value]
        checked = tuple(real("label_noise", noise, low=0, high=1) for noise in noises)
        if not checked or len(set(checked)) != len(checked):
            raise UserError(
                f"label_noise must be a fraction or a list of different ones, got {value!r}"
            )
        return checked

    @field_validator("settings", mode="before")
    @classmethod
    def _complete_settings(cls, value: Any) -> dict[str, dict[str, Any]]:
        """Every setting of every method: those given, checked, and the others' defaults."""
        if not _is_nested(value):
            raise UserError(f"settings must be {{method: {{name: value}}}}, got {value!r}")
        for name in value:
            choose("method in settings", name, [m for m in METHODS if METHODS[m].settings])
        complete = {name: method.defaults for name, method in METHODS.items() if method.settings}
        for method, given in value.items():
            for name, setting in given.items():
                choose(f"setting of {method}", name, METHODS[method].settings)
                checked = METHODS[method].settings[name].check(f"settings.{method}.{name}", setting)
                complete[method][name] = checked
        return complete

    @field_validator("grids", mode="before")
    @classmethod
    def _sorted_grids(cls, value: Any) -> dict[str, tuple[float, ...] | str]:
        """The grids in the registry's order, their values sorted."""
        if not isinstance(value, Mapping):
            raise UserError(f"grids must map methods to knob values, got {value!r}{_hint(value)}")
        swept = [m.name for m in METHODS.values() if m.knob]
        for method in value:
            choose("method in grids", method, swept)
        return {m: _grid(m, value[m]) for m in swept if m in value}

    @model_validator(mode="after")
    def _consistent(self) -> "Protocol":
        """Check what depends on two fields."""
        if self.folder and self.dataset in DATASETS:
            raise UserError(
                f"folder is for a dataset of your own, {self.dataset!r} is a known one; rename it"
            )
        if not self.folder and not known_images(self.dataset):
            choose("dataset", self.dataset, DATASETS)
        if self.precision != "fp32" and self.dtype != "float32":
            raise UserError(f"precision {self.precision} is for dtype float32, got {self.dtype}")
        for name in ("n_train", "n_val", "n_test"):
            size = getattr(self, name)
            if self.dataset in SYNTHETIC or size != 0:
                whole(name, size, 2)
            if self.dataset in HALVES and size % 2:
                raise UserError(
                    f"{name} must be even for {self.dataset}, half of it for each class, got {size}"
                )
        folds = self.settings["adaflood"]["aux_folds"]
        if self.n_train and folds > self.n_train and "adaflood" in self.grids:
            raise UserError(
                f"settings.adaflood.aux_folds is {folds}, but n_train is {self.n_train}; "
                "give at most that"
            )
        check_batches(self.n_train, self.batch_size)
        if any(self.label_noise) and self.dataset not in SYNTHETIC:
            raise UserError(f"label_noise is for {', '.join(SYNTHETIC)}; {self.dataset} takes 0")
        return self

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields, in order: the keys a YAML file may hold."""
        return tuple(cls.model_fields)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Protocol":
        """Make a protocol of plain values; bad ones raise a one-line UserError."""
        return cls(**values)

    @classmethod
    def from_provenance(cls, values: Mapping[str, Any]) -> "Protocol":
        """Make the protocol of a stored result, also where settings are among its fields."""
        current = {k: v for k, v in values.items() if k not in LEGACY_SETTINGS}
        settings = {method: dict(v) for method, v in values.get("settings", {}).items()}
        for name, methods in LEGACY_SETTINGS.items():
            for method in methods if name in values else ():
                settings.setdefault(method, {})[name] = values[name]
        return cls(**{**current, "settings": settings})

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, as YAML and JSON hold them."""
        return self.model_dump(mode="json")

    def replace(self, **changes: Any) -> "Protocol":
        """The same protocol with other values of these fields, checked again."""
        return type(self)(**{**self.to_dict(), **changes})

    def settings_of(self, method: str) -> dict[str, Any]:
        """What a method takes beside its knob, by name."""
        return dict(self.settings.get(method, {}))

    def method(self, name: str) -> Method:
        """The registered method, with as many gradients per step as its settings make of it."""
        return get_method(name).at(self.settings_of(name))

    @property
    def methods(self) -> tuple[str, ...]:
        """ERM and every method with a grid, in the registry's order."""
        return tuple(m for m in METHODS if m == "erm" or m in self.grids)

    def select_methods(self, names: Sequence[str] | None = None) -> list[str]:
        """Return the protocol's methods, all or those named, in its order. Raises UserError."""
        for name in names or ():
            choose(f"method for {self.dataset} in profile {self.profile}", name, self.methods)
        return [m for m in self.methods if names is None or m in names]

    @property
    def recipe(self) -> TrainConfig:
        """How one network is stepped."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in fields(TrainConfig)})

    @property
    def seeds(self) -> tuple[int, ...]:
        """One per trial, shared by all methods."""
        return trial_seeds(self.trials)

    def runs(self, method: str) -> tuple[Run, ...]:
        """Every training of one method: label noise × trial × knob, NaN for one yet to be suggested."""
        choose("method", method, self.methods)
        grid = self.grids[method] if get_method(method).knob else "none"
        values = (math.nan,) if isinstance(grid, str) else grid
        return tuple(
            Run(method, q, t, v)
            for q in self.label_noise
            for t in range(self.trials)
            for v in values
        )

    def fingerprint(self) -> str:
        """Hash of what one run does: two protocols that share it may share runs.

        Settings enter as results have had them since before they were the methods': the older ones
        as fields, the others only where they differ from their default.
        """
        skip = {*RUNTIME_FIELDS, *SELECTION_FIELDS, "settings"}
        facts = {k: v for k, v in self.to_dict().items() if k not in skip}
        for name, methods in LEGACY_SETTINGS.items():
            facts[name] = self.settings[methods[0]][name]
        for method, values in self.settings.items():
            for name, value in values.items():
                as_field = method in LEGACY_SETTINGS.get(name, ())
                usual = facts[name] if as_field else METHODS[method].settings[name].default
                if value != usual:
                    facts[f"{method}.{name}"] = value
        facts = {k: v for k, v in facts.items() if LEGACY_DEFAULTS.get(k) != v}
        text = json.dumps([NUMERICS_VERSION, facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def cliff_note(self) -> str | None:
        """One line when grids cross θ = ln 2, where accuracy falls off; None when they do not."""
        parts = []
        for name, grid in self.grids.items():
            beyond = 0 if isinstance(grid, str) else sum(v >= LN2 for v in grid)
            if METHODS[name].cliff and beyond:
                parts.append(f"{name} {beyond} of {len(grid)}")
        if not parts:
            return None
        return (
            f"{self.dataset}: theta >= ln 2 = {LN2:.4f} for {', '.join(parts)} grid values; with "
            "cross-entropy the minimiser there predicts the wrong class"
        )


def check_batches(n_train: int, batch_size: int) -> None:
    """Raise UserError where the last batch would be a single sample, on which batch norm cannot train."""
    if n_train % batch_size == 1:
        raise UserError(
            f"batch_size {batch_size} leaves a last batch of one of {n_train} samples, "
            "on which batch norm cannot train; choose another batch_size"
        )


def _grid(method: str, values: Any) -> tuple[float, ...] | str:
    """Knob values of one method: a list, or {linspace: [start, stop, count]}; sorted, unique.

    Of θ also a word of `AUTO`.
    """
    name, knob = f"grids.{method}", METHODS[method].knob
    if isinstance(values, str):
        if knob != "theta":
            takers = ", ".join(m.name for m in METHODS.values() if m.knob == "theta")
            raise UserError(
                f"{name} must be a list of numbers, got {values!r}; {takers} take a word"
            )
        choose(f"word for {name} in place of a list of numbers", values, AUTO)
        return values
    if isinstance(values, Mapping):
        values = _linspace(name, values)
    if not isinstance(values, (list, tuple)):
        raise UserError(f"{name} must be a list of numbers, got {values!r}")
    if not values:
        raise UserError(f"{name} is empty; give at least one {knob}, or leave the method out")
    grid = [real(f"{knob} in {name}", v, low=0) for v in values]
    if max(grid) >= METHODS[method].below:
        raise UserError(
            f"{knob} in {name} must be below {METHODS[method].below:g}, got {max(grid)!r}"
        )
    if max(grid) > METHODS[method].most:
        raise UserError(
            f"{knob} in {name} must be at most {METHODS[method].most:g}, got {max(grid)!r}"
        )
    if len(set(grid)) != len(grid):
        raise UserError(f"{name} names a value twice: {values!r}")
    return tuple(sorted(grid))


def _linspace(name: str, values: Mapping[str, Any]) -> list[float]:
    """The values of {linspace: [start, stop, count]}."""
    ends = values.get("linspace")
    if set(values) != {"linspace"} or not isinstance(ends, (list, tuple)):
        raise UserError(
            f"{name} must be a list or {{linspace: [start, stop, count]}}, got {dict(values)!r}"
        )
    if len(ends) != 3:
        raise UserError(f"{name}.linspace takes start, stop, count, got {ends!r}")
    start, stop = (real(f"{name} {end}", v, low=0) for end, v in zip(("start", "stop"), ends))
    return np.linspace(start, stop, whole(f"{name} count", ends[2], 1)).tolist()


def _is_nested(value: Any) -> bool:
    """Whether `value` maps names to mappings."""
    return isinstance(value, Mapping) and all(isinstance(v, Mapping) for v in value.values())


def _hint(value: Any) -> str:
    """What to do about a value that YAML has read as a string."""
    return " (a string: write it without quotes, lists as YAML)" if isinstance(value, str) else ""


def _moved(name: str, value: Any) -> str:
    """Where a setting is written that was a field of the protocol once."""
    places = " or ".join(f"{{{m}: {{{name}: {value}}}}}" for m in LEGACY_SETTINGS[name])
    return (
        f"parameter {name!r} belongs to a method; write settings: {places}, "
        f"on the command line -p settings.{LEGACY_SETTINGS[name][0]}.{name} {value}"
    )


def _user_error(error: ValidationError) -> UserError:
    """The first of pydantic's errors as one line: name, what is allowed, value."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return cause
    name, value = str(first["loc"][0]), first["input"]
    if first["type"] == "missing":
        return UserError(f"parameter {name!r} is missing")
    try:
        choose("parameter", name, Protocol.names())
        facts = Protocol.model_json_schema()["properties"][name]
        if "enum" in facts:
            choose(name, value, facts["enum"])
    except UserError as refusal:
        return refusal
    return UserError(f"{name} must be {allowed(facts)}, got {value!r}{_hint(value)}")


def allowed(facts: Mapping[str, Any]) -> str:
    """What a property of the JSON schema allows, in words."""
    if "anyOf" in facts:
        return ", or ".join(allowed(part) for part in facts["anyOf"])
    if "const" in facts or "enum" in facts:
        return ", ".join(map(str, facts.get("enum", [facts.get("const")])))
    if "pattern" in facts:
        return "a plain folder name"
    kinds = {"integer": "a whole number", "number": "a number", "string": "a text"}
    words = [kinds.get(facts.get("type", ""), "a mapping")]
    if "minimum" in facts:
        words.append(f"of at least {facts['minimum']:g}")
    if "exclusiveMinimum" in facts:
        words.append(f"above {facts['exclusiveMinimum']:g}")
    if "maximum" in facts:
        words.append(f"and at most {facts['maximum']:g}")
    return " ".join(words)
