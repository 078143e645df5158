"""Locks: one writer at a time, and nothing left of a killed one.

A lock is `flock` on a file that is never deleted: the kernel releases it however its holder ends.
The holder writes its name into the file, for the message to a process that is refused. A profile is held
shared by every process that works on a part of it; a part is held by one process, or shared by
several shards. On NFS the lock holds between hosts where the server takes locks (NFSv4, or v3 with
lockd), on Lustre when mounted with `flock`. Where a file system takes none, work proceeds without:
every file is still written whole, so two writers do the same work twice and no more.

Re-entrance: a command locks its results, then starts kernels and processes that lock them again.
`lock_owner` puts a random name into the environment, which those processes inherit; a lock that
carries the same name is theirs too.
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

OWNER = "SOFTAD_LOCK_OWNER"
"""Environment variable with the name under which a process and its children hold locks."""
TEMPORARY = re.compile(r"\..+\.\d+(\.ipynb)?")
"""Names of half-written files, by `_workspace.write` and by papermill: `.name.pid`."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def _acquire(descriptor: int, *, shared: bool, wait: bool = False) -> bool | None:
    """Lock an open file; False where another process holds it, None where nothing takes locks.

    A second call changes the mode.
    """
    if fcntl is None:
        return None
    mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, mode)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a lock file for appending; closing it releases the lock."""
    with os_error_as_user_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_profile(folder: Path) -> Iterator[None]:
    """Hold a profile's folder, shared; the first holder removes the stale files."""
    with _opened(folder / ".lock") as descriptor:
        with os_error_as_user_error(folder):
            if _acquire(descriptor, shared=False):
                remove_stale_files(folder)
            # From exclusive to shared, or wait until another process has removed the files.
            _acquire(descriptor, shared=True, wait=True)
        yield


@contextlib.contextmanager
def file_lock(path: Path, what: str, shared: bool = False) -> Iterator[None]:
    """Hold the lock at `path`, alone or shared; do nothing where its holder has this owner's name.

    Raises UserError, naming the holder, where another process works on `what`.
    """
    with lock_owner() as owner, _opened(path) as descriptor:
        with os_error_as_user_error(path):
            held = _acquire(descriptor, shared=shared) is not False
            if held:
                _write_owner(descriptor, owner, shared)
        if not held:
            holders = _holders(path)
            if not any(h.get("owner") == owner and (shared or not h["shared"]) for h in holders):
                raise UserError(_refusal(what, [h for h in holders if _alive(h)]))
        try:
            yield
        finally:
            if held and not shared:
                os.ftruncate(descriptor, 0)


@contextlib.contextmanager
def lock_owner() -> Iterator[str]:
    """Name this process and its children as holders of locks, unless a parent did."""
    inherited = os.environ.get(OWNER)
    os.environ[OWNER] = owner = inherited or secrets.token_hex(8)
    try:
        yield owner
    finally:
        if not inherited:
            os.environ.pop(OWNER, None)


def _write_owner(descriptor: int, owner: str, shared: bool) -> None:
    """Add a line about this process; one that holds the lock alone removes those of killed ones."""
    since = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    if not shared:
        os.ftruncate(descriptor, 0)
    line = (json.dumps({**facts, "owner": owner, "shared": shared}) + "\n").encode()
    if os.write(descriptor, line) < len(line):  # the rest of a disk, a quota or a limit
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _holders(path: Path) -> list[dict[str, Any]]:
    """Read what holders wrote; those who share a lock may have ended since."""
    with contextlib.suppress(OSError, ValueError):
        return [json.loads(line) for line in path.read_text().splitlines()]
    return []


def _alive(holder: dict[str, Any]) -> bool:
    """Tell whether a holder still runs; of another host nothing is known, so it counts."""
    if holder["host"] == socket.gethostname():
        try:
            os.kill(holder["pid"], 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # it runs, as another user
    return True


def _refusal(what: str, holders: list[dict[str, Any]]) -> str:
    who = "; ".join(f"process {h['pid']} on {h['host']} since {h['since']}" for h in holders)
    return (
        f"{what} is under way already, by {who or 'another process'}; wait for it or stop it, then "
        "run the same command again"
    )


def remove_stale_files(folder: Path) -> None:
    """Remove what killed processes left half-written under `folder`, in which nobody works."""
    for where, _, names in os.walk(folder):
        for name in names:
            if TEMPORARY.fullmatch(name):
                Path(where, name).unlink(missing_ok=True)
