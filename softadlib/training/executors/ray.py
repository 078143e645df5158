"""Ray's native futures: nodes train and draw, the caller alone writes `outputs/`; no disk is shared.

What travels: this package, protocols, notebooks and stored results; back come rows as parquet and
executed notebooks as bytes. Nodes need the same Python with the packages of the workbook, and their
own copy of downloaded image sets, at the caller's data root or where their SOFTAD_DATA points.
"""

import contextlib
import io
import logging
import math
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch

import softadlib
from softadlib._validation import UserError
from softadlib.data import images
from softadlib.results.folder import ResultFolder
from softadlib.training import study
from softadlib.training.device import machine
from softadlib.training.progress import ProgressCallback, no_progress
from softadlib.training.protocol import Protocol

Result = TypeVar("Result")
AHEAD = 4
"""Tasks handed to Ray per worker and study before the first is back."""
RETRIES = 1
"""Times that a task is done again whose worker or node died; an error of its own is not retried."""


class RayCluster:
    """A Ray cluster, connected to while the block lasts; without an `address` one of this machine.

    A program that is connected already stays so.

    `cpus`, `gpus`: what each task takes of a node, fractions allowed; by default one of each, as far
    as the cluster has GPUs. Raises UserError where there is no such cluster, or no such node.
    """

    def __init__(
        self, address: str | None = None, cpus: float | None = None, gpus: float | None = None
    ):
        for name, value in (("--cpus", cpus), ("--gpus", gpus)):
            if value is not None and not 0 <= value < math.inf:
                raise UserError(f"{name} must be a number of at least 0, got {value}")
            if value is not None and value > 1 and value != int(value):
                raise UserError(f"{name} above 1 must be whole, got {value}")
        self.address, self.cpus, self.gpus = address, 1.0 if cpus is None else cpus, gpus
        self.stopped = threading.Event()

    def __enter__(self) -> "RayCluster":
        try:
            import ray
        except ModuleNotFoundError:
            raise UserError(
                "ray is not installed; install it with: pip install 'softadlib[workbook,cluster]'"
            ) from None
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self.mine = not ray.is_initialized()
        try:
            if self.mine:
                ray.init(
                    address=self.address,
                    runtime_env={"py_modules": [str(Path(softadlib.__file__).parent)]},
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            what = " ".join(str(error).split())[:200]
            raise UserError(
                f"no Ray cluster at {self.address or 'this machine'}: {what}; start one with: "
                "ray start --head"
            ) from None
        self.nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
        if self.gpus is None:
            self.gpus = 1.0 if any(n.get("GPU", 0) >= 1 for n in self.nodes) else 0.0
        return self

    def __exit__(self, *exc: object) -> None:
        import ray

        self.stopped.set()
        if self.mine:
            ray.shutdown()

    def device(self, protocol: Protocol) -> torch.device:
        """What a protocol's tasks will run on. Raises UserError where no node has it."""
        return self.executor(protocol).where

    def executor(self, protocol: Protocol) -> "RayExecutor":
        """For the tasks of one study."""
        return RayExecutor(self, protocol.device)

    def workers(self, gpus: float) -> int:
        """Tasks that run at a time. Raises UserError where no node has room for one."""
        rooms = [
            int(
                min(
                    n.get("CPU", 0) / (self.cpus or 1e-3),
                    n.get("GPU", 0) / gpus if gpus else math.inf,
                )
            )
            for n in self.nodes
        ]
        if not sum(rooms):
            most = [max((n.get(r, 0) for n in self.nodes), default=0) for r in ("CPU", "GPU")]
            raise UserError(
                f"no node of the cluster has {self.cpus:g} CPUs and {gpus:g} GPUs for a task; the most "
                f"are {most[0]:g} and {most[1]:g}: choose --cpus, --gpus or device"
            )
        return sum(rooms)


class RayExecutor:
    """An executor whose tasks run on a cluster's nodes, which cannot write `outputs/`."""

    writes = False

    def __init__(self, cluster: RayCluster, device: str):
        if device == "cuda" and not cluster.gpus:
            raise UserError(
                "device 'cuda' needs --gpus above 0 and nodes with GPUs; or choose auto, cpu"
            )
        if device == "mps":
            raise UserError("device 'mps' is not for a cluster; choose from auto, cpu, cuda")
        self.cluster, self.gpus = cluster, 0.0 if device == "cpu" else cluster.gpus or 0.0
        self.where = torch.device("cuda" if self.gpus else "cpu")
        self.workers = cluster.workers(self.gpus)
        self.machines: Counter[tuple] = Counter()

    def checkpoints(self, place: ResultFolder) -> Path | None:
        """None: no disk is shared."""
        return None

    def map(self, function: Callable[..., Result], tasks: Iterable[tuple]) -> Iterator[Result]:
        """`function(*task)` as each ends. One whose worker dies is done once more, the others go on.

        Raises a UserError for those that died twice when all others are through.
        """
        import ray

        call = ray.remote(_do).options(
            num_cpus=self.cluster.cpus, num_gpus=self.gpus, max_retries=RETRIES
        )
        root, waiting = str(images.data_root()), iter(tasks)
        under_way: list[Any] = []
        lost: list[str] = []
        try:
            while True:
                if self.cluster.stopped.is_set():
                    raise UserError("stopped; the same command goes on from here")
                for task in waiting:
                    under_way.append(call.remote(function, task, self.where.type, self.gpus, root))
                    if len(under_way) >= AHEAD * self.workers:
                        break
                if not under_way:
                    break
                done, under_way = ray.wait(under_way, timeout=1)
                for one in done:
                    try:
                        result, machine = ray.get(one)
                    except ray.exceptions.RayTaskError as error:
                        raise (error.cause or error) from None
                    except ray.exceptions.RayError as error:
                        lost.append(type(error).__name__)
                        continue
                    self.machines[machine] += 1
                    yield (
                        pd.read_parquet(io.BytesIO(result)) if isinstance(result, bytes) else result
                    )
        finally:
            for one in under_way:
                with contextlib.suppress(Exception):  # nobody waits for it any more
                    ray.cancel(one, force=True)
        if lost:
            raise UserError(
                f"{len(lost)} tasks were lost with their workers {1 + RETRIES} times ({lost[0]}; out of "
                "memory?); the others' results are kept, and the same command does what is missing"
            )

    def facts(self) -> dict[str, Any]:
        """The nodes' devices and versions, and how many nodes there were."""
        names = ("device", "torch", "numpy", "python")
        every = zip(*(m[1:] for m in sorted(self.machines)))
        found = {n: " + ".join(dict.fromkeys(v)) for n, v in zip(names, every)}
        return {**found, "engine": "ray", "nodes": len({m[0] for m in self.machines})}


def _do(
    function: Callable[..., Any], task: tuple, device: str, gpus: float, root: str
) -> tuple[Any, tuple[str, ...]]:
    """On a node: do a task in a scratch workbook; what came of it, and where that was."""
    import ray

    if 0 < gpus < 1:  # tasks that share a GPU each keep to their part of its memory
        torch.cuda.set_per_process_memory_fraction(gpus)
    os.environ.setdefault("SOFTAD_DATA", root)
    with tempfile.TemporaryDirectory(prefix="softad-") as scratch:
        os.environ["SOFTAD_HOME"] = scratch
        result = function(*task)
    if isinstance(result, pd.DataFrame):
        result = result.to_parquet()
    facts = machine(torch.device(device))
    return result, (ray.get_runtime_context().get_node_id(), *facts.values())


def train(
    pairs: Sequence[tuple[Protocol, str]],
    cluster: RayCluster,
    *,
    resume: bool = True,
    tick: ProgressCallback = no_progress,
) -> dict[tuple[str, str], str]:
    """Every study at once, each waiting in a thread of its own; what went wrong by (dataset, method)."""
    lock, errors = threading.Lock(), {}

    def hear(units: int) -> None:
        with lock:
            tick(units)

    def one(protocol: Protocol, method: str) -> None:
        executor = cluster.executor(protocol)
        study.run(protocol, method, resume=resume, tick=hear, executor=executor)

    with ThreadPoolExecutor(max(1, len(pairs))) as threads:
        waited = {threads.submit(one, *pair): (pair[0].dataset, pair[1]) for pair in pairs}
        try:
            for future in as_completed(waited):
                try:
                    future.result()
                except UserError as problem:
                    errors[waited[future]] = str(problem)
        except BaseException:
            cluster.stopped.set()  # the threads end within a second
            raise
    return errors
