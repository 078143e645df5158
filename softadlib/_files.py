"""The root of the workbook, and files that appear whole or not at all."""

import contextlib
import errno
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from softadlib._validation import UserError


def home() -> Path:
    """Return the workbook's root: $SOFTAD_HOME, or the nearest folder with params/ and notebooks/ above."""
    if named := os.environ.get("SOFTAD_HOME"):
        if not Path(named).is_dir():
            raise UserError(
                f"SOFTAD_HOME is {named!r}, which is not a folder; set it to the repository"
            )
        return Path(named).resolve()
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            if (folder / "params").is_dir() and (folder / "notebooks").is_dir():
                return folder
    raise UserError(
        "no params/ and notebooks/ here or above; run inside the repository or set SOFTAD_HOME to it"
    )


def params_dir() -> Path:
    """Return the folder of the profiles."""
    return home() / "params"


def data_root() -> Path:
    """Return the folder of the data: $SOFTAD_DATA, else `data/` in the workbook."""
    return Path(os.environ.get("SOFTAD_DATA") or home() / "data")


@contextlib.contextmanager
def os_error_as_user_error(path: Path) -> Iterator[None]:
    """Turn an OSError into a UserError that names `path`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None


def write(path: Path, content: bytes | str) -> None:
    """Put `content` at `path` whole or not at all; folders are made. Raises UserError.

    A link stays one: the file that it leads to is written. A device or pipe, such as /dev/stdout, is
    written to and never replaced.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and (not path.is_file() or path.parts[:2] == ("/", "dev")):
        with os_error_as_user_error(path), open(path, "wb") as stream:
            stream.write(data)
        return
    path = path.resolve() if path.is_symlink() else path
    # Not by tempfile, whose files only their owner may read. No other machine has this name, and "x"
    # follows no link that lies there.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().int}")
    with os_error_as_user_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Raise UserError now rather than after an hour; leaves nothing behind."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    with os_error_as_user_error(folder):
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{nearest} is not a folder")
        tempfile.TemporaryFile(dir=nearest).close()  # nameless where the system can
