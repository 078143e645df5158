"""The data sets that are on this machine or can be had."""

from softadlib._validation import UserError
from softadlib.data.images import IMAGES, available, load_images
from softadlib.data.root import data_root
from softadlib.data.tables import TABLES, read_table, table_file


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
