"""The registry: method name → objective, gradient rule, swept hyperparameter, settings, label and colour.

A new method is a function, an entry here, a grid and a test. The hyperparameter that a grid sweeps
is the column `knob` of every table.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch.nn.functional as nnF
from torch import Tensor

from softadlib import functional as F
from softadlib._validation import UserError, choose, real, whole
from softadlib.functional.objectives import MIN_SIGMA


@dataclass(frozen=True)
class Setting:
    """A value that a method takes beside its hyperparameter: a word, a whole number or a number.

    The type of `default` says which of the three. `choices` bound a word, `low` and `above` a
    number.
    """

    default: str | int | float
    meaning: str
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    """The number is at least this; a whole number is at least 0 unless this says otherwise."""
    above: float = -math.inf
    """The number is above this."""
    used_by: Literal["objective", "rule"] = "objective"
    """What receives the value."""

    def check(self, name: str, value: object) -> str | int | float:
        """Return `value` as it is stored; UserError names `name`, the value and what is allowed."""
        if self.choices:
            choose(name, value, self.choices)
            return str(value)
        if isinstance(self.default, int):
            return whole(name, value, 0 if math.isinf(self.low) else int(self.low))
        return real(name, value, low=self.low, above=self.above)


def cross_entropy(logits: Tensor, targets: Tensor, hyperparameter: Tensor) -> Tensor:
    """Return the cross-entropy of every sample in nats, (n, C), (n,) → (n,); `hyperparameter` is not used."""
    losses: Tensor = nnF.cross_entropy(logits, targets, reduction="none")
    return losses


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, hyperparameter: Tensor) -> Tensor:
    """Return (1 − α) × cross-entropy + α × its mean over all classes as targets; α is the hyperparameter."""
    uniform = -logits.log_softmax(-1).mean(-1)
    alpha = hyperparameter
    return (1 - alpha) * cross_entropy(logits, targets, alpha) + alpha * uniform


THETA = "θ (nats)"
"""Axis of a threshold."""
GREY = "#8C8C8C"
"""Colour of the methods outside the paper's tables; marks and labels tell them apart."""
BN_UPDATE = Setting(
    "both",
    "which of the two passes move batch norm's running statistics",
    F.BN_UPDATES,
    used_by="rule",
)


