"""The data sets that are on this machine or can be had."""

from pathlib import Path

from softadlib._validation import UserError, choose
from softadlib.data.images import IMAGES, available, download, downloaded_sets, load_images
from softadlib.data.root import data_root
from softadlib.data.synthetic import SYNTHETIC
from softadlib.data.tables import TABLES, prepare_table, read_table, table_file


def prepare(name: str, from_csv: str | Path | None = None, target: str = "") -> Path:
    """Put a set below the data root and return where: downloaded, or a table of one's own.

    `from_csv` is a .csv, .parquet or .npz file and `target` its class column, empty for the last.
    Raises UserError for a set that cannot be had; then nothing is written.
    """
    if from_csv is not None or name in TABLES:
        return prepare_table(name, from_csv, target)
    if name in SYNTHETIC or (name in IMAGES and name not in downloaded_sets()):
        raise UserError(f"{name} needs no preparation; it is made or embedded here")
    try:
        choose("dataset", name, [*downloaded_sets(), *TABLES])
    except UserError as error:
        own = (
            "for a table of your own add --from-csv FILE, for images name folder: DIR in a profile"
        )
        raise UserError(f"{error}; {own}") from None
    download(name)
    return data_root()


def listing() -> list[tuple[str, str, str]]:
    """Return (name, state, size) of image sets and tables, the built-in ones first, then one's own.

    The state is `embedded`, `prepared`, `downloaded`, `missing`, or `broken` for a file that cannot
    be read.
    """
    out = [(name, available(name), entry.size) for name, entry in IMAGES.items()]
    files = {
        file.stem: file for kind in ("parquet", "npz") for file in data_root().glob(f"*.{kind}")
    }
    own = sorted(files.keys() - IMAGES.keys() - TABLES.keys())
    for name in [*TABLES, *own]:
        try:
            if name in files and files[name].suffix == ".npz":
                pool = load_images(name).pool
                size = f"{len(pool):,} of {' × '.join(map(str, pool.shape[1:]))}"
            else:
                table = read_table(table_file(name))
                size = f"{len(table.y):,} rows, {table.x.shape[1]} inputs, {len(table.classes)} classes"
            out.append((name, "prepared", size))
        except UserError as error:
            missing = name in TABLES and name not in files
            out.append((name, "missing" if missing else "broken", "" if missing else str(error)))
    return out
