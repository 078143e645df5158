"""What a base optimizer must be, for a gradient rule to stand in front of it."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from softadlib._validation import UserError
from softadlib.functional.gradient_rules import USE_BFLOAT


def check_base(base: Optimizer, name: str) -> None:
    """Raise UserError for a base that cannot be stepped with a gradient from elsewhere.

    `name` is that of the class in front of the base.
    """
    given = type(base).__name__
    if isinstance(getattr(base, "base", None), Optimizer):
        raise UserError(
            f"{name} cannot wrap {given}, which evaluates the loss itself; "
            f"wrap the optimizer inside: {name}(optimizer.base)"
        )
    closure = inspect.signature(base.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(
            f"{name} cannot wrap {given}, which evaluates the loss itself; "
            "take an optimizer whose step needs no closure, such as SGD or Adam"
        )
    for group in base.param_groups:
        check_group(group, name)


def check_group(group: Mapping[str, Any], name: str) -> None:
    """Raise UserError for a parameter group that is maximised or in float16."""
    if group.get("maximize"):
        raise UserError(
            f"{name} climbs up the loss, and an optimizer with maximize=True too: "
            "minimise the negative loss instead"
        )
    # In a stored state the parameters are numbers.
    if any(isinstance(p, Tensor) and p.dtype == torch.float16 for p in group["params"]):
        raise UserError(
            f"{name} takes no float16 parameters, whose gradient norm overflows; {USE_BFLOAT}"
        )
