"""The data of a protocol's trials."""

from softadlib._validation import UserError
from softadlib.trainer.splits import Splits, check_batches
from softadlib.workbook.data.datasets import table_of
from softadlib.workbook.data.images import load_images
from softadlib.workbook.data.make_splits import image_splits, synthetic_splits, table_splits
from softadlib.workbook.data.synthetic import SYNTHETIC
from softadlib.workbook.data.tables import read_table
from softadlib.workbook.studies.protocol import Protocol


def load_splits(protocol: Protocol, label_noise: float, trials: int | None = None) -> Splits:
    """Return the data of a protocol at one label noise, on the CPU, for its first `trials` trials."""
    seeds, name = protocol.seeds[:trials], protocol.dataset
    sizes = (protocol.n_train, protocol.n_val, protocol.n_test)
    if name in SYNTHETIC:
        return synthetic_splits(name, seeds, label_noise, sizes)
    table = table_of(name, protocol.folder, protocol.table)
    try:
        if table:
            rows = read_table(table, protocol.target)
            splits = table_splits(rows, seeds, sizes, label_noise)
        else:
            splits = image_splits(load_images(name, protocol.folder), seeds, sizes)
        check_batches(splits.train.shape[1], protocol.batch_size)
    except UserError as error:
        raise type(error)(f"{name}: {error}") from None
    return splits
