"""Several optimizers as one, for SAM over Muon and AdamW."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from softadlib._validation import UserError


class JointOptimizer(Optimizer):
    """Steps each of several optimizers, which have different parameters."""

    optimizers: list[Optimizer]

    def __init__(self, optimizers: Sequence[Optimizer]):
        # In place of Optimizer.__init__: groups and states are those of the parts, hooks are its own.
        super().__setstate__({"optimizers": list(optimizers), "defaults": {}})
        params = [p for group in self.param_groups for p in group["params"]]
        if len(set(params)) < len(params):
            raise UserError("two of the optimizers have a parameter in common")

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups of all, in order."""
        return [group for part in self.optimizers for group in part.param_groups]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of every parameter."""
        return {p: state for part in self.optimizers for p, state in part.state.items()}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step each."""
        for part in self.optimizers:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of each."""
        for part in self.optimizers:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all, in order."""
        return {"optimizers": [part.state_dict() for part in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore each; ValueError for the state of another number of optimizers."""
        states = state_dict.get("optimizers", [state_dict])
        if len(states) != len(self.optimizers):
            raise UserError(
                f"the state is of {len(states)} optimizers, and {len(self.optimizers)} are joined here"
            )
        for part, state in zip(self.optimizers, states):
            part.load_state_dict(state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the group belongs to one of the optimizers."""
        raise UserError("add the group to one of the joined optimizers, and not to all together")

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
