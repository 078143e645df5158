"""A stand-in for CUDA graphs on a CPU: it records the operations of a step and replays them in place."""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SYNCHRONISES = (torch.ops.aten._local_scalar_dense.default,)
"""Operations that read a value on the host, which CUDA refuses during a capture."""


class RecordedGraph:
    """Like `torch.cuda.CUDAGraph`: every replay reads and writes the tensors of the recording."""

    def __init__(self):
        self.operations = []
        self.replays = 0

    def replay(self):
        self.replays += 1
        for function, args, kwargs, outputs in self.operations:
            results = function(*args, **kwargs)
            for kept, result in zip(tree_leaves(outputs), tree_leaves(results), strict=True):
                if isinstance(kept, torch.Tensor) and kept.data_ptr() != result.data_ptr():
                    kept.copy_(result)


class _Recording(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in SYNCHRONISES:
            raise RuntimeError(f"{function} during a capture")
        outputs = function(*args, **(kwargs or {}))
        self.graph.operations.append((function, args, kwargs or {}, outputs))
        return outputs


class _Stream:
    def wait_stream(self, other):
        pass


@contextlib.contextmanager
def _record(graph, stream):
    with _Recording(graph):
        yield


def patch_graphs(monkeypatch):
    """Put the stand-in in place of CUDA's graphs and streams."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", _record)
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", _Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
