"""The data of a protocol's trials."""

import functools

from softadlib._validation import UserError
from softadlib.trainer.splits import Splits, check_batches
from softadlib.workbook.data.datasets import Data
from softadlib.workbook.studies.protocol import Protocol


def load_splits(protocol: Protocol, label_noise: float, trials: int | None = None) -> Splits:
    """Return the data of a protocol at one label noise, on the CPU, for its first `trials` trials."""
    data, seeds = protocol.data, protocol.seeds[:trials]
    try:
        splits = _splits(data, data.digest(), seeds, protocol.sizes, label_noise)
        check_batches(splits.train.shape[1], protocol.batch_size)
    except UserError as error:
        raise type(error)(f"{protocol.dataset}: {error}") from None
    return splits


@functools.lru_cache(maxsize=1)
def _splits(
    data: Data,
    digest: str,
    seeds: tuple[int, ...],
    sizes: tuple[int, int, int],
    label_noise: float,
) -> Splits:
    """Make them once for all tasks of a study. `digest`: files may change while a process lives."""
    return data.splits(seeds, sizes, label_noise)
