"""A training step captured once as a CUDA graph and replayed: one launch instead of hundreds."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

WARM_UP = 3
"""Steps before a capture: lazily made state and workspaces must exist by then."""


@contextlib.contextmanager
def restore_after(tensors: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Steps taken inside leave no trace in `tensors`, nor in the optimizer.

    State that an optimizer made inside becomes zero: where Adam and SGD with momentum start from.
    """

    def everything() -> list[Tensor]:
        state = (v for s in optimizer.state.values() for v in s.values())
        return [*tensors, *(v for v in state if isinstance(v, Tensor))]

    before = {id(t): t.clone() for t in everything()}
    try:
        yield
    finally:
        with torch.no_grad():
            for t in everything():
                t.copy_(before[id(t)]) if id(t) in before else t.zero_()


class GraphedStep:
    """`step(positions)` on CUDA, captured at the first batch of each length.

    A step that cannot be captured is said once and run launch by launch.
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
            self.captured[size] = self._prepare(positions.clone())
        slot, replay = self.captured[size]
        slot.copy_(positions)
        replay()

    def _prepare(self, slot: Tensor) -> tuple[Tensor, Callable[[], None]]:
        with restore_after(self.tensors, self.optimizer):
            try:
                return slot, self.capture(lambda: self.step(slot))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                line = str(error).splitlines()[0]
                warnings.warn(f"the training step runs without a CUDA graph: {line}", stacklevel=2)
                return slot, lambda: self.step(slot)

    @staticmethod
    def capture(step: Callable[[], None]) -> Callable[[], None]:
        """Warm up on a side stream, as captures need, then record `step` once."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay
