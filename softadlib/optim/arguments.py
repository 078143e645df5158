"""Other spellings of an optimizer's arguments: a class with its settings in place of the base."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


def accept_class(init: Callable[..., None]) -> Callable[..., None]:
    """Let an optimizer class stand for the base: SAM(SGD, params, lr=0.1), SAM(params, SGD, rho=0.05).

    `rho` is another word for `radius`. TypeError for a class without parameters, and for a setting
    that both know.
    """
    names = set(inspect.signature(init).parameters)

    @functools.wraps(init)
    def wrapper(self: Optimizer, *args: Any, **settings: Any) -> None:
        def is_class(value: object) -> bool:
            return isinstance(value, type) and issubclass(value, Optimizer)

        if "base_optimizer" in settings:  # of davda54/sam
            args = (*args, settings.pop("base_optimizer"))
        if len(args) > 2 and is_class(args[0]) and "lr" not in settings:
            raise TypeError(
                f"{type(self).__name__}({args[0].__name__}, params, {args[2]!r}): give the number a "
                f"name, {', '.join(sorted(names - {'self', 'base', 'model'}))} or lr"
            )
        if len(args) > 1 and is_class(args[1]):
            args = (args[1], args[0], *args[2:])
        if args and is_class(args[0]):
            base, *rest = args
            known = set(inspect.signature(base).parameters)
            name, given = type(self).__name__, base.__name__
            if "rho" in settings and "radius" in names and "rho" not in known:
                settings["radius"] = settings.pop("rho")
            if both := names & known & set(settings):
                raise TypeError(
                    f"{min(both)} is a setting of {name} and of {given}: give each its own, "
                    f"{name}({given}(model.parameters(), {min(both)}=…), {min(both)}=…)"
                )
            if not rest and "params" not in settings:
                raise TypeError(
                    f"{name}({given}) needs what to optimize: "
                    f"{name}({given}, model.parameters(), lr=0.1) or {name}({given}(…))"
                )
            params, *rest = rest or [settings.pop("params")]
            base = base(params, **{k: settings.pop(k) for k in set(settings) - names})
            args = (base, *rest)
        elif "rho" in settings and "radius" in names:
            settings["radius"] = settings.pop("rho")
        init(self, *args, **settings)

    return wrapper
