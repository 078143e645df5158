"""Every data set by its name. A new one is an entry of one of these tables.

`synthetic.SYNTHETIC` holds points that are drawn, `images.IMAGES` image sets and `tables.TABLES` tables.
Your own images and tables are named in a protocol.
"""

from softadlib.workbook.data.images import IMAGES, load_images
from softadlib.workbook.data.synthetic import SYNTHETIC
from softadlib.workbook.data.tables import TABLES, is_table, table_digest


def dataset_names() -> list[str]:
    """Return names of the synthetic sets, the built-in image sets and the built-in tables."""
    return [*SYNTHETIC, *IMAGES, *TABLES]


def table_of(name: str, folder: str = "", table: str = "") -> str:
    """Return the table that a protocol's dataset, `folder` and `table` lead to, a file or a name.

    It is "" for points that are drawn and for images.
    """
    known = name in SYNTHETIC or name in IMAGES
    return table or (name if is_table(name) and not (known or folder) else "")


def own_digest(name: str, folder: str = "", table: str = "", target: str = "") -> str:
    """Return the digest of images or of a table; "" for a synthetic or a built-in image set.

    `folder`, `table` and `target` are those of a protocol. What the data hold counts, not where they
    lie. Raises MissingData for a table that is not there.
    """
    if read := table_of(name, folder, table):
        return table_digest(read, target)
    return "" if name in SYNTHETIC or name in IMAGES else load_images(name, folder).digest
