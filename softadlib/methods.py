"""The registry: method name → objective, gradient rule, swept knob, settings, label and colour.

A new method is one entry here, over a function in `functional`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from softadlib import functional as F
from softadlib._validation import UserError, choose, real, whole
from softadlib.functional.objectives import MIN_SIGMA


@dataclass(frozen=True)
class Setting:
    """A value that a method takes beside its knob: a word, a whole number or a number.

    The type of `default` says which of the three. `choices` bound a word, `low` and `above` a
    number.
    """

    default: str | int | float
    meaning: str
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    """The number is at least this."""
    above: float = -math.inf
    """The number is above this."""
    taker: Literal["objective", "rule", "held-out"] = "objective"
    """Who is given the value; "held-out" makes the losses that `Method.samples` names."""

    def check(self, name: str, value: object) -> str | int | float:
        """Return `value` as it is stored; UserError names `name`, the value and what is allowed."""
        if self.choices:
            choose(name, value, self.choices)
            return str(value)
        if isinstance(self.default, int):
            return whole(name, value, int(self.low))
        return real(name, value, low=self.low, above=self.above)


BN_UPDATE = Setting(
    "both",
    "which of the two passes move batch norm's running statistics",
    F.BN_UPDATES,
    taker="rule",
)


@dataclass(frozen=True)
class Method:
    """How one training method turns per-sample losses into a gradient, and how it is drawn."""

    name: str
    label: str
    colour: str
    knob: str | None = None
    """Symbol of the swept value, None for a method without one."""
    axis: str = ""
    """Label of the knob's axis, with its unit."""
    objective: Callable[..., Tensor] = F.erm
    """(losses (n,), knob, **settings) → (); what is differentiated."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """What the method takes beside its knob, by name."""
    samples: tuple[str, ...] = ()
    """Values of single training samples handed to the objective, (n,) each."""
    rule: Callable[..., F.Grads] = F.plain_gradient
    """(gradient, params, knob, **settings) → gradients; what the optimizer sees."""
    gradients: int = 1
    """Gradient evaluations per step."""
    count_gradients: Callable[[Mapping[str, Any]], int] | None = None
    """`gradients` as a function of the settings, where they decide."""
    cliff: bool = False
    """True where θ ≥ ln 2 makes the minimiser of cross-entropy predict the wrong class."""
    least: float = 0.0
    """The knob is at least this."""
    below: float = math.inf
    """The knob is below this."""
    most: float = math.inf
    """The knob is at most this."""

    @property
    def knob_bounds(self) -> dict[str, float]:
        """Bounds of the knob, as `_validation.real` takes them."""
        return {"low": self.least, "high": self.most, "below": self.below}

    @property
    def defaults(self) -> dict[str, str | int | float]:
        """Every setting at its default."""
        return {name: setting.default for name, setting in self.settings.items()}

    def settings_for(self, *takers: str) -> tuple[str, ...]:
        """Return names of the settings that any of `takers` is given: "objective", "rule", "held-out"."""
        return tuple(name for name, setting in self.settings.items() if setting.taker in takers)

    def at(self, settings: Mapping[str, Any]) -> "Method":
        """Return the same method with as many gradients as it takes at these settings."""
        if self.count_gradients is None:
            return self
        return dataclasses.replace(self, gradients=self.count_gradients(settings))


def _difference_gradients(settings: Mapping[str, Any]) -> int:
    """Count the gradients of FD-GR: a centered difference takes one more than a forward one."""
    return 3 if settings["scheme"] == "centered" else 2


THETA = "θ (nats)"
"""Axis of a threshold."""

METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method("erm", "ERM", "xkcd:black"),
        Method("flooding", "Flooding", "xkcd:aquamarine", "theta", THETA, F.flooding),
        Method("iflood", "iFlood", "xkcd:bright blue", "theta", THETA, F.iflood, cliff=True),
        Method(
            "sam",
            "SAM",
            "xkcd:neon purple",
            "radius",
            "radius",
            settings={"bn_update": BN_UPDATE},
            rule=F.sam_gradient,
            gradients=2,
        ),
        Method(
            "softad",
            "SoftAD",
            "xkcd:pinkish red",
            "theta",
            THETA,
            F.softad,
            settings={
                "sigma": Setting(1.0, "scale σ of the losses' deviations, in nats", low=MIN_SIGMA),
                "eta": Setting(1.0, "weight η of θ in the value; no gradient has it"),
                "scale": Setting(
                    "code", "gradient weights σφ((ℓ−θ)/σ) (code) or φ((ℓ−θ)/σ) (text)", F.SCALES
                ),
            },
            cliff=True,
        ),
        Method(
            "asam",
            "ASAM",
            "xkcd:tangerine",
            "radius",
            "radius",
            settings={
                "bn_update": BN_UPDATE,
                "variant": Setting(
                    "official",
                    "which weights the radius adapts to: not the biases, or all",
                    tuple(F.ASAM_VARIANTS),
                    taker="rule",
                ),
                "eta": Setting(0.01, "added to every weight's size", low=0, taker="rule"),
            },
            rule=F.asam_gradient,
            gradients=2,
        ),
        Method(
            "gnp",
            "GNP",
            "xkcd:kelly green",
            "alpha",
            "α",
            settings={
                "bn_update": BN_UPDATE,
                "radius": Setting(0.1, "radius of the perturbation", low=0, taker="rule"),
                "mixing": Setting(
                    "paper", "how the two gradients are mixed", F.GNP_MIXINGS, taker="rule"
                ),
            },
            rule=F.gnp_gradient,
            gradients=2,
        ),
        Method(
            "fdgr",
            "FD-GR",
            "xkcd:sienna",
            "strength",
            "λ",
            settings={
                "bn_update": BN_UPDATE,
                "step_size": Setting(0.01, "step of the finite difference", above=0, taker="rule"),
                "scheme": Setting("forward", "the difference's kind", F.FD_SCHEMES, taker="rule"),
            },
            rule=F.fdgr_gradient,
            gradients=2,
            count_gradients=_difference_gradients,
        ),
        Method("cvar", "CVaR", "xkcd:steel grey", "beta", "β", F.cvar, below=1.0),
        Method("chi2", "χ²-DRO", "xkcd:mustard", "radius", "χ² radius", F.chi2_dro),
        Method("tilted", "Tilted", "xkcd:dark teal", "t", "t per nat", F.tilted, least=-math.inf),
        Method(
            "adaflood",
            "AdaFlood",
            "xkcd:navy blue",
            "gamma",
            "γ",
            F.adaflood_at,
            settings={
                "aux": Setting(
                    "folds",
                    "how the auxiliary models are made",
                    ("folds", "last-layer"),
                    taker="held-out",
                ),
                "aux_folds": Setting(5, "number of folds, a model each", low=2, taker="held-out"),
            },
            samples=("aux",),
            most=1.0,
        ),
    )
}

PAPER = ("erm", "flooding", "iflood", "sam", "softad")
"""The methods of the paper's tables."""


def get_method(name: str) -> Method:
    """Return the registered method, or a `UserError` that lists them."""
    choose("method", name, METHODS)
    return METHODS[name]


def complete_settings(given: object) -> dict[str, dict[str, Any]]:
    """Return every setting of every method: the `given` ones, {method: {name: value}}, else the default.

    Raises UserError for an unknown method or setting, and for a bad value.
    """
    if not isinstance(given, Mapping) or not all(isinstance(v, Mapping) for v in given.values()):
        raise UserError(f"settings must be {{method: {{name: value}}}}, got {given!r}")
    settings = {name: method.defaults for name, method in METHODS.items() if method.settings}
    for method, values in given.items():
        choose("method in settings", method, settings)
        for name, value in values.items():
            choose(f"setting of {method}", name, METHODS[method].settings)
            setting = METHODS[method].settings[name]
            settings[method][name] = setting.check(f"settings.{method}.{name}", value)
    return settings
