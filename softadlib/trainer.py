"""Training, whatever the device: which engine trains R runs of one method, and where.

`Stack` trains any network, R runs side by side; `Chain` is a multilayer perceptron on a CPU; `Lanes`
are runs on concurrent streams of a GPU, for networks whose stacked kernels are slow there.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from .chain import Chain, links
from .errors import choose
from .hardware import pick_device
from .lanes import Lanes
from .methods import Method
from .recipe import Recipe, batches
from .splits import Splits
from .stack import Stack

__all__ = ["Chain", "Lanes", "Recipe", "Stack", "batches", "pick_device", "trainer"]

LAYOUTS: dict[str, type[Stack] | type[Lanes]] = {"stack": Stack, "lanes": Lanes}


def trainer(
    method: Method,
    networks: Iterable[nn.Module],
    splits: Splits,
    trial: Sequence[int],
    knob: Sequence[float],
    settings: dict[str, Any] | None = None,
    bf16: bool = False,
    layout: str = "stack",
    samples: dict[str, Tensor] | None = None,
) -> Stack | Lanes:
    """The engine for these runs. Arguments as `Stack`'s; `layout` is `stack` or `lanes`.

    A chain of linear layers on a CPU is a `Chain` whatever the layout.
    """
    choose("layout", layout, LAYOUTS)
    networks = iter(networks)
    first = next(networks)
    by_hand = splits.x.device.type == "cpu" and not bf16 and links(first) is not None
    engine = Chain if by_hand else LAYOUTS[layout]
    networks = itertools.chain([first], networks)
    return engine(method, networks, splits, trial, knob, settings, bf16, samples)
