"""One writer at a time, nothing of a killed one left, and nobody who outlives whoever started them.

A lock is `flock` on a file: the kernel lets go of it however its holder dies. A profile is held by
everybody who works on any part of it (shared), a part of it by one alone, or by several shards. On
NFS the lock holds between hosts where the server takes locks (NFSv4, or v3 with lockd), on Lustre
when mounted with `flock`. Where a file system takes none, work goes on without: every file is still
written whole, so that two at once do the same twice and no more.
"""

import contextlib
import datetime
import errno
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from softadlib._validation import UserError
from softadlib._workspace import os_error_as_user_error

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]  # mypy knows no optional modules

FAMILY = "SOFTAD_FAMILY"
"""What a process that holds locks calls itself and whatever it starts: those may work in its place."""
TEMPORARY = re.compile(r"\..+\.\d+(\.ipynb)?")
"""Names of files under way, by `files.write` and by papermill: `.name.pid`."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def _take(path: Path, shared: bool, wait: bool = False) -> int | None:
    """A descriptor that holds the lock; None where another process does."""
    how = 0 if fcntl is None else (fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(held, how if wait else how | fcntl.LOCK_NB)
            if os.fstat(held).st_ino == os.stat(path).st_ino:
                return held
        except (BlockingIOError, PermissionError):
            os.close(held)
            return None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return held
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                os.close(held)
                raise
        os.close(held)  # whoever had the lock removed the file as we came: another one is there now


def _release(path: Path, held: int | None, shared: bool) -> None:
    """Let go of what was had; the last one removes the file."""
    if held is None:
        return
    with contextlib.suppress(OSError):
        if shared and fcntl is not None:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    os.close(held)


def _holders(path: Path) -> list[dict[str, Any]]:
    """What those who hold a lock wrote into its file; some may have died since."""
    with contextlib.suppress(OSError, ValueError):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line for line in lines if isinstance(line, dict)]
    return []


def _alive(holder: dict[str, Any]) -> bool:
    if holder.get("host") != socket.gethostname():
        return True  # who knows
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except (OSError, KeyError, ValueError):
        pass
    return True


@contextlib.contextmanager
def family() -> Iterator[str]:
    """The name of this process and its children while it holds locks."""
    known = os.environ.get(FAMILY) or None
    os.environ[FAMILY] = name = known or secrets.token_hex(8)
    try:
        yield name
    finally:
        if known is None:
            os.environ.pop(FAMILY, None)


@contextlib.contextmanager
def working(folder: Path) -> Iterator[None]:
    """Say that somebody works in a profile's folder; whoever comes first sweeps it."""
    path = folder / ".lock"
    with os_error_as_user_error(folder):
        held = _take(path, shared=False)
        if held is not None:
            sweep(folder)
            if fcntl is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(held, fcntl.LOCK_SH)
        else:
            held = _take(path, shared=True, wait=True)
    try:
        yield
    finally:
        _release(path, held, shared=True)


@contextlib.contextmanager
def held(path: Path, what: str, shared: bool = False) -> Iterator[None]:
    """Hold the lock at `path`, alone or with others who share it.

    Nothing more is done where this process or one that it comes from holds it already. Raises a
    UserError that says who works on `what` otherwise.
    """
    with family() as name:
        with os_error_as_user_error(path):
            lock = _take(path, shared)
        if lock is None:
            known = _holders(path)
            if not any(h.get("family") == name and (shared or not h.get("shared")) for h in known):
                raise UserError(_refusal(what, [h for h in known if _alive(h)]))
            yield
            return
        try:
            with os_error_as_user_error(path):
                _sign(lock, name, shared)
            yield
        finally:
            _release(path, lock, shared)


def _sign(lock: int, name: str, shared: bool) -> None:
    since = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    if not shared:
        os.ftruncate(lock, 0)  # of one who was killed
    os.write(lock, (json.dumps({**facts, "family": name, "shared": shared}) + "\n").encode())


def _refusal(what: str, holders: list[dict[str, Any]]) -> str:
    who = "; ".join(
        f"process {h.get('pid')} on {h.get('host')} since {h.get('since')}" for h in holders
    )
    return (
        f"{what} is under way already, by {who or 'another process'}; wait for it or stop it, then "
        "run the same command again"
    )


def sweep(folder: Path) -> None:
    """Remove what killed processes left half-written under `folder`, in which nobody works."""
    for where, _, names in os.walk(folder):
        for name in names:
            stale = TEMPORARY.fullmatch(name) or (name.startswith(".") and name.endswith(".lock"))
            if stale and Path(where, name) != folder / ".lock":
                Path(where, name).unlink(missing_ok=True)
