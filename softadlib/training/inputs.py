"""The data of a protocol's trials."""

from softadlib._validation import UserError
from softadlib.data.images import load_images
from softadlib.data.splits import Splits, image_splits, synthetic_splits
from softadlib.data.synthetic import SYNTHETIC
from softadlib.training.checks import check_batches
from softadlib.training.protocol import Protocol


def load_splits(protocol: Protocol, label_noise: float, trials: int | None = None) -> Splits:
    """Return the data of a protocol at one label noise, on the CPU, for its first `trials` trials."""
    seeds = protocol.seeds[:trials]
    sizes = (protocol.n_train, protocol.n_val, protocol.n_test)
    if protocol.dataset in SYNTHETIC:
        return synthetic_splits(protocol.dataset, seeds, label_noise, sizes)
    images = load_images(protocol.dataset, protocol.folder)
    try:
        splits = image_splits(images, seeds, sizes)
        check_batches(splits.train.shape[1], protocol.batch_size)
    except UserError as error:
        raise UserError(f"{protocol.dataset}: {error}") from None
    return splits
