"""What a capture does to a training, tried with a stand-in for the graph where there is no GPU."""

import contextlib
import math

import numpy as np
import pytest
import torch
from helpers.engines import ADAM, SEEDS, SGD, identical, splits, stack, state
from helpers.graphs import Recorded

from softadlib.training.engines import cuda_graph
from softadlib.training.engines.cuda_graph import GraphedStep, restore_after


@pytest.mark.parametrize("recipe", [ADAM, SGD], ids=["adam", "sgd"])
def test_steps_inside_leave_no_trace(recipe):
    """Neither before the optimizer's first step, when its state is made inside, nor later."""
    plain, tried = stack("softad"), stack("softad")
    for made in (plain, tried):
        optimizer = recipe.build(list(made.params.values()))
        made.template.train()
        for step in range(4):
            positions = torch.arange(10 * step, 10 * step + 10).expand(2, -1)
            if made is tried:
                with restore_after([*made.params.values(), *made.buffers.values()], optimizer):
                    for _ in range(cuda_graph.WARM_UP):
                        made.step(optimizer, positions.flip(1))
            made.step(optimizer, positions)
    for run in range(8):
        assert identical(state(plain, run), state(tried, run))


def test_a_captured_training_is_the_plain_one(monkeypatch):
    """Two lengths of batch, so two captures, the second in the middle of an epoch."""
    plain, replayed, record = stack("sam"), stack("sam"), Recorded()
    monkeypatch.setattr(GraphedStep, "capture", staticmethod(record))

    def stepper(optimizer):
        tensors = [*replayed.params.values(), *replayed.buffers.values()]
        return GraphedStep(
            lambda positions: replayed.step(optimizer, positions), tensors, optimizer
        )

    replayed.stepper = stepper
    expected, got = (made.train(SGD, SEEDS, {10})[10] for made in (plain, replayed))
    assert record.captures == 2
    for name, values in expected.items():
        np.testing.assert_array_equal(got[name], values)


def test_a_step_that_cannot_be_captured_is_said_and_run_as_it_is(monkeypatch):
    def refuse(step):
        step()
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(GraphedStep, "capture", staticmethod(refuse))
    seen, weights = [], torch.zeros(3)
    optimizer = torch.optim.SGD([weights], 0.1)

    def step(positions):
        weights.add_(1)
        seen.append(positions.tolist())

    replayed = GraphedStep(step, [weights], optimizer)
    with pytest.warns(UserWarning, match="without a CUDA graph: operation not permitted") as caught:
        replayed(torch.tensor([[1, 2]]))
    replayed(torch.tensor([[3, 4]]))  # and not again: a second warning would be an error here
    assert len(caught) == 1
    assert "and more" not in str(caught[0].message)
    assert weights.tolist() == [2, 2, 2], "the attempt left no trace"
    assert seen[1:] == [[[1, 2]], [[3, 4]]]


def test_an_error_of_the_step_itself_is_no_refusal(monkeypatch):
    """D8: launch by launch it would fail as well."""

    def broken(step):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(GraphedStep, "capture", staticmethod(broken))
    weights = torch.zeros(1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        GraphedStep(lambda p: None, [weights], torch.optim.SGD([weights], 0.1))(torch.zeros(1, 2))


@pytest.fixture
def streams(monkeypatch):
    """Stand-ins for CUDA's streams; a capture notes the stream it was made on."""

    class Stream:
        def wait_stream(self, other):
            pass

    outer, record = Stream(), {"captured": [], "current": []}
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: outer)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "set_stream", record["current"].append)

    def record_on(stream, step):
        record["captured"].append(stream)
        if record.get("fails"):
            raise RuntimeError("operation not permitted when stream is capturing")
        return step

    monkeypatch.setattr(cuda_graph, "record_on", record_on)
    return record | {"outer": outer, "record": record}


def test_every_graph_is_captured_on_a_stream_of_its_own(streams):
    """D2: graphs of one stream share a cuBLAS workspace, and stream engines replay side by side."""
    weights = [torch.zeros(1) for _ in range(3)]
    for w in weights:
        GraphedStep(lambda p, w=w: w.add_(1), [w], torch.optim.SGD([w], 0.1))(torch.zeros(1, 2))
    assert len(set(streams["captured"])) == 3
    assert streams["outer"] not in streams["captured"]
    assert [w.item() for w in weights] == [1, 1, 1]


def test_a_failed_capture_leaves_the_callers_stream_current(streams):
    """D8."""
    streams["record"]["fails"] = True
    w = torch.zeros(1)
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        GraphedStep(lambda p: w.add_(1), [w], torch.optim.SGD([w], 0.1))(torch.zeros(1, 2))
    assert streams["current"] == [streams["outer"]]
    assert w.item() == 1


def test_running_out_of_memory_is_not_taken_for_a_refusal(monkeypatch):
    def full(step):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(GraphedStep, "capture", staticmethod(full))
    weights = torch.zeros(1)
    with pytest.raises(torch.OutOfMemoryError):
        GraphedStep(lambda p: None, [weights], torch.optim.SGD([weights], 0.1))(torch.zeros(1, 2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("method", ["erm", "softad", "sam"])
@pytest.mark.parametrize("recipe", [ADAM, SGD], ids=["adam", "sgd"])
def test_on_cuda_graphs_and_lanes_give_the_cpus_numbers(method, recipe):
    """float64, where a GPU differs from a CPU by rounding alone."""
    from helpers.engines import KNOBS, SETTINGS, TRIALS, networks

    from softadlib.methods import METHODS
    from softadlib.training.engines.base import RunBatch
    from softadlib.training.engines.streams import StreamEngine
    from softadlib.training.engines.vmap import VmapEngine

    knobs = KNOBS[METHODS[method].knob] if METHODS[method].knob else (math.nan,) * 8
    expected = stack(method).train(recipe, SEEDS, {0, 10})
    for engine in (VmapEngine, StreamEngine):
        data = splits().to("cuda", torch.float64)
        made = engine(RunBatch(METHODS[method], networks(TRIALS), data, TRIALS, knobs, SETTINGS))
        got = made.train(recipe, SEEDS, {0, 10})
        for epoch in (0, 10):
            for name, values in expected[epoch].items():
                np.testing.assert_allclose(got[epoch][name], values, rtol=1e-7)
