"""What is trained: a frozen `Protocol` from YAML, checked whole, and the runs it asks for."""

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from softadlib._validation import MissingData, UserError, choose, real, whole
from softadlib.methods import METHODS, check_momentum, complete_settings, get_method
from softadlib.models import MODELS
from softadlib.trainer.recipe import Recipe
from softadlib.trainer.splits import check_batches
from softadlib.workbook.data.datasets import dataset_names, own_digest, table_of
from softadlib.workbook.data.images import IMAGES
from softadlib.workbook.data.synthetic import EVEN_SETS, SYNTHETIC
from softadlib.workbook.studies.schema import RunKey
from softadlib.workbook.studies.seeds import BASE_SEED, SEEDS_BELOW, trial_seeds

NUMERICS_VERSION = 4
"""Raised by hand whenever the same protocol would give other numbers: earlier results then do not count."""
NOT_HASHED = (
    *("profile", "trials", "label_noise", "grids", "ties", "curves", "curve_every"),
    *("device", "checkpoint_every", "settings", "folder", "table", "target"),
)
"""Not part of the fingerprint: these choose which runs exist or where they execute, not what a run computes."""

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Size = Annotated[int, Field(ge=0, le=10_000_000)]


@dataclass(frozen=True, order=True)
class Run:
    """One training: a method at one knob value, on the data and initial weights of one trial."""

    method: str
    label_noise: float
    trial: int
    knob: float
    """NaN for a method without a hyperparameter to sweep."""

    @property
    def key(self) -> RunKey:
        """Identity within a method."""
        return RunKey.from_values(self.label_noise, self.trial, self.knob)


