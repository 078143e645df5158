"""The inputs of a network from a table, fitted to the training rows of a trial."""

import warnings

import numpy as np

from softadlib.workbook.data.tables import TEXT_INPUTS, Table


def encode(table: Table, train: np.ndarray) -> np.ndarray:
    """Return the inputs of all rows, (n, width) float32, fitted to the rows `train` alone.

    Missing numbers become the mean of the training rows; then numbers are standardised by mean and
    deviation of these. An input that is the same in all of them, such as a word that none holds, is 0
    in every row. Words are 0/1 inputs, one for every word of the whole table. This leaks nothing: it
    only sets the width of the first layer.
    """
    x = table.x
    if np.isnan(x).any():
        from sklearn.impute import SimpleImputer

        x = SimpleImputer(strategy="mean", keep_empty_features=True).fit(x[train]).transform(x)
    mean = x[train].mean(0)
    deviation = x[train].std(0)
    constant = np.ptp(x[train], axis=0) == 0
    mean[table.is_word] = 0
    deviation[table.is_word] = 1
    factor = np.where(constant, 0, 1 / np.where(constant, 1, deviation))
    texts = [encode_text(words, train) for words in table.texts.values()]
    return np.hstack([((x - mean) * factor).astype(np.float32), *texts])


def encode_text(words: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return `TEXT_INPUTS` inputs of every text, by its sequences of letters: skrub's StringEncoder.

    With one thread, so that every process computes the same to the last bit.
    """
    import pandas as pd
    import skrub
    from threadpoolctl import threadpool_limits

    text = pd.Series(words, name="text", dtype=str)
    encoder = skrub.StringEncoder(min(TEXT_INPUTS, len(train) - 1), random_state=0)
    # Of few different words it says that it takes fewer inputs; the others are 0.
    with threadpool_limits(1), warnings.catch_warnings(action="ignore"):
        encoder.fit_transform(text.iloc[train])
        found = encoder.transform(text).to_numpy(np.float32)
    return np.pad(found, ((0, 0), (0, TEXT_INPUTS - found.shape[1])))
