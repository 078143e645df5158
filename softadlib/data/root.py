"""Where the data lie."""

import os
from pathlib import Path

from softadlib._workspace import home


def data_root() -> Path:
    """Return the folder of the data: $SOFTAD_DATA, else `data/` in the workbook."""
    return Path(os.environ.get("SOFTAD_DATA") or home() / "data")
