"""A training step captured once as a CUDA graph and replayed: one launch instead of hundreds."""

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

WARM_UP = 3
"""Steps before a capture: lazily made state and workspaces must exist by then."""


@contextlib.contextmanager
def restore_after(tensors: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Undo on exit what steps inside change in `tensors` and in the optimizer.

    State that the optimizer makes inside becomes zero: where Adam and SGD with momentum start from.
    """

    def tensors_now() -> list[Tensor]:
        state = (v for s in optimizer.state.values() for v in s.values())
        return [*tensors, *(v for v in state if isinstance(v, Tensor))]

    before = {id(t): t.clone() for t in tensors_now()}
    try:
        yield
    finally:
        with torch.no_grad():
            for t in tensors_now():
                t.copy_(before[id(t)]) if id(t) in before else t.zero_()


def record_on(stream: torch.cuda.Stream, step: Callable[[], None]) -> Callable[[], None]:
    """Record `step` as a graph on `stream`; return its replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


class GraphedStep:
    """`step(positions)` on CUDA, captured at the first batch of each length.

    Warns once about a step that cannot be captured, and runs it launch by launch.
    """

    def __init__(
        self,
        step: Callable[[Tensor], None],
        tensors: Sequence[Tensor],
        optimizer: torch.optim.Optimizer,
    ):
        self.step, self.tensors, self.optimizer = step, tensors, optimizer
        self.captured: dict[int, tuple[Tensor, Callable[[], None]]] = {}

    def __call__(self, positions: Tensor) -> None:
        size = positions.shape[1]
        if size not in self.captured:
            slot = positions.clone()
            self.captured[size] = (slot, self._prepare(slot))
        slot, replay = self.captured[size]
        slot.copy_(positions)
        replay()

    def _prepare(self, slot: Tensor) -> Callable[[], None]:
        """Return the replay of a step that reads its positions from `slot`."""
        step = functools.partial(self.step, slot)
        with restore_after(self.tensors, self.optimizer):
            try:
                return self.capture(step)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                if "captur" not in str(error):
                    raise  # the step itself failed: launch by launch it would fail as well
                line = str(error).splitlines()[0]
                warnings.warn(f"the training step runs without a CUDA graph: {line}", stacklevel=2)
                return step

    @staticmethod
    def capture(step: Callable[[], None]) -> Callable[[], None]:
        """Warm up, then record `step`, on a stream made for this graph alone.

        PyTorch keeps one cuBLAS workspace per stream, and a graph keeps its address. Graphs captured on
        one stream and replayed side by side would write into each other's workspace.
        """
        gc.collect()  # an old graph that is destroyed during a capture spoils it
        outer, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(outer)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        outer.wait_stream(side)
        try:
            return record_on(side, step)
        finally:
            torch.cuda.set_stream(outer)  # a failed capture leaves its own stream current
