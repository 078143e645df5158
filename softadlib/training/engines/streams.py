"""R networks, each with a step of its own, on concurrent streams of one GPU.

For convolutional networks `vmap` makes grouped convolutions, whose gradients are slow. Here every run
keeps its ordinary kernels, captured as one graph, and the graphs of several runs overlap.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from softadlib.functional.gradient_rules import Grads
from softadlib.training.checkpoint import State
from softadlib.training.engines.base import Engine, Row, RunBatch, TrainConfig
from softadlib.training.engines.vmap import VmapEngine, is_convolutional
from softadlib.training.evaluation import as_rows


class StreamEngine(Engine):
    """Step R single runs in turn, each on its own stream.

    PyTorch has a pool of 32 streams. A run takes three: one to run on, and one to capture on for each of
    the two lengths of a batch.
    """

    most_runs = 8

    @classmethod
    def supports(cls, network: nn.Module, device: torch.device, bf16: bool = False) -> bool:
        return device.type != "cpu" and is_convolutional(network)

    def __init__(self, batch: RunBatch):
        super().__init__(batch)
        self.singles = [VmapEngine(batch.single(run)) for run in range(len(batch))]
        if not self.splits.x.is_floating_point():
            # Else the first stream would compute it, and the others would not wait for that.
            _ = self.splits.ranges
        on_cuda = self.device.type == "cuda"
        self.streams = [torch.cuda.Stream() for _ in self.singles] if on_cuda else []

    def state(self, run: int) -> tuple[Grads, Grads]:
        return self.singles[run].state(0)

    @contextlib.contextmanager
    def _forked(self) -> Iterator[list[contextlib.AbstractContextManager[object]]]:
        """Yield a context per run for its launches: after those before, and before those after."""
        if not self.streams:
            yield [contextlib.nullcontext() for _ in self.singles]
            return
        outer = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(outer)
        try:
            yield [torch.cuda.stream(stream) for stream in self.streams]
        finally:
            for stream in self.streams:
                outer.wait_stream(stream)

    def measure(self, runs: Sequence[int]) -> Row:
        rows = []
        with self._forked() as contexts:
            for run in runs:
                with contexts[run]:
                    rows.append(self.singles[run].measures([0]))
        return as_rows({name: torch.cat([row[name] for row in rows]) for name in rows[0]})

    def logits(self, run: int, part: str) -> Tensor:
        return self.singles[run].logits(0, part)

    def begin(self, config: TrainConfig) -> Callable[[Iterable[Tensor]], None]:
        steps = []
        for single in self.singles:
            single.optimizer = config.build(list(single.params.values()))
            steps.append(single.stepper(single.optimizer))
        rows = [self.shuffled.index(trial) for trial in self.trials]

        def run_epoch(order: Iterable[Tensor]) -> None:
            for single in self.singles:
                single.template.train()
            batches = list(order)  # must live until every stream has read them
            with self._forked() as contexts:
                for positions in batches:
                    for step, context, row in zip(steps, contexts, rows):
                        with context:
                            step(positions[row : row + 1])

        return run_epoch

    def state_dict(self) -> State:
        return {"runs": [single.state_dict() for single in self.singles]}

    def load_state_dict(self, state: State) -> None:
        for single, saved in zip(self.singles, state["runs"], strict=True):
            single.load_state_dict(saved)
