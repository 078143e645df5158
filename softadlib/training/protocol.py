"""What is trained: a frozen `Protocol` from YAML, checked whole, and the runs it asks for."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from softadlib._validation import UserError, choose
from softadlib.data.images import IMAGES, known_images
from softadlib.data.synthetic import HALVES, SYNTHETIC
from softadlib.functional import LN2, SCALES
from softadlib.functional.gradient_rules import ASAM_VARIANTS, FD_SCHEMES, GNP_MIXINGS
from softadlib.methods import METHODS, get_method
from softadlib.models import MODELS
from softadlib.optim.sharpness import BN_UPDATES
from softadlib.results.schema import RunKey
from softadlib.results.selection import TIES
from softadlib.training.engines.base import TrainConfig

NUMERICS_VERSION = 3
"""Raised by hand whenever the same protocol would give other numbers: old results are set aside."""

CURVES = ("selected", "all", "none")
OPTIMIZERS = ("adam", "sgd")
DTYPES = ("float32", "float64")
PRECISIONS = ("fp32", "tf32", "bf16")
DEVICES = ("auto", "cpu", "cuda", "mps")
AUXILIARIES = ("folds", "last-layer")
DATASETS = (*SYNTHETIC, *IMAGES)
AUTO = {"auto": "theta", "auto-low": "theta_low", "auto-high": "theta_high"}
"""Words that stand for a grid of θ, and what each takes of `suggest_theta` in every trial."""
RUNTIME_FIELDS = ("device", "stack", "folder", "checkpoint_every")
"""Fields that may change where and how fast a run is made, never its numbers."""
SELECTION_FIELDS = ("profile", "trials", "label_noise", "grids", "ties", "curves", "curve_every")
"""Fields that say which runs and rows there are, never what one run does."""
LEGACY_DEFAULTS = {"aux": "folds", "aux_folds": 5}
"""Fields that came after results were made, and what those were made with."""


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


def _real(
    name: str, value: Any, low: float, high: float = math.inf, *, above: bool = False
) -> float:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or not (low < value if above else low <= value) or value > high:
        wanted = f"a number {'above' if above else 'of at least'} {low:g}"
        wanted += f" and at most {high:g}" if math.isfinite(high) else ""
        raise UserError(f"{name} must be {wanted}, got {value!r}{_hint(value)}")
    return float(value)


def _whole(name: str, value: Any, low: int, other: str = "") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise UserError(
            f"{name} must be {other}a whole number of at least {low}, got {value!r}{_hint(value)}"
        )
    return value


def _hint(value: Any) -> str:
    return " (a string: write it without quotes, lists as YAML)" if isinstance(value, str) else ""


def _grid(method: str, values: Any) -> tuple[float, ...] | str:
    """Knob values of one method: a list, or {linspace: [start, stop, count]}; sorted, unique.

    Of θ also a word of `AUTO`.
    """
    name = f"grids.{method}"
    if isinstance(values, str):
        if METHODS[method].knob != "theta":
            takers = ", ".join(m.name for m in METHODS.values() if m.knob == "theta")
            raise UserError(
                f"{name} must be a list of numbers, got {values!r}; {takers} take a word"
            )
        choose(f"word for {name} in place of a list of numbers", values, AUTO)
        return values
    if isinstance(values, Mapping):
        if set(values) != {"linspace"} or not isinstance(values["linspace"], (list, tuple)):
            raise UserError(
                f"{name} must be a list or {{linspace: [start, stop, count]}}, got {dict(values)!r}"
            )
        if len(values["linspace"]) != 3:
            raise UserError(f"{name}.linspace takes start, stop, count, got {values['linspace']!r}")
        start, stop, count = values["linspace"]
        _real(f"{name} start", start, 0)
        _real(f"{name} stop", stop, 0)
        _whole(f"{name} count", count, 1)
        values = np.linspace(start, stop, count).tolist()
    if not isinstance(values, (list, tuple)):
        raise UserError(f"{name} must be a list of numbers, got {values!r}{_hint(values)}")
    if not values:
        raise UserError(
            f"{name} is empty; give at least one {METHODS[method].knob}, or leave the method out"
        )
    grid = [_real(f"{METHODS[method].knob} in {name}", v, 0) for v in values]
    if max(grid) >= METHODS[method].below:
        wanted = f"{METHODS[method].knob} in {name} must be below {METHODS[method].below:g}"
        raise UserError(f"{wanted}, got {max(grid)!r}")
    if max(grid) > METHODS[method].most:
        wanted = f"{METHODS[method].knob} in {name} must be at most {METHODS[method].most:g}"
        raise UserError(f"{wanted}, got {max(grid)!r}")
    if len(set(grid)) != len(grid):
        raise UserError(f"{name} names a value twice: {values!r}")
    return tuple(sorted(grid))


@dataclass(frozen=True)
class Protocol:
    """Every fact that decides the numbers of one dataset's study. Build with `from_dict` or `load`.

    `grids` maps each swept method to its knob values; the methods of a protocol are ERM and those.
    A word of `AUTO` in place of values takes θ from an ordinary run of each trial.
    θ and σ in nats, radius in weight space, `label_noise` a fraction (or several). Of an image set
    n_train, n_val, n_test = 0 take all: 80 %, 20 % and the test part.
    """

    profile: str
    dataset: str
    folder: str = ""
    """Of a dataset of one's own: train/<class>/*, test/<class>/*. Empty for the known ones."""
    model: str = "mlp4x500"
    optimizer: str = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 50
    epochs: int = 500
    trials: int = 15
    label_noise: tuple[float, ...] = (0.0,)
    n_train: int = 100
    n_val: int = 100
    n_test: int = 20000
    sigma: float = 1.0
    scale: str = "code"
    bn_update: str = "both"
    variant: str = "official"
    """Of ASAM, and `eta` with it."""
    eta: float = 0.01
    radius: float = 0.1
    """Of GNP's climb, and `mixing` with it; the radius of SAM and ASAM is their knob."""
    mixing: str = "paper"
    step_size: float = 0.01
    """Of FD-GR's difference, and `scheme` with it."""
    scheme: str = "forward"
    aux: str = "folds"
    """How AdaFlood's auxiliary models are made, and of how many `aux_folds`."""
    aux_folds: int = 5
    grids: Mapping[str, tuple[float, ...] | str] = field(default_factory=dict)
    ties: str = "largest"
    curves: str = "selected"
    curve_every: int = 1
    dtype: str = "float32"
    precision: str = "fp32"
    """Of matrix products and convolutions in float32: tf32 on CUDA, bf16 by autocast anywhere."""
    device: str = "auto"
    checkpoint_every: int | str = "auto"
    """Epochs after which a training's state is kept, 0 for never; auto: about a minute after the last."""
    stack: int = 0
    """Runs handed out together; 0 chooses. A GPU trains them side by side, a CPU one by one."""

    def __post_init__(self):
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        if not isinstance(self.profile, str) or not re.fullmatch(
            r"[A-Za-z0-9][\w.-]*", self.profile
        ):
            raise UserError(f"profile must be a plain folder name, got {self.profile!r}")
        if not isinstance(self.folder, str):
            raise UserError(f"folder must be a path, got {self.folder!r}")
        if self.folder and self.dataset in DATASETS:
            raise UserError(
                f"folder is for a dataset of your own, {self.dataset!r} is a known one; rename it"
            )
        if not self.folder and not known_images(self.dataset):
            choose("dataset", self.dataset, DATASETS)
        choose("model", self.model, MODELS)
        choose("optimizer", self.optimizer, OPTIMIZERS)
        choose("scale", self.scale, SCALES)
        choose("bn_update", self.bn_update, BN_UPDATES)
        choose("variant", self.variant, ASAM_VARIANTS)
        choose("mixing", self.mixing, GNP_MIXINGS)
        choose("scheme", self.scheme, FD_SCHEMES)
        choose("aux", self.aux, AUXILIARIES)
        choose("ties", self.ties, TIES)
        choose("curves", self.curves, CURVES)
        choose("dtype", self.dtype, DTYPES)
        choose("precision", self.precision, PRECISIONS)
        if self.precision != "fp32" and self.dtype != "float32":
            raise UserError(f"precision {self.precision} is for dtype float32, got {self.dtype}")
        choose("device", self.device, DEVICES)
        put("lr", _real("lr", self.lr, 0, above=True))
        put("sigma", _real("sigma", self.sigma, 0, above=True))
        put("eta", _real("eta", self.eta, 0))
        put("radius", _real("radius", self.radius, 0))
        put("step_size", _real("step_size", self.step_size, 0, above=True))
        put("momentum", _real("momentum", self.momentum, 0, 1))
        put("weight_decay", _real("weight_decay", self.weight_decay, 0))
        _whole("batch_size", self.batch_size, 2)  # batch norm cannot train on one sample
        for name in ("n_train", "n_val", "n_test"):
            if self.dataset in SYNTHETIC or getattr(self, name) != 0:
                _whole(name, getattr(self, name), 2)
            if self.dataset in HALVES and getattr(self, name) % 2:
                raise UserError(
                    f"{name} must be even for {self.dataset}, half of it for each class, "
                    f"got {getattr(self, name)}"
                )
        for name in ("epochs", "trials", "curve_every"):
            _whole(name, getattr(self, name), 1)
        _whole("stack", self.stack, 0)
        if self.checkpoint_every != "auto":
            _whole("checkpoint_every", self.checkpoint_every, 0, "auto, or ")
        _whole("aux_folds", self.aux_folds, 2)
        if self.n_train and self.aux_folds > self.n_train and "adaflood" in self.grids:
            raise UserError(
                f"aux_folds is {self.aux_folds}, but n_train is {self.n_train}; give at most that"
            )
        check_batches(self.n_train, self.batch_size)
        noises = (
            self.label_noise if isinstance(self.label_noise, (list, tuple)) else [self.label_noise]
        )
        if not noises or len(set(noises)) != len(noises):
            raise UserError(
                f"label_noise must be a fraction or a list of different ones, got {self.label_noise!r}"
            )
        put("label_noise", tuple(_real("label_noise", q, 0, 1) for q in noises))
        if any(self.label_noise) and self.dataset not in SYNTHETIC:
            raise UserError(f"label_noise is for {', '.join(SYNTHETIC)}; {self.dataset} takes 0")
        if not isinstance(self.grids, Mapping):
            raise UserError(
                f"grids must map methods to knob values, got {self.grids!r}{_hint(self.grids)}"
            )
        swept = [m.name for m in METHODS.values() if m.knob]
        for method in self.grids:
            choose("method in grids", method, swept)
        put("grids", {m: _grid(m, self.grids[m]) for m in swept if m in self.grids})

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields, in order: the keys a YAML file may hold."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Protocol":
        """Checked construction; unknown keys and bad values raise a one-line UserError."""
        for key in values:
            choose("parameter", key, cls.names())
        for key in ("profile", "dataset"):
            if key not in values:
                raise UserError(f"parameter {key!r} is missing")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, as YAML and JSON hold them."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

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
        """Hash of what one run does: two protocols that share it may share runs."""
        skip = {*RUNTIME_FIELDS, *SELECTION_FIELDS}
        facts = {
            k: v for k, v in self.to_dict().items() if k not in skip and LEGACY_DEFAULTS.get(k) != v
        }
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
