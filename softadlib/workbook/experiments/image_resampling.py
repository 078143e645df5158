"""Losses of single test images, for a study in which all trials share their test images.

An interval over such trials is for new trials with the same images. With the losses of each image,
`analysis.statistics.resampled_interval` draws images anew, too.
"""

import pandas as pd

from softadlib._files import home


def stored_losses_by_image(dataset: str) -> pd.DataFrame:
    """Return the loss of every test image under the runs that ERM, SAM, SoftAD and label smoothing select.

    Columns: method, side (last epoch, stopped early), trial, image, and loss in nats. It is the file
    `outputs/test-images/<dataset>.parquet`; digits has one.
    """
    return pd.read_parquet(home() / "outputs" / "test-images" / f"{dataset}.parquet")
