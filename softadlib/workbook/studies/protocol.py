"""What one run does: a frozen `Protocol` from YAML, checked whole, with the runs that are asked for."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from softadlib._validation import UserError, choose
from softadlib.methods import METHODS, check_momentum, complete_settings, get_method
from softadlib.models import MODELS
from softadlib.trainer.recipe import Recipe
from softadlib.trainer.splits import check_batches
from softadlib.workbook.data.datasets import Data, DrawnPoints, data_of
from softadlib.workbook.studies import own_methods
from softadlib.workbook.studies.seeds import BASE_SEED, SEEDS_BELOW, trial_seeds
from softadlib.workbook.studies.sweep import Count, Run, Share, Size, Sweep

__all__ = ["NUMERICS_VERSION", "Protocol", "Run"]

NUMERICS_VERSION = 4
"""Raised by hand whenever the same protocol would give other numbers: earlier results then do not count."""

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class HashedAs:
    """The name under which a field enters the hash of a run.

    It is empty for `settings`, of which a method has its own, and for places of data, whose content
    counts: `Protocol.fingerprint` hashes both in another way.
    """

    name: str


class Protocol(Sweep):
    """Every fact that decides the numbers of a run, and the sweep of these runs; frozen.

    Raises a one-line `UserError` for a bad value.
    """

    dataset: str
    """Name of the data: a synthetic set, an image set, or one of your own."""
    folder: Annotated[str, HashedAs("")] = ""
    """Images of your own, `train/<class>/*` and `test/<class>/*`, or `<class>/*`; empty for the known sets."""
    table: Annotated[str, HashedAs("")] = ""
    """A table of your own: a CSV or parquet file; empty for the known sets."""
    target: Annotated[str, HashedAs("")] = ""
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
    base_seed: Annotated[int, Field(ge=0)] = BASE_SEED
    """What the seeds of the trials are drawn from."""
    batch_order: Literal["authors"] | Size = 0
    """The order of samples, of the same trials: ours is 0, another number is another one; or the authors'."""
    n_train: Size = 100
    """Training samples; 0 takes 80 % of an image set's training part, 60 % of a table."""
    n_val: Size = 100
    """Validation samples; 0 takes 20 % of an image set's training part, or of a table."""
    n_test: Size = 20000
    """Test samples; 0 takes all of an image set's test part, 20 % of a table."""
    settings: Annotated[Mapping[str, Mapping[str, Any]], HashedAs("")] = Field(
        {}, validate_default=True
    )
    """What methods take beside the hyperparameter of their grid: `{softad: {sigma: 2}}`."""
    best_epoch: bool = False
    """Also measure every run as it was at the epoch of its lowest validation loss."""
    closed_form: Annotated[bool, HashedAs("linked")] = False
    """With `best_epoch`: also measure class probabilities in closed form, of methods that have one."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of weights and inputs."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Of matrix products and convolutions in float32: tf32 on CUDA, bf16 by autocast anywhere."""

    @field_validator("model", mode="before")
    @classmethod
    def _known_model(cls, value: Any) -> Any:
        """Look the name up when a protocol is made: models can be registered later than here."""
        choose("model", value, MODELS)
        return value

    @field_validator("settings", mode="before")
    @classmethod
    def _complete_settings(cls, value: Any) -> dict[str, dict[str, Any]]:
        """Return every setting of every method: those given, checked, and the others' defaults."""
        return complete_settings(value)

    @model_validator(mode="after")
    def _sizes_and_noise_fit_the_data(self) -> "Protocol":
        """Refuse data of two kinds, and sizes and label noise that a kind cannot have."""
        data = self.data
        data.check_sizes(self.sizes)
        if any(self.label_noise) and not data.takes_label_noise:
            raise UserError(f"label_noise is for synthetic sets and tables; {self.dataset} takes 0")
        if self.batch_order == "authors" and not isinstance(data, DrawnPoints):
            raise UserError(
                f"batch_order authors is for synthetic sets; {self.dataset} takes a number"
            )
        return self

    @model_validator(mode="after")
    def _training_is_consistent(self) -> "Protocol":
        """Refuse momentum, precision and batches that do not fit the rest."""
        check_momentum(self.optimizer, self.momentum, self.grids)
        if self.closed_form and not self.best_epoch:
            raise UserError("closed_form is measured at the best epoch too; set best_epoch: true")
        if self.precision != "fp32" and self.dtype != "float32":
            raise UserError(f"precision {self.precision} is for dtype float32, got {self.dtype}")
        check_batches(self.n_train, self.batch_size)
        return self

    @property
    def data(self) -> Data:
        """What it is trained on. Raises UserError, and MissingData for an unknown name."""
        return data_of(self.dataset, self.folder, self.table, self.target)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Samples of train, val and test; 0 stands for all."""
        return self.n_train, self.n_val, self.n_test

    def replace(self, **changes: Any) -> "Protocol":
        """Return the same protocol with other values of these fields, checked again."""
        return type(self)(**{**self.to_dict(), **changes})

    def settings_of(self, method: str) -> dict[str, Any]:
        """Return what a method takes beside its hyperparameter, by name."""
        return dict(self.settings.get(method, {}))

    def select_methods(self, names: Sequence[str] | None = None) -> list[str]:
        """Return its methods, all or those named, in the registry's order. Raises UserError."""
        for name in names or ():
            if name in METHODS and name not in self.methods and not METHODS[name].hyperparameter:
                raise UserError(
                    f"method {name!r} has no hyperparameter, and a profile trains ERM and methods that "
                    "have a grid; write Method(…, hyperparameter='NAME'), and give the profile a grid of it"
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
        for name, hashed_as in OF_A_RUN.items():
            if getattr(self, name) != type(self).model_fields[name].default:
                facts[hashed_as] = getattr(self, name)
        for name, value in self.settings_of(method).items():
            if value != get_method(method).defaults[name]:
                facts[f"{method}.{name}"] = value
        if digest := self.data.digest():
            facts["data"] = digest
        if digest := own_methods.digest(method):
            facts["methods"] = digest
        text = json.dumps([NUMERICS_VERSION, method, facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, stored: Mapping[str, Any], method: str = "") -> list[str]:
        """Return where a stored protocol does something else in a run: "lr 0.01, stored 0.001".

        Settings are those of `method`, none by default. A stored protocol that lacks a field is from
        before it, and was trained with its default.
        """
        pairs = {}
        for name in OF_A_RUN:
            default = type(self).model_fields[name].default
            pairs[name] = getattr(self, name), stored.get(name, default)
        there = stored["settings"].get(method, {})
        for name, value in self.settings_of(method).items():
            pairs[f"settings.{method}.{name}"] = value, there.get(name, value)
        return [
            f"{name} {here}, stored {kept}" for name, (here, kept) in pairs.items() if here != kept
        ]


def _of_a_run() -> dict[str, str]:
    names = {}
    for name in Protocol.names():
        marks = [m for m in Protocol.model_fields[name].metadata if isinstance(m, HashedAs)]
        hashed_as = marks[0].name if marks else name
        if hashed_as and name not in Sweep.names():
            names[name] = hashed_as
    return names


OF_A_RUN = _of_a_run()
"""Fields that decide what a run does, whatever its method, and the names under which they are hashed."""