@dataclass(frozen=True)
class Method:
    """How one training method turns per-sample losses into a gradient, and how it is drawn."""

    name: str
    label: str
    colour: str = GREY
    hyperparameter: str | None = None
    """Symbol of the swept value, None for a method without one."""
    axis: str = ""
    """Label of the hyperparameter's axis, with its unit."""
    objective: Callable[..., Tensor] = F.erm
    """(losses (n,), hyperparameter, **settings) → (); what is differentiated."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """What the method takes beside its hyperparameter, by name."""
    derivative: Callable[..., Tensor] | None = None
    """(losses (n,), hyperparameter, **settings) → n·∂objective/∂ℓᵢ (n,), f′ of a mean of f(ℓ). Without it autograd is
    used; the mean loss needs none."""
    closed_form: bool = True
    """Whether class probabilities follow from the derivative, where it is given: not of a function of the
    whole batch, nor where f is flat and many networks are at the minimum."""
    losses: Callable[[Tensor, Tensor, Tensor], Tensor] = cross_entropy
    """(logits (n, C), targets (n,), hyperparameter) → per-sample losses (n,)."""
    rule: Callable[..., F.Grads] = F.plain_gradient
    """(gradient, params, hyperparameter, **settings) → gradients; what the optimizer sees."""
    uses_momentum: bool = False
    """Whether the rule is given the optimizer's moving average of gradients, `momentum`."""
    decays_weights: bool = False
    """Whether the hyperparameter is a decoupled weight decay λ: weights × (1 − learning rate × λ) every step."""
    low: float = 0.0
    """The hyperparameter is at least this."""
    high: float = math.inf
    """The hyperparameter is at most this."""
    below: float = math.inf
    """The hyperparameter is below this."""

    @property
    def bounds(self) -> dict[str, float]:
        """Bounds of the hyperparameter, as `_validation.real` takes them."""
        return {"low": self.low, "high": self.high, "below": self.below}

    @property
    def defaults(self) -> dict[str, str | int | float]:
        """Every setting at its default."""
        return {name: setting.default for name, setting in self.settings.items()}

    @property
    def gradient_weights(self) -> Callable[..., Tensor] | None:
        """(losses (n,), hyperparameter, **settings) → factor of each sample's gradient; None if not known."""
        return F.erm_derivative if self.objective is F.erm else self.derivative

    @property
    def log_probabilities(self) -> Callable[..., Tensor] | None:
        """(logits (n, C), hyperparameter, **settings of the objective) → ln p (n, C); None without a closed form."""
        derivative = self.gradient_weights
        is_known = self.losses in (cross_entropy, smoothed_cross_entropy)
        if derivative is None or not self.closed_form or not is_known:
            return None

        def log_probabilities(logits: Tensor, hyperparameter: Tensor, **settings: Any) -> Tensor:
            smoothing = hyperparameter if self.losses is smoothed_cross_entropy else 0.0
            return F.class_log_probabilities(
                logits, lambda losses: derivative(losses, hyperparameter, **settings), smoothing
            )

        return log_probabilities

    def settings_for(self, *users: str) -> tuple[str, ...]:
        """Return names of the settings that any of `users` is given: "objective", "rule"."""
        return tuple(name for name, setting in self.settings.items() if setting.used_by in users)

    def value(self, losses: Tensor, hyperparameter: Tensor, **settings: Any) -> Tensor:
        """Return the objective of per-sample losses (n,), a single value to differentiate.

        Raises:
            UserError: where an objective of your own takes other arguments, or returns anything else, or
                `losses` of your own are not one per sample.
        """
        if losses.ndim != 1:
            raise UserError(
                f"losses of {self.name!r} must have shape (n,), one per sample, got {tuple(losses.shape)}"
            )
        names = ", ".join(["losses", self.hyperparameter or "hyperparameter", *settings])
        wanted = f"the objective of {self.name!r} is called as objective({names}) and returns"
        wanted += " a single value, such as losses.mean()"
        try:
            value = self.objective(losses, hyperparameter, **settings)
        except TypeError as error:
            raise UserError(f"{wanted}: {error}") from error
        if not isinstance(value, Tensor):
            raise UserError(f"{wanted}, got {value!r}")
        if value.ndim or not value.requires_grad:
            found = f"shape {tuple(value.shape)}" if value.ndim else "a value without a gradient"
            raise UserError(f"{wanted}, got {found}")
        return value


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method(name="erm", label="ERM", colour="#000000"),
        Method(
            name="flooding",
            label="Flooding",
            colour="#2CB5A0",
            hyperparameter="theta",
            axis=THETA,
            objective=F.flooding,
            derivative=F.flooding_derivative,
            closed_form=False,
        ),
        Method(
            name="iflood",
            label="iFlood",
            colour="#1565C0",
            hyperparameter="theta",
            axis=THETA,
            objective=F.iflood,
            derivative=F.iflood_derivative,
        ),
        Method(
            name="sam",
            label="SAM",
            colour="#F0A202",
            hyperparameter="radius",
            axis="radius",
            settings={"bn_update": BN_UPDATE},
            rule=F.sam_gradient,
        ),
        Method(
            name="softad",
            label="SoftAD",
            colour="#D81B60",
            hyperparameter="theta",
            axis=THETA,
            objective=F.softad,
            settings={
                "sigma": Setting(1.0, "scale σ of the losses' deviations, in nats", low=MIN_SIGMA),
                "eta": Setting(1.0, "weight η of θ in the value; it changes no gradient"),
                "scale": Setting(
                    "code", "gradient weights σφ((ℓ−θ)/σ) (code) or φ((ℓ−θ)/σ) (text)", F.SCALES
                ),
            },
            derivative=F.softad_derivative,
        ),
        Method(
            name="asam",
            label="ASAM",
            hyperparameter="radius",
            axis="radius",
            settings={
                "bn_update": BN_UPDATE,
                "variant": Setting(
                    "official",
                    "what the perturbation adapts to: weights (official) or all parameters (davda54)",
                    tuple(F.ASAM_VARIANTS),
                    used_by="rule",
                ),
                "eta": Setting(0.01, "added to every weight's size", low=0, used_by="rule"),
            },
            rule=F.asam_gradient,
        ),
        Method(
            name="gnp",
            label="GNP",
            hyperparameter="alpha",
            axis="α",
            settings={
                "bn_update": BN_UPDATE,
                "radius": Setting(0.1, "radius of the perturbation", low=0, used_by="rule"),
                "mixing": Setting(
                    "paper", "how the two gradients are mixed", F.GNP_MIXINGS, used_by="rule"
                ),
            },
            rule=F.gnp_gradient,
        ),
        Method(
            name="fdgr",
            label="FD-GR",
            hyperparameter="strength",
            axis="λ",
            settings={
                "bn_update": BN_UPDATE,
                "step_size": Setting(
                    0.01, "step of the finite difference", above=0, used_by="rule"
                ),
                "scheme": Setting("forward", "the difference's kind", F.FD_SCHEMES, used_by="rule"),
            },
            rule=F.fdgr_gradient,
        ),
        Method(
            name="cvar", label="CVaR", hyperparameter="beta", axis="β", objective=F.cvar, below=1.0
        ),
        Method(
            name="chi2",
            label="χ²-DRO",
            hyperparameter="radius",
            axis="χ² radius",
            objective=F.chi2_dro,
        ),
        Method(
            name="tilted",
            label="Tilted",
            hyperparameter="t",
            axis="t per nat",
            objective=F.tilted,
            low=-math.inf,
        ),
        Method(
            name="smoothing",
            label="Label smoothing",
            hyperparameter="alpha",
            axis="α",
            losses=smoothed_cross_entropy,
            below=1.0,
        ),
        Method(
            name="focal",
            label="Focal",
            hyperparameter="gamma",
            axis="γ",
            objective=F.focal,
            derivative=F.focal_derivative,
        ),
        Method(
            name="msam",
            label="MSAM",
            hyperparameter="radius",
            axis="radius",
            rule=F.msam_gradient,
            uses_momentum=True,
        ),
        Method(
            name="decay",
            label="Weight decay",
            hyperparameter="decay",
            axis="decay",
            decays_weights=True,
        ),
        Method(
            name="softad-width",
            label="SoftAD, width σ",
            hyperparameter="sigma",
            axis="σ (nats)",
            objective=F.softad_width,
            settings={"theta": Setting(0.01, "threshold θ, in nats")},
            derivative=F.softad_width_derivative,
            low=MIN_SIGMA,
        ),
        Method(
            name="softad-logcosh",
            label="SoftAD, log cosh",
            hyperparameter="theta",
            axis=THETA,
            objective=F.softad_logcosh,
            derivative=F.softad_logcosh_derivative,
        ),
        # Below θ these two treat all losses alike, so no class probabilities follow from theirs.
        Method(
            name="softad-no-ascent",
            label="SoftAD, no ascent",
            hyperparameter="theta",
            axis=THETA,
            objective=F.softad_no_ascent,
            derivative=F.softad_no_ascent_derivative,
            closed_form=False,
        ),
        Method(
            name="iflood-no-ascent",
            label="iFlood, no ascent",
            hyperparameter="theta",
            axis=THETA,
            objective=F.iflood_no_ascent,
            derivative=F.iflood_no_ascent_derivative,
            closed_form=False,
        ),
    )
}

PAPER = ("erm", "flooding", "iflood", "sam", "softad")
"""The methods of the paper's tables."""


def get_method(name: str) -> Method:
    """Return the registered method, or a `UserError` that lists them."""
    choose("method", name, METHODS)
    method = METHODS[name]
    if method.name != name:
        raise UserError(f"METHODS[{name!r}] has the name {method.name!r}; give both the same")
    return method


def check_momentum(optimizer: str, momentum: float, methods: Iterable[str]) -> None:
    """Raise UserError where another optimizer than SGD has momentum, or a method lacks the one it uses."""
    if optimizer != "sgd" and momentum:
        raise UserError(f"only sgd has momentum; give 0 for {optimizer}, got {momentum!r}")
    for name in methods:
        if METHODS[name].uses_momentum and optimizer == "sgd" and not momentum:
            raise UserError(f"{name} perturbs along the momentum; give momentum, or take adam")


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
