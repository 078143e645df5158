"""Training, whatever the device: which engine trains R runs of one method, and where.

`VmapEngine` trains any network, R runs side by side; `MLPEngine` is a multilayer perceptron on a CPU; `StreamEngine`
are runs on concurrent streams of a GPU, for networks whose stacked kernels are slow there.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from softadlib._validation import choose
from softadlib.data.splits import Splits
from softadlib.methods import Method
from softadlib.training.engines.mlp_cpu import MLPEngine, links
from softadlib.training.engines.streams import StreamEngine
from softadlib.training.engines.vmap import VmapEngine

LAYOUTS: dict[str, type[VmapEngine] | type[StreamEngine]] = {
    "stack": VmapEngine,
    "lanes": StreamEngine,
}


def make_engine(
    method: Method,
    networks: Iterable[nn.Module],
    splits: Splits,
    trial: Sequence[int],
    knob: Sequence[float],
    settings: dict[str, Any] | None = None,
    bf16: bool = False,
    layout: str = "stack",
    samples: dict[str, Tensor] | None = None,
) -> VmapEngine | StreamEngine:
    """The engine for these runs. Arguments as `VmapEngine`'s; `layout` is `stack` or `lanes`.

    A chain of linear layers on a CPU is a `MLPEngine` whatever the layout.
    """
    choose("layout", layout, LAYOUTS)
    networks = iter(networks)
    first = next(networks)
    by_hand = splits.x.device.type == "cpu" and not bf16 and links(first) is not None
    engine = MLPEngine if by_hand else LAYOUTS[layout]
    networks = itertools.chain([first], networks)
    return engine(method, networks, splits, trial, knob, settings, bf16, samples)
