"""The registry: method name → objective, gradient rule, its one swept knob, its label and colour.

A new method is one line here, over a function in `functional`.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from softadlib import functional as F
from softadlib._validation import choose


@dataclass(frozen=True)
class Method:
    """How one training method turns per-sample losses into a gradient, and how it is drawn."""

    name: str
    label: str
    colour: str
    knob: str | None = None
    """Symbol of the swept value, None for a method without one."""
    objective: Callable[..., Tensor] = F.erm
    """(losses (n,), knob, **settings) → (); what is differentiated."""
    settings: tuple[str, ...] = ()
    """Protocol fields handed to the objective."""
    samples: tuple[str, ...] = ()
    """Values of single training samples handed to the objective, (n,) each."""
    rule: Callable[..., F.Grads] = F.plain_gradient
    """(gradient, params, knob, **rule_settings) → gradients; what the optimizer sees."""
    rule_settings: tuple[str, ...] = ()
    gradients: int = 1
    """Gradient evaluations per step."""
    one_more: tuple[str, str] | None = None
    """Protocol field and its value with which a step takes one gradient more."""
    cliff: bool = False
    """True where θ ≥ ln 2 makes the minimiser of cross-entropy predict the wrong class."""
    below: float = math.inf
    """The knob is at least 0 and below this."""
    most: float = math.inf
    """The knob is at most this."""


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method("erm", "ERM", "xkcd:black"),
        Method("flooding", "Flooding", "xkcd:aquamarine", "theta", F.flooding),
        Method("iflood", "iFlood", "xkcd:bright blue", "theta", F.iflood, cliff=True),
        Method(
            "sam",
            "SAM",
            "xkcd:neon purple",
            "radius",
            rule=F.sam_gradient,
            rule_settings=("bn_update",),
            gradients=2,
        ),
        Method(
            "softad",
            "SoftAD",
            "xkcd:pinkish red",
            "theta",
            F.softad,
            ("sigma", "scale"),
            cliff=True,
        ),
        Method(
            "asam",
            "ASAM",
            "xkcd:tangerine",
            "radius",
            rule=F.asam_gradient,
            rule_settings=("bn_update", "variant", "eta"),
            gradients=2,
        ),
        Method(
            "gnp",
            "GNP",
            "xkcd:kelly green",
            "alpha",
            rule=F.gnp_gradient,
            rule_settings=("bn_update", "radius", "mixing"),
            gradients=2,
        ),
        Method(
            "fdgr",
            "FD-GR",
            "xkcd:sienna",
            "strength",
            rule=F.fdgr_gradient,
            rule_settings=("bn_update", "step_size", "scheme"),
            gradients=2,
            one_more=("scheme", "centered"),
        ),
        Method("cvar", "CVaR", "xkcd:steel grey", "beta", F.cvar, below=1.0),
        Method("chi2", "χ²-DRO", "xkcd:mustard", "divergence", F.chi2_dro),
        Method("tilted", "Tilted", "xkcd:dark teal", "t", F.tilted),
        Method(
            "adaflood",
            "AdaFlood",
            "xkcd:navy blue",
            "gamma",
            F.adaflood_at,
            samples=("aux",),
            most=1.0,
        ),
    )
}

PAPER = ("erm", "flooding", "iflood", "sam", "softad")
"""The methods of the paper's tables."""


def get_method(name: str) -> Method:
    """The registered method, or a `UserError` that lists them."""
    choose("method", name, METHODS)
    return METHODS[name]


def method_of(protocol: object, name: str) -> Method:
    """The registered method with as many gradients as the protocol's settings make of it."""
    method = get_method(name)
    if method.one_more and getattr(protocol, method.one_more[0]) == method.one_more[1]:
        return dataclasses.replace(method, gradients=method.gradients + 1)
    return method
