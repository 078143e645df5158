"""States and rows of tasks under way, on their way from a cluster's nodes to the caller's `outputs/`.

One actor on the caller's node holds them in memory: nodes put them there and go on from what they
find, the caller fetches them once a second and writes. It starts anew, empty, should it die.
"""

import contextlib
import io
from dataclasses import dataclass
from typing import Any

import pandas as pd

from softadlib._validation import UserError
from softadlib.results.folder import ResultFolder

Changes = tuple[list[bytes], dict[str, bytes | None]]
"""Rows, and states by name; None for one that has served."""


def open_box() -> Any:
    """The actor's handle, of the running cluster."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Box:  # in here it travels by value: its process need not import torch
        def __init__(self) -> None:
            self.states: dict[str, dict[str, bytes]] = {}
            self.changes: dict[str, Changes] = {}

        def begin(self, study: str, states: dict[str, bytes]) -> None:
            self.states[study], self.changes[study] = states, ([], {})

        def get(self, study: str, name: str) -> bytes | None:
            return self.states.get(study, {}).get(name)

        def put(self, study: str, name: str, content: bytes | None) -> None:
            known = self.states.setdefault(study, {})
            if content is None:
                known.pop(name, None)
            else:
                known[name] = content
            self.changes.setdefault(study, ([], {}))[1][name] = content

        def add(self, study: str, rows: bytes) -> None:
            self.changes.setdefault(study, ([], {}))[0].append(rows)

        def fetch(self, study: str) -> Changes:
            return self.changes.pop(study, ([], {}))

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here}
    return ray.remote(Box).options(**options).remote()


@dataclass(frozen=True)
class Letters:
    """The shelf of one study as its tasks have it on a node, which has no `outputs/`."""

    box: Any
    study: str
    fingerprint: str

    def ask(self, method: str, *values: Any) -> Any:
        """What the box answers. Raises UserError where it cannot be reached."""
        import ray

        try:
            return ray.get(getattr(self.box, method).remote(self.study, *values))
        except ray.exceptions.RayError as error:
            raise UserError(f"the caller cannot be reached: {type(error).__name__}") from None

    def read_checkpoint(self, name: str) -> bytes | None:
        """The state that was put there last, on whichever node."""
        with contextlib.suppress(UserError):
            return self.ask("get", name)
        return None

    def save_checkpoint(self, name: str, content: bytes) -> None:
        """Put it there. Raises UserError where the caller's node is gone."""
        self.ask("put", name, content)

    def drop_checkpoint(self, name: str) -> None:
        """It has served."""
        with contextlib.suppress(UserError):
            self.ask("put", name, None)

    def save_part(self, rows: pd.DataFrame) -> None:
        """Send rows ahead of the others of their task, with which they come again."""
        with contextlib.suppress(UserError):
            self.ask("add", rows.to_parquet())


def address(box: Any, place: ResultFolder) -> Letters:
    """What the tasks of `place` are handed; they find the states that lie there."""
    letters = Letters(box, f"{place.dataset}/{place.method}", place.fingerprint)
    with contextlib.suppress(UserError):
        letters.ask("begin", place.checkpoints())
    return letters


def deliver(letters: Letters, place: ResultFolder) -> None:
    """Write what has come since the last time: rows first, the states that they replace then go."""
    try:
        rows, states = letters.ask("fetch")
    except UserError:  # it starts anew; what it held is on its way again with the tasks
        return
    for content in rows:
        place.save_part(pd.read_parquet(io.BytesIO(content)))
    for name, state in states.items():
        if state is None:
            place.drop_checkpoint(name)
        else:
            with contextlib.suppress(UserError):  # as `Checkpoint.save`: rows are what counts
                place.save_checkpoint(name, state)
