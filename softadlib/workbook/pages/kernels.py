"""papermill's engine of the `softad` command: its kernels run this package, and are not waited for in vain.

papermill's own client waits for a kernel's reply without a limit, so that one lost message hangs it.
Its kernel is the installed one of a name, which may hold another softadlib, and listens at ports that
another process can take before the kernel does.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines

import softadlib

NAME = "softad"
"""The engine's name: `papermill.execute_notebook(…, engine_name=NAME)`."""
PATIENCE = 30.0
"""Seconds of silence after which a kernel is asked again. A cell may take hours."""
LONGEST_SOCKET = 100
"""Characters of the path of a socket. Linux allows 107, macOS 103."""


class KernelOfThisPackage(AsyncKernelManager):
    """A kernel of this interpreter, whatever kernels are installed, that listens at files in place of ports."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """The command that starts it."""
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3 (ipykernel)", language="python")


def environment() -> dict[str, str]:
    """Return the variables of a kernel, which imports the package that this process has imported."""
    folder = Path(softadlib.__file__).resolve().parents[1]
    if folder.name == "site-packages":  # of this interpreter
        return dict(os.environ)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class PatientClient(PapermillNotebookClient):  # type: ignore[misc]
    """papermill's client, which asks again when a kernel is silent.

    Any message wakes a kernel that has overlooked a request, and a client that has overlooked a reply.
    """

    def create_kernel_manager(self) -> AsyncKernelManager:
        """Create the kernel's manager; its sockets lie beside the notebook that is written."""
        place = os.path.splitext(self.nb_man.output_path)[0]
        self.km = KernelOfThisPackage(transport="ipc", connection_file=f"{place}.json")
        return self.km

    async def _async_poll_for_reply(
        self,
        msg_id: str,
        cell: NotebookNode,
        timeout: int | None,
        outputs: "asyncio.Future[Any]",
        alive: "asyncio.Future[Any]",
    ) -> dict[str, Any]:
        """Wait for the reply to a cell; take one that has been idle twice as finished."""
        poll = super()._async_poll_for_reply(msg_id, cell, timeout, outputs, alive)
        reply: asyncio.Task[dict[str, Any]] = asyncio.create_task(poll)
        idle = 0
        try:
            while idle < 2:
                done, _ = await asyncio.wait({reply}, timeout=PATIENCE)
                if done:
                    return reply.result()
                idle += outputs.done()
                self.kc.kernel_info()
            return lost_reply(cell)
        finally:
            reply.cancel()
            alive.cancel()

    async def async_wait_for_reply(
        self, msg_id: str, cell: NotebookNode | None = None
    ) -> dict[str, Any] | None:
        """Wait for the reply to a question about the kernel, which is asked again."""
        while True:
            try:
                return await asyncio.wait_for(super().async_wait_for_reply(msg_id, cell), PATIENCE)
            except TimeoutError:
                msg_id = self.kc.kernel_info()

    wait_for_reply = run_sync(async_wait_for_reply)


def lost_reply(cell: NotebookNode) -> dict[str, Any]:
    """Return what the kernel must have replied to a cell, by its outputs."""
    for output in cell.outputs:
        if output.output_type == "error":
            return {"content": {"status": "error", **output}}
    return {"content": {"status": "ok"}}


class PatientEngine(Engine):  # type: ignore[misc]
    """What papermill calls to execute a notebook."""

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: Any,
        kernel_name: str,
        *,
        stderr_file: Any,
        resources: Mapping[str, Any],
        **_: Any,
    ) -> None:
        """Execute a notebook, written to the path of `nb_man` after every cell."""
        client = PatientClient(
            nb_man,
            startup_timeout=180,
            iopub_timeout=60,
            stderr_file=stderr_file,
            extra_arguments=["--log-level=CRITICAL"],  # of the kernel
            resources=resources,
        )
        client.execute(env=environment())


papermill_engines.register(NAME, PatientEngine)
