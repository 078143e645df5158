"""Ray: nodes train, and the caller alone writes `outputs/`. No disk needs to be shared.

This package and tasks travel to the nodes, results return as a task's value. Nodes need the same
Python with the packages of the workbook, and their own copy of downloaded image sets, at the
caller's data root or where their SOFTAD_DATA points.
"""

import contextlib
import itertools
import logging
import math
import os
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import softadlib
from softadlib._validation import UserError, real
from softadlib._workspace import check_writable
from softadlib.data import images
from softadlib.results.folder import ResultFolder
from softadlib.training.device import machine
from softadlib.training.executors.local import Task, TaskContext
from softadlib.training.protocol import Protocol

AHEAD = 4
"""Tasks handed to Ray per worker and study before the first has ended."""
RETRIES = 1
"""Times that Ray repeats a task whose worker or node died. A task that raises is not repeated."""


class RayCluster:
    """A Ray cluster, connected to while the block lasts.

    Args:
        address: of a running cluster. None joins the one that RAY_ADDRESS names or that was started
            last on this machine, as `ray.init` does, and starts one where there is none; "local"
            always starts one.
        cpus: CPUs of a node that each task takes; fractions allowed. Default: 1.
        gpus: GPUs likewise. Default: 1 where a node has one, else 0.
        checkpoint_dir: folder on a disk that all nodes see. With it, a task repeated on another
            node resumes from the checkpoint of its run; without, it starts from nothing.

    Raises UserError where there is no such cluster or node, and for a folder that cannot be written.
    """

    def __init__(
        self,
        address: str | None = None,
        cpus: float | None = None,
        gpus: float | None = None,
        checkpoint_dir: Path | None = None,
    ):
        for name, value in (("--cpus", cpus), ("--gpus", gpus)):
            if value is not None and real(name, value, low=0) > 1 and value != int(value):
                raise UserError(f"{name} above 1 must be whole, got {value}")
        self.address, self.cpus, self.gpus = address, 1.0 if cpus is None else cpus, gpus
        if checkpoint_dir is not None:
            checkpoint_dir = checkpoint_dir.absolute()  # nodes work in folders of their own
            check_writable(checkpoint_dir)
        self.checkpoint_dir = checkpoint_dir
        self.stopped = threading.Event()
        """Set when the caller is interrupted: executors in other threads then end."""

    def __enter__(self) -> "RayCluster":
        try:
            import ray
        except ModuleNotFoundError:
            raise UserError(
                "ray is not installed; install it with: pip install 'softadlib[workbook,cluster]'"
            ) from None
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self.connected_here = not ray.is_initialized()
        try:
            if self.connected_here:
                self._check_address()
                ray.init(
                    address=self.address,
                    runtime_env={"py_modules": [str(Path(softadlib.__file__).parent)]},
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except (ConnectionError, RuntimeError, ValueError, OverflowError, OSError) as error:
            what = " ".join(str(error).split())[:200]
            raise UserError(
                f"no Ray cluster at {self.address or 'this machine'}: {what}; start one with: "
                "ray start --head"
            ) from None
        self.nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
        if self.gpus is None:
            self.gpus = 1.0 if any(n.get("GPU", 0) >= 1 for n in self.nodes) else 0.0
        return self

    def _check_address(self) -> None:
        """Raise OSError where nothing listens at HOST:PORT: Ray would try for many minutes."""
        host, _, port = (self.address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():
            socket.create_connection((host, int(port)), timeout=10).close()

    def __exit__(self, *exc: object) -> None:
        import ray

        self.stopped.set()
        if self.connected_here:
            ray.shutdown()

    def executor(self, protocol: Protocol) -> "RayExecutor":
        """Return an executor for the tasks of one study. Raises UserError where no node fits them."""
        return RayExecutor(self, protocol.device)

    def workers(self, gpus: float) -> int:
        """Return how many tasks run at a time. Raises UserError where no node has room for one."""
        tasks = 0
        for node in self.nodes:
            by_gpu = node.get("GPU", 0) / gpus if gpus else math.inf
            tasks += int(min(node.get("CPU", 0) / (self.cpus or 1e-3), by_gpu))
        if not tasks:
            most = [max((n.get(r, 0) for n in self.nodes), default=0) for r in ("CPU", "GPU")]
            raise UserError(
                f"no node of the cluster has {self.cpus:g} CPUs and {gpus:g} GPUs for a task; the most "
                f"are {most[0]:g} and {most[1]:g}: choose --cpus, --gpus or device"
            )
        return tasks


class RayExecutor:
    """Runs tasks on a cluster's nodes, which cannot write `outputs/`."""

    shares_disk = False

    def __init__(self, cluster: RayCluster, device: str):
        if device == "cuda" and not cluster.gpus:
            raise UserError(
                "device 'cuda' needs --gpus above 0 and nodes with GPUs; or choose auto, cpu"
            )
        if device == "mps":
            raise UserError("device 'mps' is not for a cluster; choose from auto, cpu, cuda")
        self.cluster, self.gpus = cluster, 0.0 if device == "cpu" else cluster.gpus or 0.0
        self.device = torch.device("cuda" if self.gpus else "cpu")
        self.workers = cluster.workers(self.gpus)
        self.machines: Counter[tuple[str, ...]] = Counter()

    def checkpoints(self, folder: ResultFolder) -> Path | None:
        """Return a folder of `--checkpoint-dir`; None without."""
        root = self.cluster.checkpoint_dir
        return root and root / folder.profile / folder.dataset / folder.method

    def map(self, tasks: Sequence[Task], context: TaskContext) -> Iterator[tuple[Task, Any]]:
        """Run every task; yield it with its result as it ends.

        Ray repeats a task whose worker died; the others continue. Raises UserError for those that
        were lost again, once all others have ended.
        """
        import ray

        call = ray.remote(_on_node).options(
            num_cpus=self.cluster.cpus, num_gpus=self.gpus, max_retries=RETRIES
        )
        where = (context, self.device.type, self.gpus, str(images.data_root()))
        waiting, lost = iter(tasks), []
        under_way: dict[Any, Task] = {}
        try:
            while True:
                if self.cluster.stopped.is_set():
                    raise UserError("stopped; the same command resumes")
                for task in itertools.islice(waiting, AHEAD * self.workers - len(under_way)):
                    under_way[call.remote(task, *where)] = task
                if not under_way:
                    break
                for ended in ray.wait(list(under_way), timeout=1)[0]:
                    task = under_way.pop(ended)
                    try:
                        result, origin = ray.get(ended)
                    except ray.exceptions.RayTaskError as error:
                        raise (error.cause or error) from None
                    except ray.exceptions.RayError as error:
                        lost.append(type(error).__name__)
                        continue
                    self.machines[origin] += 1
                    yield task, result
        finally:
            for reference in under_way:
                with contextlib.suppress(Exception):  # the cluster may be gone
                    ray.cancel(reference, force=True)
        if lost:
            raise UserError(
                f"{len(lost)} tasks were lost with their workers {1 + RETRIES} times ({lost[0]}; out of "
                "memory?); the others' results are stored, and the same command trains what is missing"
            )

    def describe(self) -> dict[str, Any]:
        """Describe the nodes: devices, versions, and how many nodes there were."""
        names = ("device", "torch", "numpy", "python")
        values = zip(*(origin[1:] for origin in sorted(self.machines)))
        facts = {name: " + ".join(dict.fromkeys(v)) for name, v in zip(names, values)}
        if not facts:  # nothing was left to train
            facts = machine(self.device)
        return {**facts, "engine": "ray", "nodes": len({m[0] for m in self.machines})}


def _on_node(
    task: Task, context: TaskContext, device: str, gpus: float, data: str
) -> tuple[Any, tuple[str, ...]]:
    """Run a task on a node; return its result, the node, its device and its versions."""
    import ray

    if 0 < gpus < 1:  # tasks that share a GPU each keep to their part of its memory
        torch.cuda.set_per_process_memory_fraction(gpus)
    os.environ.setdefault("SOFTAD_DATA", data)
    with tempfile.TemporaryDirectory(prefix="softad-") as scratch:
        os.environ["SOFTAD_HOME"] = scratch
        result = task.run(context)
    facts = machine(torch.device(device))
    return result, (ray.get_runtime_context().get_node_id(), *facts.values())
