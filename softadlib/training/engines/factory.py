"""Training, whatever the device: which engine trains R runs of one method, and where.

`VmapEngine` trains any network, R runs side by side; `MLPEngine` is a multilayer perceptron on a CPU; `StreamEngine`
are runs on concurrent streams of a GPU, for networks whose stacked kernels are slow there.
"""

from softadlib._validation import choose
from softadlib.training.engines.base import RunBatch
from softadlib.training.engines.mlp_cpu import MLPEngine, links
from softadlib.training.engines.streams import StreamEngine
from softadlib.training.engines.vmap import VmapEngine

LAYOUTS: dict[str, type[VmapEngine] | type[StreamEngine]] = {
    "stack": VmapEngine,
    "lanes": StreamEngine,
}


def make_engine(batch: RunBatch, layout: str = "stack") -> VmapEngine | StreamEngine:
    """The engine for these runs; `layout` is `stack` or `lanes`.

    A chain of linear layers on a CPU is a `MLPEngine` whatever the layout.
    """
    choose("layout", layout, LAYOUTS)
    by_hand = batch.device.type == "cpu" and not batch.bf16 and links(batch.networks[0]) is not None
    return MLPEngine(batch) if by_hand else LAYOUTS[layout](batch)
