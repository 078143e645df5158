"""R networks, each with a step of its own, on concurrent streams of one GPU.

For convolutional networks `vmap` makes grouped convolutions, whose gradients can be slow. Here every
run keeps its ordinary kernels, captured as one graph, and the graphs of several runs overlap.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from softadlib.functional.gradient_rules import Grads
from softadlib.training.checkpoint import State
from softadlib.training.engines.base import Engine, Row, RunBatch, TrainConfig
from softadlib.training.engines.vmap import VmapEngine


class StreamEngine(Engine):
    """Step R single runs in turn, each on its own stream."""

    def __init__(self, batch: RunBatch):
        self.splits, self.device = batch.splits, batch.device
        self.lanes = [VmapEngine(batch.single(run)) for run in range(len(batch))]
        on_cuda = self.device.type == "cuda"
        self.streams = [torch.cuda.Stream() for _ in self.lanes] if on_cuda else []

    def __len__(self) -> int:
        return len(self.lanes)

    def state(self, run: int) -> tuple[Grads, Grads]:
        """As `VmapEngine.state`."""
        return self.lanes[run].state(0)

    @contextlib.contextmanager
    def _forked(self) -> Iterator[list[contextlib.AbstractContextManager]]:
        """A context for each lane's launches; they begin after and end before what is around them."""
        if not self.streams:
            yield [contextlib.nullcontext() for _ in self.lanes]
            return
        outer = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(outer)
        yield [torch.cuda.stream(stream) for stream in self.streams]
        for stream in self.streams:
            outer.wait_stream(stream)

    def measure(self, runs: Collection[int]) -> Row:
        """As `VmapEngine.measure`."""
        rows = [self.lanes[run].measure([0]) for run in runs]
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def begin(self, recipe: TrainConfig) -> Callable[[Iterable[Tensor]], None]:
        for lane in self.lanes:
            lane.optimizer = recipe.build(list(lane.params.values()))
        steps = [lane.stepper(lane.optimizer) for lane in self.lanes]

        def epoch(order: Iterable[Tensor]) -> None:
            for lane in self.lanes:
                lane.skeleton.train()
            order = list(order)  # kept until every lane has read it
            with self._forked() as on:
                for positions in order:
                    for step, stream in zip(steps, on):
                        with stream:
                            step(positions)

        return epoch

    def state_dict(self) -> State:
        return {"lanes": [lane.state_dict() for lane in self.lanes]}

    def load_state_dict(self, state: State) -> None:
        for lane, found in zip(self.lanes, state["lanes"], strict=True):
            lane.load_state_dict(found)
