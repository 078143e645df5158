"""Kernels of notebooks: on Linux forked from one process that has imported what they import.

The imports of a notebook take longer than most of its cells. A forked kernel has them from the start
and is a process like any other: what one notebook sets, no other sees.
"""

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from softadlib import _workspace

FORKS = sys.platform == "linux"
"""On macOS a process that has used system libraries must not fork without exec."""
LAUNCHER = "ipykernel_launcher"
"""The module that the command of an IPython kernel names."""


def start_server() -> None:
    """Begin to import what notebooks import, in a process that ends with this one."""
    if FORKS:
        forkserver.set_forkserver_preload(["softadlib.workbook.notebooks.preload"])
        forkserver.ensure_running()


class KernelManager(AsyncKernelManager):
    """Manages a kernel that `Provisioner` starts."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.provisioner = Provisioner(kernel_spec=self.kernel_spec, parent=self)


class Provisioner(LocalProvisioner):
    """Starts a one-thread kernel of this workbook: an IPython kernel of this Python by a fork.

    What it prints outside of cells is in `outputs/.log`: the terminal has the progress bar.
    """

    running: ClassVar[set["Provisioner"]] = set()

    async def pre_launch(self, **options: Any) -> dict[str, Any]:
        options["env"] = {
            **os.environ,
            "SOFTAD_HOME": str(_workspace.home()),
            "OMP_NUM_THREADS": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        return await super().pre_launch(**options)

    async def launch_kernel(self, cmd: list[str], **options: Any) -> KernelConnectionInfo:
        log = _workspace.home() / "outputs" / ".log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self.running.add(self)
        if not FORKS or cmd[0] != sys.executable or LAUNCHER not in cmd:
            with open(log, "ab") as stderr:
                return await super().launch_kernel(cmd, stderr=stderr, **options)
        start_server()
        arguments = cmd[cmd.index(LAUNCHER) :]
        process = multiprocessing.get_context("forkserver").Process(
            target=_be_kernel, args=(arguments, options["env"], options.get("cwd"), log)
        )
        process.start()
        self.process = _Popen(process)  # type: ignore[assignment]  # it has what is called
        self.pid = self.pgid = process.pid
        return self.connection_info

    async def cleanup(self, restart: bool = False) -> None:
        self.running.discard(self)
        await super().cleanup(restart)

    @classmethod
    def kill_all(cls) -> None:
        """Kill every kernel that this process has started, and what these have started."""
        for pgid in [provisioner.pgid for provisioner in cls.running]:
            if pgid:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pgid, signal.SIGKILL)


class _Popen:
    """A process with the methods of `subprocess.Popen` that `LocalProvisioner` calls."""

    stdin = stdout = stderr = None

    def __init__(self, process: BaseProcess):
        self.process = process
        self.kill, self.terminate = process.kill, process.terminate

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.process.pid:
            os.kill(self.process.pid, number)


def _be_kernel(
    arguments: list[str], environment: dict[str, str], folder: str | None, log: Path
) -> None:
    """Run an IPython kernel in this process, which was forked for it, as its command would."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder or os.getcwd())
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import numpy as np
    import pandas as pd
    import torch
    from ipykernel.kernelapp import IPKernelApp

    from softadlib.workbook.notebooks import preload

    # The generators were seeded before the fork. Python's own seeds itself again.
    np.random.seed()  # noqa: NPY002
    torch.default_generator.seed()
    pd.set_option("display.max_columns", 20)  # what pandas chooses where it is imported in a kernel
    sys.argv, sys.path[:] = arguments, preload.SEARCH_PATH
    try:
        IPKernelApp.launch_instance(arguments[1:], parent_handle=os.getppid())
    finally:
        atexit._run_exitfuncs()  # multiprocessing runs none


def _exit_with_parent() -> None:
    """End this process when the one that asked for it ends; the one it was forked from waits for it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
