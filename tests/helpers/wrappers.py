"""All optimizers of the library under one roof: name → how it is made, and the same method in the plain loop."""

from dataclasses import dataclass, field

from torch.optim import SGD

from softadlib import ASAM, FDGR, GNP, MSAM, SAM


@dataclass(frozen=True)
class Wrapper:
    make: type
    knob: float
    """The first argument beside the base: a radius, α or λ."""
    method: str
    """Its name in `helpers.plain_loop`."""
    settings: dict = field(default_factory=dict)
    """Further arguments, of the constructor and of the plain loop."""
    passes: int = 2


WRAPPERS = {
    "sam": Wrapper(SAM, 0.2, "sam"),
    "asam": Wrapper(ASAM, 0.5, "asam", {"eta": 0.05}),
    "asam, davda54": Wrapper(ASAM, 0.8, "asam", {"variant": "davda54"}),
    "msam": Wrapper(MSAM, 0.5, "msam", passes=1),
    "gnp": Wrapper(GNP, 0.7, "gnp", {"radius": 0.3}),
    "gnp, official": Wrapper(GNP, 0.7, "gnp", {"radius": 0.3, "mixing": "official"}),
    "fdgr": Wrapper(FDGR, 0.4, "fdgr", {"step_size": 0.2}),
    "fdgr, centered": Wrapper(
        FDGR, 0.4, "fdgr", {"step_size": 0.2, "scheme": "centered"}, passes=3
    ),
}
SHARP = [name for name, wrapper in WRAPPERS.items() if wrapper.passes > 1]
"""Those with several gradients per step."""
WITH_HALVES = ("sam", "asam", "asam, davda54")
WITH_RADIUS = [name for name in WRAPPERS if "fdgr" not in name]


def wrap(name, base, model, knob=None, **settings):
    """Return the optimizer of that name over `base`. `model` is what official ASAM takes names from."""
    wrapper = WRAPPERS[name]
    if wrapper.make is not MSAM:
        settings["model"] = model
    knob = wrapper.knob if knob is None else knob
    return wrapper.make(base, knob, **wrapper.settings, **settings)


def over_sgd(name, model, lr=0.1, **settings):
    """Return the optimizer of that name over SGD with momentum, which MSAM needs."""
    return wrap(name, SGD(model.parameters(), lr=lr, momentum=0.9), model, **settings)
