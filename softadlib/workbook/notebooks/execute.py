"""Execute the notebooks of a plan with papermill; each appears whole or not at all."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from softadlib import _workspace
from softadlib.results.folder import lock_results
from softadlib.workbook.notebooks.imports import skip_iri_grammar
from softadlib.workbook.notebooks.kernels import KernelManager, Provisioner
from softadlib.workbook.notebooks.plan import Plan, Task, silence_papermill
from softadlib.workbook.notebooks.progress_bar import ProgressBar
from softadlib.workbook.prepare import Work
from softadlib.workbook.train import train_on_ray

if TYPE_CHECKING:
    from softadlib.training.executors.ray import RayCluster


@dataclass(frozen=True)
class NotebookResult:
    """The end of a task: an empty `error` means that it succeeded."""

    task: Task
    seconds: float
    error: str = ""


def execute(
    task: Task, digest: str, timeout: int | None, stopped: threading.Event
) -> NotebookResult:
    """Execute one notebook; the result appears whole at its target, a failed one beside it.

    `digest`: stored in it, to tell later whether it is current.
    `stopped`: set when the command is interrupted; a notebook that fails then leaves nothing.
    """
    with skip_iri_grammar():
        import papermill
    from jupyter_core.utils import ensure_event_loop

    started = time.monotonic()
    running = task.target.with_name(f".{task.target.stem}.{os.getpid()}.ipynb")
    failed = task.target.with_name(f"{task.target.stem}.error.ipynb")
    error = ""
    try:
        running.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(ensure_event_loop()):  # nbclient takes the loop of this thread
            papermill.execute_notebook(
                str(task.source),
                str(running),
                dict(task.parameters),
                kernel_name="python3",
                kernel_manager_class=KernelManager,
                progress_bar=False,
                execution_timeout=timeout,
                start_timeout=180,
            )
        notebook = json.loads(running.read_text())
        notebook["metadata"]["softad"] = {"digest": digest}
        _workspace.write(task.target, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        failed.unlink(missing_ok=True)
    except Exception as problem:  # one failure must not stop the other notebooks
        if running.exists() and not stopped.is_set():
            os.replace(running, failed)
        error = _explain(problem, task, failed)
    finally:
        running.unlink(missing_ok=True)
    return NotebookResult(task, time.monotonic() - started, error)


def _explain(problem: Exception, task: Task, failed: Path) -> str:
    """Name the notebook, the cell, what happened and where to look, on one line."""
    from papermill.exceptions import PapermillExecutionError

    where = f"notebooks/{task.source.name}"
    if isinstance(problem, PapermillExecutionError):
        what, cell = f"{problem.ename}: {problem.evalue}", f" In [{problem.exec_count}]"
    else:
        what, cell = f"{type(problem).__name__}: {problem}", _last_started(failed)
    what = " ".join(what.split())[:600]
    stopped = f"; the notebook as it stopped: {failed}" if failed.exists() else ""
    return f"{task.name} failed in {where}{cell}: {what}{stopped}"


def _last_started(notebook: Path) -> str:
    """Find the cell that a kernel was in when it died; papermill marks it as completed."""
    try:
        cells = json.loads(notebook.read_text())["cells"]
    except (OSError, ValueError, KeyError):
        return ""
    cells = [c for c in cells if c["cell_type"] == "code"]
    begun = [
        i for i, c in enumerate(cells, 1) if c["metadata"].get("papermill", {}).get("start_time")
    ]
    return f" In [{begun[-1]}]" if begun else ""


def run(
    plan: Plan,
    *,
    jobs: int,
    timeout: int | None = None,
    work: Work | None = None,
    cluster: "RayCluster | None" = None,
) -> list[NotebookResult]:
    """Execute a plan in `jobs` kernels at a time; a failure does not stop the others.

    Notebooks that draw what the profile trains come last, and of the others the longest first.

    With a `cluster` it trains `work` first, and the notebooks then show results that are stored.
    Raises UserError where another process is at work on one of the trainings.
    """
    outcomes: list[NotebookResult] = []
    tasks = [*plan.trainings, *plan.drawings]
    locked = lock_results(plan.profile, work.pairs if work else [])
    units = [(t.name, t.units, t.progress) for t in tasks]
    with locked, silence_papermill(), ProgressBar(units) as bar:

        def take(results: Iterable[NotebookResult]) -> None:
            for outcome in results:
                outcomes.append(outcome)
                bar.finished(outcome.task.name, outcome.seconds, outcome.error)

        trainings = plan.trainings
        if work and cluster:
            names = {task.name for task in trainings}
            left = [s for s in work.studies if f"{s.protocol.dataset} × {s.method}" in names]
            errors = train_on_ray(left, cluster)
            failed = {" × ".join(pair): error for pair, error in errors.items()}
            take(
                NotebookResult(task, 0.0, f"{task.name}: {failed[task.name]}")
                for task in trainings
                if task.name in failed
            )
            # a stored result is complete whatever device made it; only the CPU never asks for more
            trainings = [
                replace(task, parameters={**task.parameters, "device": "cpu"})
                for task in trainings
                if task.name not in failed
            ]
        share = jobs // max(len(trainings), 1)
        if share > 1:  # fewer trainings than processes: each uses several
            trainings = [
                replace(task, parameters={**task.parameters, "jobs": share}) for task in trainings
            ]
        independent = [task for task in plan.drawings if not task.reads]
        take(_execute_all([*independent, *trainings], jobs, timeout))
        take(_execute_all([task for task in plan.drawings if task.reads], jobs, timeout))
    return outcomes


def _execute_all(tasks: Sequence[Task], jobs: int, timeout: int | None) -> Iterator[NotebookResult]:
    """Yield the results as they end. An interruption kills the kernels and leaves no notebook."""
    # Before any thread starts: `ast.parse` of Python 3.11 fails where two threads are in it.
    digests = ["" if task.units else task.digest() for task in tasks]
    stopped = threading.Event()
    pool = ThreadPoolExecutor(jobs)
    futures = [pool.submit(execute, *pair, timeout, stopped) for pair in zip(tasks, digests)]
    try:
        for future in as_completed(futures):
            yield future.result()
    except BaseException:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        while any(future.running() for future in futures):
            Provisioner.kill_all()
            time.sleep(0.1)
        raise
    finally:
        pool.shutdown()
