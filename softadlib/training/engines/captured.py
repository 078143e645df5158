"""A training step captured once as a CUDA graph and replayed: one launch instead of hundreds."""

import functools
import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class CapturedStep:
    """`step(positions)` on CUDA, captured at the first batch of each length.

    Args:
        step: changes `tensors` and the optimizer's state in place.
        tensors: parameters and buffers.
        optimizer: state that it makes while a capture warms up becomes zero afterwards, where Adam
            and SGD with momentum start from.
    """

    def __init__(
        self,
        step: Callable[[Tensor], None],
        tensors: Sequence[Tensor],
        optimizer: torch.optim.Optimizer,
    ):
        self.step, self.tensors, self.optimizer = step, tensors, optimizer
        self.graphs: dict[int, tuple[Tensor, torch.cuda.CUDAGraph]] = {}

    def __call__(self, positions: Tensor) -> None:
        size = positions.shape[1]
        if size not in self.graphs:
            self.graphs[size] = self._capture(positions.clone())
        slot, graph = self.graphs[size]
        slot.copy_(positions)
        graph.replay()

    def _changed(self) -> list[Tensor]:
        state = (v for s in self.optimizer.state.values() for v in s.values())
        return [*self.tensors, *(v for v in state if isinstance(v, Tensor))]

    def _capture(self, slot: Tensor) -> tuple[Tensor, torch.cuda.CUDAGraph]:
        """Warm up and record a step that reads its positions from `slot`; undo what the warm-up changed."""
        gc.collect()  # an old graph that is destroyed during a capture spoils it
        before = {id(t): t.clone() for t in self._changed()}
        step, graph = functools.partial(self.step, slot), torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()  # its own: graphs that share a stream share a workspace
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, stream=side):
            step()
        for t in self._changed():
            t.copy_(before[id(t)]) if id(t) in before else t.zero_()
        return slot, graph