class Protocol(BaseModel):
    """Every fact that decides the numbers of one dataset's study; frozen, and checked when made.

    Raises a one-line `UserError` for a bad value. The methods of a protocol are ERM and those with
    a grid.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    profile: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """Name of the folder under `params/` and under `outputs/`."""
    dataset: str
    """Name of the data: a synthetic set, an image set, or one of your own."""
    folder: str = ""
    """Images of your own, `train/<class>/*` and `test/<class>/*`, or `<class>/*`; empty for the known sets."""
    table: str = ""
    """A table of your own: a CSV or parquet file; empty for the known sets."""
    target: str = ""
    """Column of the table that holds the classes; empty for the last one."""
    model: str = "mlp4x500"
    """The network."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """The base optimizer."""
    lr: Positive = 1e-3
    """Learning rate; of a schedule, the first."""
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """The learning rate stays, or falls along half a cosine to 0."""
    momentum: Share = 0.0
    """Momentum of SGD."""
    weight_decay: NonNegative = 0.0
    """Weight decay, added to the gradient; with adamw it is decoupled."""
    batch_size: Annotated[int, Field(ge=2, le=10_000_000)] = 50
    """Samples per step; batch norm cannot train on a single one."""
    epochs: Count = 500
    """Epochs of every run."""
    trials: Annotated[int, Field(ge=1, le=10_000)] = 15
    """Repetitions, each with its own data, initial weights and order of samples."""
    base_seed: Annotated[int, Field(ge=0)] = BASE_SEED
    """What the seeds of the trials are drawn from."""
    batch_order: Literal["authors"] | Size = 0
    """The order of samples, of the same trials: ours is 0, another number is another one; or the authors'."""
    label_noise: tuple[Share, ...] = (0.0,)
    """Fraction of flipped labels, or a list: in every part of a synthetic set, in training of a table."""
    n_train: Size = 100
    """Training samples; 0 takes 80 % of an image set's training part, 60 % of a table."""
    n_val: Size = 100
    """Validation samples; 0 takes 20 % of an image set's training part, or of a table."""
    n_test: Size = 20000
    """Test samples; 0 takes all of an image set's test part, 20 % of a table."""
    settings: Mapping[str, Mapping[str, Any]] = Field({}, validate_default=True)
    """What methods take beside the hyperparameter of their grid: `{softad: {sigma: 2}}`."""
    grids: Mapping[str, tuple[float, ...]] = {}
    """Values of each method's hyperparameter: a list or `{linspace: [start, stop, count]}`."""
    ties: Literal["largest", "smallest", "loss"] = "largest"
    """What selects a value: validation accuracy, among equals the largest or smallest; or validation loss."""
    curves: Literal["selected", "all", "none"] = "selected"
    """The runs that are measured during training; the others are measured at the last epoch."""
    curve_every: Count = 1
    """Epochs between two points of a curve."""
    best_epoch: bool = False
    """Also measure every run as it was at the epoch of its lowest validation loss."""
    linked: bool = False
    """With `best_epoch`: also measure class probabilities in closed form, of methods that have one."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of weights and inputs."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Of matrix products and convolutions in float32: tf32 on CUDA, bf16 by autocast anywhere."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where networks are trained."""
    checkpoint_every: Literal["auto"] | Size = "auto"
    """Epochs between two saved states of a training, 0 for none; `auto` saves about every minute."""

    def __init__(self, /, **values: Any):
        for name in values:
            choose("parameter", name, self.names())
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
        """Accept a fraction, or several different ones."""
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
        """Return every setting of every method: those given, checked, and the others' defaults."""
        return complete_settings(value)

    @field_validator("grids", mode="before")
    @classmethod
    def _sorted_grids(cls, value: Any) -> dict[str, tuple[float, ...]]:
        """Return the grids in the registry's order, their values sorted."""
        if not isinstance(value, Mapping):
            raise UserError(f"grids must map methods to lists of values, got {value!r}")
        swept = [m.name for m in METHODS.values() if m.knob]
        for method in value:
            choose("method in grids", method, swept)
        return {m: _parse_grid(m, value[m]) for m in swept if m in value}

    @model_validator(mode="after")
    def _data_are_of_one_kind(self) -> "Protocol":
        """Refuse a folder or table for a known set, and a dataset that is not found."""
        known = self.dataset in SYNTHETIC or self.dataset in IMAGES
        own = "folder" if self.folder else "table"
        if known and (self.folder or self.table):
            raise UserError(
                f"{own} is for your own data, {self.dataset!r} is a known set; rename it"
            )
        if self.folder and self.table:
            raise UserError("folder and table are two sets of data; give one of them")
        table = table_of(self.dataset, self.folder, self.table)
        if self.target and not table:
            raise UserError(f"target is the class column of a table; {self.dataset} has none")
        # A file that is missing is refused where it is read: stored results can be drawn without it.
        if not (table or self.folder or known):
            try:
                choose("dataset", self.dataset, dataset_names())
            except UserError as error:
                way_out = "your own data: folder: DIR (images) or table: FILE in the profile"
                raise MissingData(f"{error}; {way_out}") from None
        return self

    @model_validator(mode="after")
    def _sizes_and_noise_fit_the_data(self) -> "Protocol":
        """Refuse numbers of samples and label noise that a kind of data cannot have."""
        is_synthetic = self.dataset in SYNTHETIC
        for name in ("n_train", "n_val", "n_test"):
            size = getattr(self, name)
            if is_synthetic or size != 0:
                whole(name, size, 2)
            if self.dataset in EVEN_SETS and size % 2:
                halves = f"even for {self.dataset}, half of it for each class"
                raise UserError(f"{name} must be {halves}, got {size}")
        is_table = bool(table_of(self.dataset, self.folder, self.table))
        if any(self.label_noise) and not (is_table or is_synthetic):
            raise UserError(f"label_noise is for synthetic sets and tables; {self.dataset} takes 0")
        if self.batch_order == "authors" and not is_synthetic:
            raise UserError(
                f"batch_order authors is for synthetic sets; {self.dataset} takes a number"
            )
        return self

    @model_validator(mode="after")
    def _training_is_consistent(self) -> "Protocol":
        """Refuse momentum, precision and batches that do not fit the rest."""
        check_momentum(self.optimizer, self.momentum, self.grids)
        if self.linked and not self.best_epoch:
            raise UserError("linked is measured at the best epoch too; set best_epoch: true")
        if self.precision != "fp32" and self.dtype != "float32":
            raise UserError(f"precision {self.precision} is for dtype float32, got {self.dtype}")
        check_batches(self.n_train, self.batch_size)
        return self

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the fields, in order: the keys a YAML file may hold."""
        return tuple(cls.model_fields)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings, as YAML and JSON hold them."""
        return self.model_dump(mode="json")

    def replace(self, **changes: Any) -> "Protocol":
        """Return the same protocol with other values of these fields, checked again."""
        return type(self)(**{**self.to_dict(), **changes})

    def settings_of(self, method: str) -> dict[str, Any]:
        """Return what a method takes beside its knob, by name."""
        return dict(self.settings.get(method, {}))

    @property
    def methods(self) -> tuple[str, ...]:
        """ERM and every method with a grid, in the registry's order."""
        return tuple(m for m in METHODS if m == "erm" or m in self.grids)

    def select_methods(self, names: Sequence[str] | None = None) -> list[str]:
        """Return the protocol's methods, all or those named, in its order. Raises UserError."""
        for name in names or ():
            if name in METHODS and name not in self.methods and not METHODS[name].knob:
                raise UserError(
                    f"method {name!r} has no hyperparameter, and a profile trains ERM and methods that "
                    "have a grid; give the method a hyperparameter, knob=, and the profile a grid of it"
                )
            if name in METHODS and name not in self.methods:
                raise UserError(
                    f"method {name!r} has no grid for {self.dataset} in profile {self.profile}; choose "
                    f"from {', '.join(self.methods)}, or add grids.{name}: [0.1, 0.2], with your own "
                    "values, to its YAML file"
                )
            choose(f"method for {self.dataset} in profile {self.profile}", name, self.methods)
        return [m for m in self.methods if names is None or m in names]

    @property
    def recipe(self) -> Recipe:
        """How one network is stepped."""
        return Recipe(**{field.name: getattr(self, field.name) for field in fields(Recipe)})

    @property
    def seeds(self) -> tuple[int, ...]:
        """One per trial, shared by all methods."""
        return trial_seeds(self.trials, self.base_seed)

    @property
    def order_seeds(self) -> tuple[int, ...]:
        """One per trial, of the order of samples where it is not the authors'."""
        order = 0 if self.batch_order == "authors" else self.batch_order
        return tuple(seed + SEEDS_BELOW * order for seed in self.seeds)

    def runs(self, method: str) -> tuple[Run, ...]:
        """Return every training of one method: label noise × trial × knob."""
        choose("method", method, self.methods)
        values = self.grids[method] if get_method(method).knob else (math.nan,)
        runs = itertools.product(self.label_noise, range(self.trials), values)
        return tuple(Run(method, *run) for run in runs)

    @property
    def curve_epochs(self) -> set[int]:
        """Epochs at which curves are measured: 0, every `curve_every`, and the last."""
        return {*range(0, self.epochs, self.curve_every), self.epochs}

    @property
    def loss_epochs(self) -> set[int]:
        """Epochs at which losses of single samples are summarised.

        0, the last, and the points of the curve nearest to a quarter, half and three quarters of training.
        """
        epochs = sorted(self.curve_epochs)
        return {epochs[round(quarter * (len(epochs) - 1) / 4)] for quarter in range(5)}

    def fingerprint(self, method: str) -> str:
        """Hash what one run of `method` does: two protocols that share it share their runs.

        Fields and settings at their default are left out, so that a new one leaves results valid. Your
        own data are hashed by their content, not by their place.
        """
        facts: dict[str, Any] = {}
        for name, value in self.to_dict().items():
            if name not in NOT_HASHED and value != type(self).model_fields[name].default:
                facts[name] = value
        for name, value in self.settings_of(method).items():
            if value != get_method(method).defaults[name]:
                facts[f"{method}.{name}"] = value
        if digest := own_digest(self.dataset, self.folder, self.table, self.target):
            facts["data"] = digest
        text = json.dumps([NUMERICS_VERSION, method, facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, stored: Mapping[str, Any], method: str = "") -> list[str]:
        """Return where a stored protocol does something else in a run: "lr 0.01, stored 0.001".

        Settings are those of `method`, none by default. A stored protocol that lacks a field is from
        before it, and was trained with its default.
        """
        here = self._of_a_run(self.to_dict(), method)
        there = self._of_a_run(stored, method)
        for name in here.keys() & type(self).model_fields.keys():
            there.setdefault(name, type(self).model_fields[name].default)
        return [f"{k} {v}, stored {there[k]}" for k, v in here.items() if there.get(k, v) != v]

    @staticmethod
    def _of_a_run(protocol: Mapping[str, Any], method: str) -> dict[str, Any]:
        """Return the fields and settings that decide what one run of `method` does."""
        fields_ = {k: v for k, v in protocol.items() if k not in NOT_HASHED}
        settings = protocol["settings"].get(method, {})
        return fields_ | {f"settings.{method}.{k}": v for k, v in settings.items()}


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
    name, knob = f"grids.{method}", METHODS[method].knob
    if isinstance(values, Mapping):
        values = _linspace(name, values)
    elif isinstance(values, (int, float)) and not isinstance(values, bool):
        values = [values]
    if not isinstance(values, (list, tuple)):
        raise UserError(f"{name} must be a list of numbers, got {values!r}")
    if not values:
        raise UserError(f"{name} is empty; give at least one {knob}, or leave the method out")
    grid = [real(f"{knob} in {name}", v, **METHODS[method].bounds) for v in values]
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
