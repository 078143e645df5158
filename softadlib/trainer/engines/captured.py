"""A training step captured once as a CUDA graph and replayed: one launch instead of hundreds."""

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM_UP = 3
"""Steps before a capture: libraries allocate workspaces, the optimizer its state."""


class CapturedStep:
    """Replays a step that changes `tensors` and the optimizer's state in place.

    It is captured at the first batch of each length. State that the optimizer makes while a capture
    warms up becomes zero afterwards, where Adam and SGD with momentum start from.

    Args:
        tensors: parameters and buffers.
        optimizer: steps them.
    """

    def __init__(self, tensors: Sequence[Tensor], optimizer: torch.optim.Optimizer):
        self.tensors = tensors
        self.optimizer = optimizer
        self.graphs: dict[int, tuple[Tensor, torch.cuda.CUDAGraph]] = {}

    def replay(self, step: Callable[[Tensor], None], positions: Tensor) -> None:
        """Do what `step(positions)` does; always with the same `step`."""
        size = positions.shape[1]
        if size not in self.graphs:
            slot = positions.clone()
            self.graphs[size] = slot, self._capture(step, slot)
        slot, graph = self.graphs[size]
        slot.copy_(positions)
        graph.replay()

    def _capture(self, step: Callable[[Tensor], None], slot: Tensor) -> torch.cuda.CUDAGraph:
        """Record a step that reads its positions from `slot`; undo what its warm-up changed."""
        gc.collect()  # an old graph that is destroyed during a capture spoils it
        before = {id(t): t.clone() for t in self._changed()}
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()  # its own: graphs that share a stream share a workspace
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step(slot)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, stream=side):
            step(slot)
        for t in self._changed():
            if id(t) in before:
                t.copy_(before[id(t)])
            else:
                t.zero_()
        return graph

    def _changed(self) -> list[Tensor]:
        """Return what a step changes: weights, buffers, and the optimizer's state so far."""
        states = self.optimizer.state.values()
        values = [value for state in states for value in state.values()]
        return [*self.tensors, *(value for value in values if isinstance(value, Tensor))]
