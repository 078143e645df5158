"""The registry: method name → objective, gradient rule, its one swept knob, its label and colour.

A new method is one line here, over a function in `functional`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from . import functional as F
from .errors import choose


@dataclass(frozen=True)
class Method:
    """How one training method turns per-sample losses into a gradient, and how it is drawn."""

    name: str
    label: str
    colour: str
    knob: str | None = None
    """Symbol of the swept value, None for a method without one."""
    objective: Callable = F.erm
    """(losses (n,), knob, **settings) → (); what is differentiated."""
    settings: tuple[str, ...] = ()
    """Protocol fields handed to the objective."""
    rule: Callable = F.plain_gradient
    """(gradient, params, knob, **rule_settings) → gradients; what the optimizer sees."""
    rule_settings: tuple[str, ...] = ()
    gradients: int = 1
    """Gradient evaluations per step."""
    cliff: bool = False
    """True where θ ≥ ln 2 makes the minimiser of cross-entropy predict the wrong class."""


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
    )
}


def get_method(name: str) -> Method:
    """The registered method, or a `UserError` that lists them."""
    choose("method", name, METHODS)
    return METHODS[name]
