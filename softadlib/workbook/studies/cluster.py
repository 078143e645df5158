"""A dask cluster in place of this machine's processes: `softad train --scheduler`."""

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from pathlib import Path

from softadlib._validation import UserError


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[Executor | None]:
    """Yield an executor of a dask cluster; None for this machine. Raises UserError."""
    if address is None:
        yield None
        return
    from distributed import Client

    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it logs tracebacks
    if "://" not in address and not Path(address).is_file():  # the client would wait for it
        raise UserError(
            f"--scheduler must be tcp://HOST:PORT or a file that exists, got {address!r}"
        )
    place = {"address": address} if "://" in address else {"scheduler_file": address}
    try:
        client = Client(**place, timeout=20)
    except (OSError, ValueError) as error:
        what = " ".join(str(error).split())[:120]
        raise UserError(f"no dask scheduler at {address!r} ({what})") from None
    with client:
        try:
            yield client.get_executor(retries=3, pure=False)  # a killed worker's task runs again
        except (CancelledError, OSError):
            if client.status == "running":
                raise
            raise UserError(
                f"the dask scheduler at {address!r} is gone; finished runs are stored, "
                "and the same command with another scheduler goes on from there"
            ) from None
