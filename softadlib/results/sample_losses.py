"""Losses of single samples, and calibration, of the selected runs: `selected.parquet`.

One row is one run, epoch and part. Those of a study under way are `losses/*.parquet` in its folder.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from softadlib._validation import UserError
from softadlib._workspace import write
from softadlib.data.splits import PARTS
from softadlib.results import reader, selection
from softadlib.results.folder import ResultFolder
from softadlib.results.schema import DTYPES, FITS, RUN_KEY, RunKey, run_keys
from softadlib.results.table import pack, unpack

CALIBRATION = [
    "ece",
    *(f"{fit}_{value}" for fit in FITS for value in ("temperature", "loss", "ece")),
]
"""Columns that hold numbers at the last epoch alone, NaN elsewhere."""
COLUMNS = ["dataset", "method", *RUN_KEY, "epoch", "part", "samples", "loss", "quantiles"]
COLUMNS += CALIBRATION
_ROW = ["dataset", "method", *RUN_KEY, "epoch", "part"]
_TYPES = {c: DTYPES.get(c, "float64") for c in COLUMNS if c != "quantiles"}
_TYPES |= {"part": "str", "samples": "int64"}


def merge(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return one table, each run, epoch and part once; the last frame wins."""
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame({c: pd.Series(dtype=_TYPES.get(c, "object")) for c in COLUMNS})
    rows = pd.concat(frames, ignore_index=True)[COLUMNS].astype(_TYPES)
    rows = rows.drop_duplicates(_ROW, keep="last")
    order = {part: i for i, part in enumerate(PARTS)}
    return rows.sort_values(
        _ROW, key=lambda column: column.map(order) if column.name == "part" else column
    ).reset_index(drop=True)


def table(
    run: Mapping[str, object], measured: Mapping[int, Mapping[str, np.ndarray]]
) -> pd.DataFrame:
    """Return the rows of one run: {epoch: {column: (3, …)}}, a row per part."""
    frames = [
        pd.DataFrame(
            {
                **run,
                "epoch": epoch,
                "part": PARTS,
                **dict.fromkeys(CALIBRATION, np.nan),
                **{name: list(values) for name, values in columns.items()},
            }
        )
        for epoch, columns in measured.items()
    ]
    return merge(frames)


def save_part(folder: ResultFolder, rows: pd.DataFrame) -> None:
    """Store rows of finished runs; the same runs always go to the same file."""
    keys = sorted((*map(str, key), epoch) for *key, epoch in rows[[*RUN_KEY, "epoch"]].to_numpy())
    name = hashlib.sha256(repr(keys).encode()).hexdigest()[:16]
    path = folder.path / "losses" / f"{folder.fingerprint}-{name}.parquet"
    write(path, pack(rows, folder.fingerprint))


def stored(folder: ResultFolder) -> pd.DataFrame:
    """Return every row of this protocol, parts and results set aside included.

    A broken file counts as none.
    """
    frames = []
    aside = [earlier.selected for earlier in folder.aside()]
    parts = sorted(folder.path.glob(f"losses/{folder.fingerprint}-*"))
    for path in (*aside, folder.selected, *parts):
        with contextlib.suppress(UserError):
            rows, fingerprint = unpack(path, COLUMNS)
            frames += [rows] if fingerprint == folder.fingerprint else []
    return merge(frames)


def finish(folder: ResultFolder, keys: Iterable[RunKey]) -> None:
    """Put what is stored of the runs `keys`, and nothing else, into `selected.parquet`."""
    rows, wanted = stored(folder), set(keys)
    selected = rows[[key in wanted for key in run_keys(rows)]]
    is_new = any(folder.path.glob(f"losses/{folder.fingerprint}-*")) or bool(folder.aside())
    if len(selected) and (is_new or len(selected) < len(rows)):
        folder.save_selected(selected)


def read(
    profile: str, dataset: str | None = None, label_noise: float | None = None
) -> pd.DataFrame:
    """Return the rows of all finished results of a profile.

    Args:
        profile: a folder under `outputs/`.
        dataset: its rows only.
        label_noise: its rows only.

    Raises UserError, naming a broken file. Results without the file have no rows.
    """
    frames = []
    for folder in reader.finished(profile):
        if dataset in (None, folder.dataset) and folder.selected.exists():
            mend = f"delete it; softad train {profile} --losses writes it again"
            frames.append(unpack(folder.selected, COLUMNS, mend)[0])
    rows = merge(frames)
    if label_noise is not None:
        rows = rows[rows["label_noise"] == label_noise].reset_index(drop=True)
    return rows


def end_differences(losses: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Return |Δ test loss| in nats between `losses` and metrics `rows`, for every run of both.

    0 where they agree to a millionth: the same float32 losses, added up in another order, do.
    """
    key = ["dataset", "method", *RUN_KEY, "epoch"]
    ends = losses.loc[losses["part"] == "test", [*key, "loss"]]
    both = selection.final(rows).merge(ends, on=key)
    same = np.isclose(both["loss"], both["loss_test"], rtol=1e-6, atol=0, equal_nan=True)
    return (both["loss"] - both["loss_test"]).abs().mask(same, 0.0)
