"""The order of samples of the authors' code on the synthetic sets: torch's, from the seed that draws the weights."""

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from softadlib.models import MODELS
from softadlib.trainer.splits import PARTS, Splits
from softadlib.workbook.studies.protocol import Protocol


def order_seeds(protocol: Protocol, splits: Splits) -> Sequence[int | np.ndarray]:
    """Return what `batches` makes each trial's orders of: a seed, or the authors' orders themselves."""
    if protocol.batch_order != "authors":
        return protocol.order_seeds
    n = splits.train.shape[1]
    shape, classes = splits.shape, splits.classes
    return [
        authors_orders(protocol.model, shape, classes, seed, n, protocol.epochs)
        for seed in protocol.seeds
    ]


def authors_orders(
    model: str, shape: tuple[int, ...], classes: int, seed: int, n: int, epochs: int
) -> np.ndarray:
    """Return the order of n training samples in each epoch, (epochs, n).

    Their script seeds torch's generator, makes the network, then reads a `DataLoader` for each part
    before the first epoch, and in every epoch one that shuffles and again one for each part. Each of
    them takes numbers from that generator.
    """
    positions = TensorDataset(torch.arange(n))
    shuffled = DataLoader(positions, batch_size=n, shuffle=True)
    measured = [DataLoader(positions, batch_size=n) for _ in PARTS]
    orders = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        MODELS[model](shape, classes)
        for epoch in range(epochs + 1):
            if epoch > 0:
                orders += [order for (order,) in shuffled]
            for part in measured:
                list(part)
    return torch.stack(orders).numpy()
